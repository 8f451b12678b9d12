"""All settings as one frozen value, and what each of them is: its variable, what it takes, its default, its purpose."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Meta, inspect

from atlas_agents.core.paths import Secret
from atlas_agents.core.tenancy import Delegation
from atlas_agents.tools.limits import Limits


def about(description: str, **extra: str) -> Meta:
    """What a field is for. `default` says in words what no constant says, `variable` is a name of an own kind."""
    return Meta(description=description, extra=extra)


Search: TypeAlias = Literal["searxng", "brave", "tavily", "exa", "duckduckgo"]
Sandbox: TypeAlias = Literal["auto", "bubblewrap", "landlock", "wasm", "none"]


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the settings that built-in tools are made with."""

    folder: Annotated[
        Path | None, about("The folder that files, `bash` and code are confined to.", default="the workspace")
    ] = None
    sandbox: Annotated[Sandbox, about("What holds commands and code; `auto` takes the strongest that works here.")] = (
        "auto"
    )
    bash_network: Annotated[bool, about("Whether commands of `bash` may use the network.")] = False
    code_python: Annotated[
        Path | None,
        about("The Python that code runs on, or its virtual environment.", default="the one that runs Atlas"),
    ] = None
    code_memory: Annotated[int, Meta(ge=64, le=65536), about("MB of memory that code may use.")] = 256
    search: Annotated[Search | None, about("Who searches the web.", default="whoever has a key or an address")] = None
    search_url: Annotated[str | None, about("The address of a SearXNG.")] = None
    search_key: Annotated[Secret | None, about("The key for Brave, Tavily or Exa.", hides="all")] = None
    fetch_hosts: Annotated[
        tuple[str, ...],
        about("Hosts in a private network that `url_fetch` may read, like `wiki.intern` or `wiki.intern:8080`."),
    ] = ()
    telegram_token: Annotated[Secret | None, about("The token of a Telegram bot.", hides="all")] = None
    telegram_chat: Annotated[str | None, about("The Telegram chat that is written to where none is named.")] = None
    telegram_url: Annotated[str, about("Where the Telegram bot API is.")] = "https://api.telegram.org"
    telegram_channel: Annotated[
        bool | None,
        about("Let people talk to agents through the Telegram bot.", default="true once somebody is paired"),
    ] = None
    x_client_id: Annotated[str | None, about("The OAuth 2.0 client id of an app on X.")] = None
    x_client_secret: Annotated[Secret | None, about("Its secret, if it is a confidential client.", hides="all")] = None
    x_token: Annotated[Secret | None, about("An access token of a user of X.", hides="all")] = None
    x_refresh_token: Annotated[
        Secret | None, about("What new access tokens are had by; its successors are kept in the home.", hides="all")
    ] = None
    x_url: Annotated[str, about("Where the API of X is.")] = "https://api.x.com"
    embeddings: Annotated[
        str,
        about(
            "What finds documents and memories by their meaning: `local`, a model like `openai/text-embedding-3-small`,"
            " or `none` for words alone."
        ),
    ] = "local"
    embeddings_url: Annotated[
        str | None, about("The address of an OpenAI-compatible server that has the `embeddings` model.")
    ] = None
    embeddings_key: Annotated[Secret | None, about("The key for that server.", hides="all")] = None
    knowledge_tool: Annotated[str, about("Name under which agents see the tool that searches documents.")] = (
        "search_knowledge"
    )
    recall: Annotated[
        bool, about("Lay memories that fit beside each message; an agent may say otherwise with `Recall: on` or `off`.")
    ] = False
    delegation_depth: Annotated[int, Meta(ge=1, le=20), about("How many agents deep a task may be handed on.")] = 3
    delegation_jobs: Annotated[
        int, Meta(ge=1, le=10_000), about("How many jobs may follow from one message of a user.")
    ] = 50
    jobs_at_once: Annotated[int, Meta(ge=1, le=64), about("How many jobs are worked on at once.")] = 8


