"""`atlas init`: create a workspace, settings, a policy and an example `.env`, and choose a model.

Existing files are kept. In a terminal it asks for the model, how careful agents should be, and a first question.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from atlas_agents.cli.command import Argument, Group, Option, YesFlag, command
from atlas_agents.cli.output import show_download
from atlas_agents.core.errors import AtlasError, ConfigError

if TYPE_CHECKING:
    from atlas_agents.config.settings import Setting
    from atlas_agents.core.paths import Environment
    from atlas_agents.providers.registry import Registry

app = Group()
_SAFETY = {
    "ask": "Ask before running commands and changing files",
    "everything": "Ask for everything",
    "read-only": "Read only",
}
_CHANGING = ("bash", "code_interpreter", "file_write", "file_edit")
_READING = ("current_time", "file_read", "file_list", "file_search", "web_search", "url_fetch", "search_knowledge")
_DOWNLOAD = "qwen2.5-coder-1.5b"
_FIRST_QUESTION = "Write a short poem about rain"
_MAX_LISTED = 12
_POLICY = """\
# Which agents may call which tools. Tools without side effects need no entry; all others are denied by default.
#
# Under yes, ask and no, list agents, roles or groups; "*" matches every agent. The most specific entry wins: an agent's
# own entry, then those of its role and groups, then "*". Run `atlas tools` to see the result, and
# `atlas audit what-if policy.toml` to see which recorded calls this policy would decide differently.

[groups]
# writers = ["assistant"]

{tools}

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
def init(
    folder: Annotated[str, Argument(metavar="FOLDER", help="The folder for the files.")] = ".",
    model: Annotated[str, Option(metavar="MODEL", help="The model for agents that name none.")] = "",
    safety: Annotated[str, Option(metavar="LEVEL", help="ask, everything or read-only.")] = "",
    yes: YesFlag = False,
) -> None:
    """Create a workspace, settings and a policy in a folder, and choose a model.

    Existing files are not changed. A folder without such files is trusted from then on; see atlas trust. In a terminal
    it asks for the model, how careful agents should be, and offers a first question; with --yes it asks nothing.
    """
    import asyncio

    from atlas_agents.workspace.workspace import Workspace

    if safety and safety not in _SAFETY:
        raise ConfigError(f"--safety: expected {', '.join(_SAFETY)}; got {safety!r}")
    root = Path(folder).expanduser().absolute()
    asks = not yes and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    is_new = not any(os.path.lexists(root / name) for name in (".env", "atlas.toml", "policy.toml", "workspace"))
    if model or asks:
        asyncio.run(_set_up_model(root, model))
    if asks and not (root / "policy.toml").exists():
        print("Step 2 of 3: safety", file=sys.stderr)
        safety = safety or list(_SAFETY)[_choose(list(_SAFETY.values()))]
    files = {"atlas.toml": _settings_file(), "policy.toml": _policy_file(safety or "ask"), ".env.example": _ENVIRONMENT}
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
    if asks:
        asyncio.run(_try_it(root))
    print("Next: atlas chat, or atlas serve. Check the installation with: atlas doctor", file=sys.stderr)


async def _set_up_model(root: Path, model: str) -> None:
    """Choose the model, by the option or by asking, and store the choice in the home folder."""
    from atlas_agents.app.model_setup import SelectedModel, write_selected
    from atlas_agents.config.load import load
    from atlas_agents.core.paths import Environment
    from atlas_agents.providers.catalogue import parse_model_ref

    environment = Environment.of_folder(root)
    settings = load({}, environment, root)
    if model:
        ref = str(parse_model_ref(model))
    else:
        print("Step 1 of 3: model", file=sys.stderr)
        ref = await _ask_for_model(environment, settings.home)
    if ref:
        write_selected(settings.home, SelectedModel(ref, None, settings.model or ""))
        print(f"Now using {ref}.", file=sys.stderr)


async def _ask_for_model(environment: "Environment", home: Path) -> str:
    """Offer the models found, a key to paste and a download; return the reference, empty to keep the model."""
    from atlas_agents.app.model_setup import apply_stored_keys, read_stored_keys
    from atlas_agents.local.models import find_model
    from atlas_agents.providers.discovery import find_keys, find_servers, provider_title
    from atlas_agents.providers.registry import Registry

    keys, servers = find_keys(environment), await find_servers(environment)
    registry = Registry(environment)
    apply_stored_keys(registry, read_stored_keys(home))
    labels = [f"{provider_title(key.provider)}: key found in {key.variable}" for key in keys]
    labels += [f"{provider_title(each.provider)} at {each.address}: {len(each.models)} models" for each in servers]
    labels += ["Paste an API key", f"Download a local model ({find_model(_DOWNLOAD).size / 1e9:.1f} GB)", "Not now"]
    number = _choose(labels, default=len(labels) - 1)
    if number < len(keys):
        return await _choose_model(keys[number].provider, registry)
    if number < len(keys) + len(servers):
        server = servers[number - len(keys)]
        return f"{server.provider}/{_choose_name(server.models)}"
    action = number - len(keys) - len(servers)
    return await _paste_key(registry, home) if action == 0 else await _download() if action == 1 else ""


