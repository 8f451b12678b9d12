"""`atlas init`: files to begin with, each written only where there is none."""

import os
import sys
from pathlib import Path

from atlas_agents.cli.border import guarded
from atlas_agents.config.settings import SETTINGS, Setting
from atlas_agents.core.errors import ConfigError
from atlas_agents.workspace.workspace import Workspace

_POLICY = """\
# Who may call which tool. Denied unless granted; tools without effects need no line.
#
# A line names agents, roles or groups under yes, ask or no; "*" is everyone. The closest line wins: the agent's own
# before its role's and its groups', those before "*". `atlas tools` shows what comes of it, and
# `atlas audit what-if policy.toml` which recorded calls it would have judged otherwise.

[groups]
# writers = ["assistant"]

[tools.bash]
ask = ["*"]

[grants]
# assistant = ["file:read"]
"""
_ENVIRONMENT = """\
# Keys and tokens: copy this file to .env, and keep that out of version control.

# The first of these that is set speaks for agents that name its models.
# ANTHROPIC_API_KEY=
# OPENAI_API_KEY=

# A server of your own that speaks OpenAI's protocol, for models named http/…
# OPENAI_BASE_URL=http://localhost:11434/v1

# The model for agents that name none, or whose key is not set; without it a small local model answers.
# ATLAS_MODEL=http/llama3.2

# What clients of the gateway must know; without it one is made.
# ATLAS_TOKEN=
"""
_SET = {"workspace": '"workspace"', "policy": '"policy.toml"'}
_EXAMPLES = {
    "database_url": '"sqlite:///atlas.db"',
    "redis_url": '"redis://127.0.0.1:6379"',
    "model": '"anthropic/claude-opus-4-6"',
}


def init(folder: str) -> int:
    """Write what is missing; the result is the exit code."""
    return guarded(lambda: _init(Path(folder).expanduser().absolute()))


def _init(folder: Path) -> None:
    files = {"atlas.toml": _settings(), "policy.toml": _POLICY, ".env.example": _ENVIRONMENT}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be made: {error.strerror}") from error
    made = Workspace(folder / "workspace").prepare()
    _tell(folder / "workspace", written=made)
    for name, text in files.items():
        _tell(folder / name, written=_write(folder / name, text))
    print("Next: atlas chat, or atlas serve; atlas doctor looks whether all is well.", file=sys.stderr)


def _write(path: Path, text: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return True


def _tell(path: Path, *, written: bool) -> None:
    print(f"{'written ' if written else 'left as it is '} {path}".replace("  ", " "), file=sys.stderr)


def _settings() -> str:
    """Every setting that may stand in a file, with what it is for; two are set, the rest shows its default."""
    blocks = [
        "# Settings of this project. What is commented out shows its default. Keys and tokens do not belong here."
    ]
    for setting in SETTINGS.values():
        if setting.in_files and setting.hides != "all":
            blocks.append(f"# {setting.description}\n{_line(setting)}")
    return "\n\n".join(blocks) + "\n"


def _line(setting: Setting) -> str:
    if setting.key in _SET:
        return f"{setting.key} = {_SET[setting.key]}"
    return f"# {setting.key} = {_value(setting)}"


def _value(setting: Setting) -> str:
    if setting.key in _EXAMPLES:
        return _EXAMPLES[setting.key]
    if setting.takes == "a list of texts":
        return "[]"
    if setting.takes == "true or false" and setting.default not in {"true", "false"}:  # it depends, in words
        return "true"
    if setting.takes.startswith(("a whole number", "a number", "true or false")):
        return setting.default
    return f'"{setting.default}"'