def words_for(info: Any) -> str:
    """`a whole number from 0 to 65535`, for a type as msgspec describes it."""
    match info:
        case inspect.Metadata(type=inner):
            return words_for(inner)
        case inspect.UnionType(types=types):
            return " or ".join(words_for(each) for each in types if not isinstance(each, inspect.NoneType))
        case inspect.IntType(ge=least, le=most):
            return f"a whole number{_bounds(least, most)}"
        case inspect.FloatType(ge=least, le=most):
            return f"a number{_bounds(least, most)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return " or ".join(str(value) for value in values)
        case inspect.VarTupleType():
            return "a list of texts"
        case inspect.CustomType(cls=kind) if kind is Path:
            return "a path"
        case _:
            return "a text"


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f" of at least {least}" if most is None else f" from {least} to {most}"


_IN_QUERY = re.compile(r"([?&](?:ssl)?password=)[^&#]*", re.IGNORECASE)


def scheme(url: str) -> str:
    """What stands before `://`, in small letters; empty where nothing does."""
    head, found, _ = url.partition("://")
    return head.lower() if found and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", head) else ""


def has_password(url: str) -> bool:
    return redacted(url, "") != redacted(url, "x")


def redacted(url: str, hidden: str) -> str:
    """The address with its password hidden; all of it where that cannot be told from the rest."""
    head, found, rest = url.partition("://")
    if not found:
        return hidden
    end = min((place for sign in "/?#" if (place := rest.find(sign)) >= 0), default=len(rest))
    who, at, place = rest[:end].rpartition("@")
    name, colon, _ = who.partition(":")
    if end and "@" in rest[end:]:  # a password with a sign in it that should have been escaped
        return f"{head}://{hidden}"
    shown = f"{name}:{hidden}{at}{place}" if colon else rest[:end]
    return f"{head}://{shown}{_IN_QUERY.sub(lambda match: match[1] + hidden, rest[end:])}"


HIDDEN = "[REDACTED]"
Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["text", "json"]
Role: TypeAlias = Literal["alone", "all", "gateway", "worker"]


class Explained(msgspec.Struct, frozen=True):
    """A setting, what it is (a secret is hidden), and where that was said."""

    key: str
    value: str
    origin: str