async def _choose_model(provider: str, registry: "Registry") -> str:
    from atlas_agents.providers.discovery import check_provider

    checked = await check_provider(provider, registry)
    if checked.error:
        print(checked.error, file=sys.stderr)
        return ""
    return f"{provider}/{_choose_name(checked.models)}"


async def _paste_key(registry: "Registry", home: Path) -> str:
    """Read a key, test it, and store it in a file that only its owner can read."""
    import time

    from atlas_agents.app.model_setup import StoredKey, apply_stored_keys, read_stored_keys, write_stored_keys
    from atlas_agents.providers.discovery import VENDORS, check_provider, provider_title

    provider = VENDORS[_choose([provider_title(id) for id in VENDORS])]
    address = _read("Base URL: ") if provider == "http" else ""
    stored = read_stored_keys(home)
    key = StoredKey(_read_hidden("API key (not shown): "), address, int(time.time() * 1000))
    apply_stored_keys(registry, {**stored, provider: key})
    checked = await check_provider(provider, registry)
    if checked.error:
        print(checked.error, file=sys.stderr)
        return ""
    write_stored_keys(home, {**stored, provider: key})
    print(f"Key works. {len(checked.models)} models available.", file=sys.stderr)
    return f"{provider}/{_choose_name(checked.models)}"


async def _download() -> str:
    from atlas_agents.local.download import pull

    try:
        await pull(_DOWNLOAD, progress=show_download(_DOWNLOAD))
    except AtlasError as error:
        print(f"{error}. To try again, run: atlas models pull {_DOWNLOAD}", file=sys.stderr)
        return ""
    return f"local/{_DOWNLOAD}"


async def _try_it(root: Path) -> None:
    """Ask one question, so that a mistake in the set-up shows at once."""
    from atlas_agents.app.app import open_runtime
    from atlas_agents.config.load import load
    from atlas_agents.core.paths import Environment

    print(f"Step 3 of 3: try it\nQuestion [{_FIRST_QUESTION}], or - to skip: ", end="", file=sys.stderr, flush=True)
    question = _read("") or _FIRST_QUESTION
    if question == "-":
        return
    environment = Environment.of_folder(root)
    try:
        async with open_runtime(load({}, environment, root), environment=environment) as runtime:
            print((await runtime.atlas.ask(question)).text)
    except AtlasError as error:
        print(f"No answer: {error}", file=sys.stderr)


def _choose(labels: list[str], *, default: int = 0) -> int:
    """Print numbered choices, and return the index of the one that the user enters."""
    for number, label in enumerate(labels, 1):
        print(f"  {number}  {label}", file=sys.stderr)
    while True:
        answer = _read(f"Choose [{default + 1}]: ")
        if not answer:
            return default
        if answer.isdecimal() and 1 <= int(answer) <= len(labels):
            return int(answer) - 1
        print(f"Enter a number from 1 to {len(labels)}.", file=sys.stderr)


def _choose_name(names: Sequence[str]) -> str:
    """Return the name of a model that the user chooses by its number, or enters."""
    for number, name in enumerate(names[:_MAX_LISTED], 1):
        print(f"  {number}  {name}", file=sys.stderr)
    while True:
        answer = _read("Model, by number or name [1]: ") or "1"
        if not answer.isdecimal():
            return answer
        if 1 <= int(answer) <= min(len(names), _MAX_LISTED):
            return names[int(answer) - 1]


def _read(question: str) -> str:
    """Read a line; ConfigError if the input ends."""
    print(question, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise ConfigError("the input ended before the set-up was complete; the files that were created are kept")
    return line.strip()


def _read_hidden(question: str) -> str:
    from getpass import getpass

    return getpass(question, sys.stderr).strip()


def _policy_file(safety: str) -> str:
    """Return a policy: ask for changes, ask for everything, or deny changes."""
    rules = dict.fromkeys(_CHANGING, "no" if safety == "read-only" else "ask")
    if safety == "everything":
        rules |= dict.fromkeys(_READING, "ask")
    return _POLICY.replace("{tools}", "\n\n".join(f'[tools.{name}]\n{cell} = ["*"]' for name, cell in rules.items()))


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
