"""Shell completion: `atlas completion bash|zsh|fish` prints a script for the shell.

The script runs `atlas __complete WORDS`, where the last word is the one at the cursor. That prints one candidate per
line: a command or an option, a tab and its help.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from atlas_agents.cli import command as cli
from atlas_agents.core.errors import ConfigError

app = cli.Group()
_BASH = """\
_atlas_completion() {
    COMPREPLY=( $("$1" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1) )
}
complete -o default -F _atlas_completion atlas
"""
_ZSH = """\
#compdef atlas
_atlas_completion() {
    local -a candidates
    candidates=("${(@f)$(atlas __complete "${(@)words[2,CURRENT]}" 2>/dev/null | tr '\\t' ':')}")
    if [[ -n "${candidates[1]}" ]]; then _describe atlas candidates; else _files; fi
}
if [[ "$funcstack[1]" == _atlas ]]; then _atlas_completion "$@"; else compdef _atlas_completion atlas; fi
"""
_FISH = """\
function __atlas_completion
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    atlas __complete $words[2..-1] "$last" 2>/dev/null
end
complete --command atlas --arguments "(__atlas_completion)"
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_USER_FILES = {
    "bash": ".bash_completions/atlas.sh",
    "zsh": ".zfunc/_atlas",
    "fish": ".config/fish/completions/atlas.fish",
}
_START_FILES = {
    "bash": (".bashrc", "source ~/.bash_completions/atlas.sh"),
    "zsh": (".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
}


@cli.command(app)
def completion(shell: Annotated[str, cli.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the completion script of a shell.

    For the current session run: source <(atlas completion bash). For fish run: atlas completion fish | source
    """
    print(_script(shell), end="")


def _script(shell: str) -> str:
    if shell not in _SCRIPTS:
        raise ConfigError(f"no completion for shell {shell!r}: expected {', '.join(_SCRIPTS)}")
    return _SCRIPTS[shell]


def current_shell() -> str:
    return Path(os.environ.get("SHELL", "bash")).name


def install_script() -> None:
    """Write the script of the current shell to the user's home directory, and load it in every new shell."""
    shell, home = current_shell(), Path.home()
    script, path = _script(shell), home / _USER_FILES[shell]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    if shell in _START_FILES:
        name, line = _START_FILES[shell]
        start = home / name
        before = start.read_text(encoding="utf-8") if start.exists() else ""
        if line not in before:
            start.write_text(f"{before.rstrip()}\n\n{line}\n".lstrip(), encoding="utf-8")
    print(f"Completion for {shell} is installed in {path}; it works in new shells.", file=sys.stderr)


def print_candidates(program: cli.Group, words: Sequence[str]) -> int:
    """Print the commands or options that the last word may become."""
    *before, prefix = words or [""]
    node: Any = program
    for word in before:
        if isinstance(node, cli.Group) and not word.startswith("-"):
            node = node.find(word)
    found: list[tuple[str, str]] = []
    if isinstance(node, cli.Group) and not prefix.startswith("-"):
        found = node.listing()
    elif isinstance(node, cli.Group | cli.Command) and prefix.startswith("-"):
        found = [(name, parameter.info.help) for parameter in node.parameters for name in parameter.names]
        found.append((cli.HELP, cli.HELP_TEXT))
    for name, help in found:
        if name.startswith(prefix):
            print(f"{name}\t{help}")
    return cli.EXIT_OK
