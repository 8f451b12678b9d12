"""`atlas init`: create a workspace, settings, a policy and an example `.env`; existing files are kept."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from atlas_agents.cli.command import Argument, Group, command
from atlas_agents.core.errors import ConfigError

if TYPE_CHECKING:
    from atlas_agents.config.settings import Setting

app = Group()
_POLICY = """\
# Which agents may call which tools. Tools without side effects need no entry; all others are denied by default.
#
# Under yes, ask and no, list agents, roles or groups; "*" matches every agent. The most specific entry wins: an agent's
# own entry, then those of its role and groups, then "*". Run `atlas tools` to see the result, and
# `atlas audit what-if policy.toml` to see which recorded calls this policy would decide differently.

[groups]
# writers = ["assistant"]

[tools.bash]
ask = ["*"]

[grants]
# assistant = ["file:read"]
"""
_ENVIRONMENT = """\
# API keys and tokens. Copy this file to .env, and keep .env out of version control.

# Keys for agents whose model starts with anthropic/, openai/ or google/.
# ANTHROPIC_API_KEY=
# OPENAI_API_KEY=
# GOOGLE_API_KEY=

# Your own OpenAI-compatible server, for models named http/…
# OPENAI_BASE_URL=http://localhost:11434/v1

# The model for agents that name none, or whose key is not set. Without it, a small local model is used.
# ATLAS_MODEL=http/llama3.2

# The token that clients of the gateway must present. Without it, one is generated.
# ATLAS_TOKEN=
"""
_VALUES = {"workspace": '"workspace"', "policy": '"policy.toml"'}
_EXAMPLES = {
    "database_url": '"sqlite:///atlas.db"',
    "redis_url": '"redis://127.0.0.1:6379"',
    "model": '"anthropic/claude-opus-4-6"',
}


@command(app)
def init(folder: Annotated[str, Argument(metavar="FOLDER", help="The folder for the files.")] = ".") -> None:
    """Create a workspace, settings and a policy in a folder.

    Existing files are not changed. A folder without such files is trusted from then on; see atlas trust.
    """
    from atlas_agents.workspace.workspace import Workspace

    root = Path(folder).expanduser().absolute()
    is_new = not any(os.path.lexists(root / name) for name in (".env", "atlas.toml", "policy.toml", "workspace"))
    files = {"atlas.toml": _settings_file(), "policy.toml": _POLICY, ".env.example": _ENVIRONMENT}
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot create the folder {root}: {error.strerror}") from error
    _report(root / "workspace", created=Workspace(root / "workspace").prepare())
    for name, text in files.items():
        _report(root / name, created=_create(root / name, text))
    if is_new:
        _trust(root)
    else:
        print("Some of these files existed. To review what they set, run: atlas trust", file=sys.stderr)
    print("Next: atlas chat, or atlas serve. Check the installation with: atlas doctor", file=sys.stderr)


def _trust(root: Path) -> None:
    """Trust a folder whose files this command wrote."""
    from atlas_agents.config.trust import inspect_folder
    from atlas_agents.core.paths import Environment
    from atlas_agents.core.trust import Trust

    if (request := inspect_folder(root)) is not None:
        request.grant(Trust.of(Environment(dotenv=None)))


def _create(path: Path, text: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return True


def _report(path: Path, *, created: bool) -> None:
    print(f"{'created' if created else 'kept'} {path}", file=sys.stderr)


def _settings_file() -> str:
    """Return every setting that a file may contain, with its description; all but two are commented out."""
    from atlas_agents.config.settings import SETTINGS

    blocks = ["# Settings of this project. Commented-out lines show the defaults. Keys and tokens do not belong here."]
    for setting in SETTINGS.values():
        if setting.in_files and setting.hides != "all":
            line = f"{setting.key} = {_VALUES[setting.key]}" if setting.key in _VALUES else _commented_line(setting)
            blocks.append(f"# {setting.description}\n{line}")
    return "\n\n".join(blocks) + "\n"


def _commented_line(setting: "Setting") -> str:
    return f"# {setting.key} = {_EXAMPLES.get(setting.key) or _default(setting)}"


def _default(setting: "Setting") -> str:
    if setting.takes == "a list of strings":
        return "[]"
    if setting.takes == "true or false" and setting.default not in {"true", "false"}:  # the default is a description
        return "true"
    if setting.takes.startswith(("an integer", "a number", "true or false")):
        return setting.default
    return f'"{setting.default}"'