class Settings(ToolSettings, frozen=True, kw_only=True):
    """What the command and the gateway are set to; made by `load`, which checks it."""

    home: Annotated[
        Path,
        about(
            "The folder for the database and the token, for its owner only.",
            default="the user's data folder",
            only="outside",
        ),
    ]
    workspace: Annotated[
        Path, about("The folder with `AGENTS.md`, `SOUL.md` and `TOOLS.md`.", default="home/workspace")
    ]
    config: Annotated[
        Path | None,
        about("A settings file to read in place of `./atlas.toml`.", default="./atlas.toml", only="outside"),
    ] = None
    token: Annotated[
        Secret | None, about("What a client must know to be let in.", default="one is made", hides="all")
    ] = None
    host: Annotated[str, about("The address that the gateway listens on, or a worker with its health and metrics.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, Meta(ge=0, le=65535), about("Its port; 0 is any that is free, and so is a worker's if none is set.")
    ] = 18789
    allowed_origins: Annotated[
        tuple[str, ...], about("Pages of other origins that may connect, like `https://chat.example.org`.")
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...], about("Names by which the gateway may be reached, besides `localhost` and its own address.")
    ] = ()
    database_url: Annotated[
        Secret, about("`sqlite:///…` or `postgresql://…`.", default="sqlite:///home/atlas.db", hides="password")
    ]
    role: Annotated[
        Role,
        about(
            "What this process does: everything, alone; or with others on one Postgres both, a gateway, or a worker."
        ),
    ] = "alone"
    drain_seconds: Annotated[
        float,
        Meta(ge=0, le=3600),
        about("How long turns may go on after SIGTERM; the rest goes on elsewhere, or at the next start."),
    ] = 6.0
    redis_url: Annotated[
        Secret | None,
        about(
            "`redis://…` or `rediss://…` of a Valkey or Redis: processes of a cluster tell each other news by it, and"
            " share copies of sessions.",
            hides="password",
        ),
    ] = None
    model: Annotated[str | None, about("The model ref for agents that name none, or whose key is not set.")] = None
    provider_limits: Annotated[
        tuple[str, ...],
        about("How fast one key of a provider may be used: `openai requests=500 tokens=200000 at_once=8`, by minute."),
    ] = ()
    policy: Annotated[Path | None, about("The file that says who may call what.")] = None
    approval_deadline: Annotated[
        float, Meta(ge=1, le=604800), about("Seconds that a person has to answer; then it is no.")
    ] = 300.0
    two_person: Annotated[bool, about("Nobody approves what they asked for themselves.")] = False
    max_actions_per_day: Annotated[
        int, Meta(ge=1), about("Calls of an agent in a day.", variable="MAX_ACTIONS_PER_DAY")
    ] = 1000
    calls_at_once: Annotated[int, Meta(ge=1, le=64), about("Calls of a session that run at once.")] = 5
    calls_per_tick: Annotated[int, Meta(ge=1), about("Calls of an agent in a tick; the rest wait for the next.")] = 10
    tick: Annotated[float, Meta(ge=0.1, le=3600), about("Seconds of a tick.")] = 5.0
    repeats: Annotated[int, Meta(ge=1), about("How often in a row a turn may make the very same call.")] = 10
    keep_events: Annotated[
        int,
        Meta(ge=0, le=36500),
        about("Days for which all that an ended turn said can be heard again; its messages stay. 0 is for ever."),
    ] = 30
    keep_journals: Annotated[
        int, Meta(ge=0, le=36500), about("Days for which the steps of an ended turn are kept. 0 is for ever.")
    ] = 0
    disabled_plugins: Annotated[tuple[str, ...], about("Plugins that are installed and not to be used.")] = ()
    log_level: Annotated[Level, about("The least that is logged.")] = "info"
    log_format: Annotated[Format, about("Lines for people or for programs.")] = "text"
    origins: Mapping[str, str] = {}
    """Where each value was said; what is not listed is a default."""
    notices: tuple[str, ...] = ()
    """Sentences about what works and may not be meant."""

    @property
    def limits(self) -> Limits:
        """All limits of the gateway together."""
        return Limits(
            at_once=self.calls_at_once,
            per_tick=self.calls_per_tick,
            tick=self.tick,
            per_day=self.max_actions_per_day,
            repeats=self.repeats,
        )

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """All that must never be shown, wherever it was said."""
        found = [getattr(self, key) for key, setting in SETTINGS.items() if setting.hides == "all"]
        return tuple(each for each in found if isinstance(each, Secret))

    @property
    def delegation(self) -> Delegation:
        """How far work may be handed on."""
        return Delegation(depth=self.delegation_depth, jobs=self.delegation_jobs, at_once=self.jobs_at_once)

    def explain(self) -> tuple[Explained, ...]:
        """Every setting with its value, as it may be shown, and where it comes from."""
        return tuple(
            Explained(key, _shown(setting, getattr(self, key)), self.origins.get(key, "default"))
            for key, setting in SETTINGS.items()
        )


class Setting(msgspec.Struct, frozen=True):
    """What one setting is. `hides` says how much of a value is never shown."""

    key: str
    type: Any
    variable: str
    takes: str
    default: str
    description: str
    hides: Literal["", "all", "password"] = ""
    in_files: bool = True

    @property
    def flag(self) -> str:
        return f"--{self.key.replace('_', '-')}"


def _setting(field: msgspec.structs.FieldInfo) -> Setting:
    info = msgspec.inspect.type_info(field.type)
    extra: dict[str, Any] = getattr(info, "extra", None) or {}
    schema: dict[str, Any] = getattr(info, "extra_json_schema", None) or {}
    default = "" if field.default is msgspec.NODEFAULT else _plain(field.default)
    return Setting(
        key=field.name,
        type=field.type,
        variable=extra.get("variable", f"ATLAS_{field.name.upper()}"),
        takes=words_for(info),
        default=extra.get("default", default),
        description=schema["description"],
        hides=extra.get("hides", ""),
        in_files=extra.get("only") != "outside",
    )


def _shown(setting: Setting, value: Any) -> str:
    if isinstance(value, Secret):
        return redacted(value.reveal(), HIDDEN) if setting.hides == "password" else HIDDEN
    return _plain(value)


def _plain(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case tuple():
            return ", ".join(cast(tuple[str, ...], value))
        case float():
            return f"{value:g}"
        case _:
            return str(value)


_OF_TOOLS = {field.name for field in msgspec.structs.fields(ToolSettings)}
SETTINGS: dict[str, Setting] = {
    field.name: _setting(field)
    for field in sorted(msgspec.structs.fields(Settings), key=lambda field: field.name in _OF_TOOLS)
    if field.name not in ("origins", "notices")
}
"""Every setting by its name in a file."""
