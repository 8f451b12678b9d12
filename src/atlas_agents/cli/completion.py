"""Shell completion: `atlas completion bash|zsh|fish`, and the candidates that those scripts ask for.

A script runs `atlas` with `_ATLAS_COMPLETE=complete_<shell>`, the words of the line in `COMP_WORDS`, one per line, and
the position of the word to complete in `COMP_CWORD`.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

from atlas_agents.cli import command as cli
from atlas_agents.core.errors import ConfigError

app = cli.Group()
_BASH = """\
_atlas_completion() {
    local IFS=$'\\n'
    COMPREPLY=( $(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD _ATLAS_COMPLETE=complete_bash "$1" 2>/dev/null) )
}
complete -o default -F _atlas_completion atlas
"""
_ZSH = """\
#compdef atlas
_atlas_completion() {
    local -a candidates
    local -x COMP_WORDS="${(F)words}" COMP_CWORD=$((CURRENT-1)) _ATLAS_COMPLETE=complete_zsh
    candidates=("${(@f)$(atlas 2>/dev/null)}")
    if [[ -n "${candidates[1]}" ]]; then _describe atlas candidates; else _files; fi
}
if [[ "$funcstack[1]" == _atlas ]]; then _atlas_completion "$@"; else compdef _atlas_completion atlas; fi
"""
_FISH = """\
function __atlas_completion
    set -lx COMP_WORDS (string join \\n -- (commandline -opc) (commandline -ct) | string collect --allow-empty)
    set -lx COMP_CWORD (count (commandline -opc))
    _ATLAS_COMPLETE=complete_fish atlas 2>/dev/null
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


def _current_shell() -> str:
    return Path(os.environ.get("SHELL", "bash")).name


def print_script() -> None:
    """Print the script of the current shell."""
    print(_script(_current_shell()), end="")


def install_script() -> None:
    """Write the script of the current shell to the user's home directory, and load it in every new shell."""
    shell, home = _current_shell(), Path.home()
    script, path = _script(shell), home / _USER_FILES[_current_shell()]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    if shell in _START_FILES:
        name, line = _START_FILES[shell]
        start = home / name
        before = start.read_text(encoding="utf-8") if start.exists() else ""
        if line not in before:
            start.write_text(f"{before.rstrip()}\n\n{line}\n".lstrip(), encoding="utf-8")
    print(f"Completion for {shell} is installed in {path}; it works in new shells.", file=sys.stderr)


def print_candidates(program: cli.Group) -> int:
    """Print the candidates at the cursor (commands or options) in the format of the calling shell."""
    line = os.environ.get("COMP_WORDS", "")
    words = line.split("\n") if "\n" in line else line.split()
    place = int(os.environ.get("COMP_CWORD") or len(words))
    prefix = words[place] if place < len(words) else ""
    described = {"complete_zsh": _zsh_line, "complete_fish": "{}\t{}".format}.get(os.environ["_ATLAS_COMPLETE"])
    for name, help in _candidates(program, words[1:place], prefix):
        print(described(name, help) if described else name)
    return cli.EXIT_OK


def _zsh_line(name: str, help: str) -> str:
    return name.replace(":", "\\:") + f":{help}"


def _candidates(program: cli.Group, before: list[str], prefix: str) -> list[tuple[str, str]]:
    node: Any = program
    for word in before:
        if isinstance(node, cli.Group) and not word.startswith("-"):
            node = node.find(word)
    if isinstance(node, cli.Group) and not prefix.startswith("-"):
        found = node.listing()
    elif isinstance(node, cli.Group | cli.Command) and prefix.startswith("-"):
        parameters = node.options() if isinstance(node, cli.Group) else node.parameters
        found = [(name, each.info.help) for each in parameters for name in [*each.names, *each.off_names]]
        found.append(("--help", "Show this message and exit."))
    else:
        found = []
    return [(name, help) for name, help in found if name.startswith(prefix)]
