"""The settings as one frozen struct, and a description of each: variable, type, default and purpose."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec
from msgspec import Meta, inspect

from atlas_agents.agents.history import Compaction, History
from atlas_agents.core.paths import Secret
from atlas_agents.core.tenancy import Delegation
from atlas_agents.tools.limits import Limits

Search: TypeAlias = Literal["searxng", "brave", "tavily", "exa", "duckduckgo"]
Sandbox: TypeAlias = Literal["auto", "bubblewrap", "landlock", "none"]
_IN_QUERY = re.compile(r"([?&](?:ssl)?password=)[^&#]*", re.IGNORECASE)
REDACTED = "[REDACTED]"
Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["text", "json"]
TelemetryKind: TypeAlias = Literal["off", "otel"]
Role: TypeAlias = Literal["alone", "all", "gateway", "worker"]


def about(description: str, **extra: str) -> Meta:
    """Describe a field. `default` describes a computed default; `variable` overrides the variable's name."""
    return Meta(description=description, extra=extra)


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the built-in tools."""

    folder: Annotated[
        Path | None,
        about("Folder that the file tools, `bash` and code of the owner are confined to.", default="the workspace"),
    ] = None
    user_folders: Annotated[
        Path | None,
        about("Folder that contains one folder for each other user of the gateway.", default="home/users"),
    ] = None
    shared_folder: Annotated[
        bool, about("Let all users work in `folder` and see each other's files, instead of in folders of their own.")
    ] = False
    sandbox: Annotated[Sandbox, about("Sandbox for commands and code. `auto` selects the strongest one available.")] = (
        "auto"
    )
    bash_network: Annotated[bool, about("Whether `bash` commands can use the network.")] = False
    code_python: Annotated[
        Path | None,
        about("Python interpreter or virtual environment that runs code.", default="the one that runs Atlas"),
    ] = None
    code_memory: Annotated[int, Meta(ge=64, le=65536), about("Memory limit for code, in MB.")] = 256
    search: Annotated[Search | None, about("Web search engine.", default="the first that has a key or a URL")] = None
    search_url: Annotated[str | None, about("URL of a SearXNG server.")] = None
    search_key: Annotated[Secret | None, about("API key for Brave, Tavily or Exa.", hides="all")] = None
    fetch_hosts: Annotated[
        tuple[str, ...],
        about("Hosts in a private network that `url_fetch` can read, such as `wiki.intern` or `wiki.intern:8080`."),
    ] = ()
    telegram_token: Annotated[Secret | None, about("Token of a Telegram bot.", hides="all")] = None
    telegram_chat: Annotated[str | None, about("Telegram chat to send to when a call names none.")] = None
    telegram_url: Annotated[str, about("URL of the Telegram bot API.")] = "https://api.telegram.org"
    telegram_channel: Annotated[
        bool | None,
        about("Let people chat with agents through the Telegram bot.", default="true once a user is paired"),
    ] = None
    x_client_id: Annotated[str | None, about("OAuth 2.0 client id of an X app.")] = None
    x_client_secret: Annotated[Secret | None, about("OAuth 2.0 client secret of the X app.", hides="all")] = None
    x_token: Annotated[Secret | None, about("Access token of an X user.", hides="all")] = None
    x_refresh_token: Annotated[
        Secret | None, about("Refresh token of an X user. Renewed tokens are stored in the home folder.", hides="all")
    ] = None
    x_url: Annotated[str, about("URL of the X API.")] = "https://api.x.com"
    embeddings: Annotated[
        str,
        about(
            "Embeddings for semantic search in documents and memories: `local`, a model such as"
            " `openai/text-embedding-3-small`, or `none` for keyword search only."
        ),
    ] = "local"
    embeddings_url: Annotated[str | None, about("URL of an OpenAI-compatible server for the `embeddings` model.")] = (
        None
    )
    embeddings_key: Annotated[Secret | None, about("API key for `embeddings_url`.", hides="all")] = None
    knowledge_tool: Annotated[str, about("Name of the tool that searches documents.")] = "search_knowledge"
    recall: Annotated[
        bool, about("Add matching memories to each message. `Recall: on` or `off` overrides this for one agent.")
    ] = False
    tool_search: Annotated[
        int,
        Meta(ge=0, le=10_000),
        about(
            "Number of tools above which an agent is shown a search tool in place of all of them; 0 shows all tools."
            " `Tool search` overrides this for one agent."
        ),
    ] = 0
    delegation_depth: Annotated[int, Meta(ge=1, le=20), about("Maximum depth of a chain of delegated tasks.")] = 3
    delegation_jobs: Annotated[
        int, Meta(ge=1, le=10_000), about("Maximum number of jobs that one user message can start.")
    ] = 50
    jobs_at_once: Annotated[int, Meta(ge=1, le=64), about("Maximum number of jobs that run concurrently.")] = 8


def describe_type(info: Any) -> str:
    """Describe a type as msgspec inspects it: `an integer from 0 to 65535`."""
    match info:
        case inspect.Metadata(type=inner):
            return describe_type(inner)
        case inspect.UnionType(types=types):
            return " or ".join(describe_type(each) for each in types if not isinstance(each, inspect.NoneType))
        case inspect.IntType(ge=minimum, le=maximum):
            return f"an integer{_bounds(minimum, maximum)}"
        case inspect.FloatType(ge=minimum, le=maximum):
            return f"a number{_bounds(minimum, maximum)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return " or ".join(str(value) for value in values)
        case inspect.VarTupleType():
            return "a list of strings"
        case inspect.CustomType(cls=kind) if kind is Path:
            return "a path"
        case _:
            return "a string"


def _bounds(minimum: float | None, maximum: float | None) -> str:
    if minimum is None:
        return ""
    return f" of at least {minimum}" if maximum is None else f" from {minimum} to {maximum}"


def scheme(url: str) -> str:
    """Return the scheme of a URL in lower case, or '' without one."""
    head, found, _ = url.partition("://")
    return head.lower() if found and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", head) else ""


def has_password(url: str) -> bool:
    return redact_url(url, "") != redact_url(url, "x")


def redact_url(url: str, replacement: str) -> str:
    """Return a URL with its password replaced, or with all after the scheme replaced if that is ambiguous."""
    head, found, rest = url.partition("://")
    if not found:
        return replacement
    end = min((index for sign in "/?#" if (index := rest.find(sign)) >= 0), default=len(rest))
    userinfo, at, host = rest[:end].rpartition("@")
    user, colon, _ = userinfo.partition(":")
    if end and "@" in rest[end:]:  # a password that contains an unescaped character
        return f"{head}://{replacement}"
    shown = f"{user}:{replacement}{at}{host}" if colon else rest[:end]
    return f"{head}://{shown}{_IN_QUERY.sub(lambda match: match[1] + replacement, rest[end:])}"


class Explained(msgspec.Struct, frozen=True):
    """A setting's key, its value with secrets redacted, and its source.

    Attributes:
        key: Name of the setting.
        value: Its value, with secrets redacted.
        origin: Where the value comes from.
    """

    key: str
    value: str
    origin: str


class Settings(ToolSettings, frozen=True, kw_only=True):
    """Settings of the CLI and the gateway. Use `load` to create and validate them."""

    home: Annotated[
        Path,
        about(
            "Folder for the database and the token, readable only by its owner.",
            default="the user's data folder",
            only="outside",
        ),
    ]
    workspace: Annotated[Path, about("Folder with `AGENTS.md`, `SOUL.md` and `TOOLS.md`.", default="home/workspace")]
    config: Annotated[
        Path | None, about("Settings file to read instead of `./atlas.toml`.", default="./atlas.toml", only="outside")
    ] = None
    trusted_folders: Annotated[
        tuple[str, ...],
        about(
            "Absolute paths of folders whose `.env` and `atlas.toml` are applied without asking, for CI. Use `atlas"
            " trust` instead where a person can answer.",
            only="outside",
        ),
    ] = ()
    token: Annotated[
        Secret | None, about("Token that clients authenticate with.", default="a generated token", hides="all")
    ] = None
    host: Annotated[str, about("Address that the gateway, or a worker's health endpoint, listens on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535), about("Port to listen on. 0 selects a free port, which is the default of a worker.")
    ] = 18789
    allowed_origins: Annotated[
        tuple[str, ...], about("Other origins whose pages can connect (CORS), such as `https://chat.example.org`.")
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...], about("Host names that the gateway accepts besides `localhost` and its own address.")
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...],
        about("Addresses or networks of reverse proxies whose `X-Forwarded-For` names the client: `10.0.0.0/8`."),
    ] = ()
    database_url: Annotated[
        Secret,
        about("Database: `sqlite:///…` or `postgresql://…`.", default="sqlite:///home/atlas.db", hides="password"),
    ]
    audit_key: Annotated[
        Secret | None,
        about(
            "Key that signs the audit log, the same for all processes on one database. Several keys are separated by"
            " commas: the first signs, all verify.",
            default="a generated key in the home folder; none for Postgres",
            hides="all",
        ),
    ] = None
    audit_heads: Annotated[
        Path | None,
        about(
            "File for the signed heads of the audit log, best on another disk.",
            default="next to the database; in the home folder for Postgres",
        ),
    ] = None
    audit_webhook: Annotated[
        Secret | None,
        about("URL that receives the signed heads of the audit log by POST whenever they change.", hides="all"),
    ] = None
    role: Annotated[
        Role,
        about("Role of this process: `alone`, or `gateway`, `worker` or `all` (both) in a cluster on one Postgres."),
    ] = "alone"
    drain_seconds: Annotated[
        float,
        Meta(ge=0, le=3600),
        about(
            "Seconds to let running turns finish after SIGTERM. Unfinished turns resume on another worker or at"
            " the next start."
        ),
    ] = 6.0
    redis_url: Annotated[
        Secret | None,
        about(
            "URL of a Valkey or Redis server, `redis://…` or `rediss://…`. It gets a copy of the state of each session"
            " for other programs to read.",
            hides="password",
        ),
    ] = None
    model: Annotated[str | None, about("`provider/model` for agents that name none or lack an API key.")] = None
    allowed_models: Annotated[
        tuple[str, ...],
        about("Models, besides those of the agents, that users without the scope `admin` can choose for a message."),
    ] = ()
    compaction: Annotated[
        bool, about("Whether older messages of a long session are summarised before they exceed the context window.")
    ] = True
    compaction_threshold: Annotated[
        float,
        Meta(ge=0.5, le=1),
        about("Share of the available tokens at which a conversation is summarised."),
    ] = 0.8
    compaction_model: Annotated[
        str | None, about("`provider/model` that writes the summaries.", default="the model of the agent")
    ] = None
    title_model: Annotated[
        str | None,
        about(
            "`provider/model` that writes the title of a chat after its first answer.",
            default="the title is made from the first message",
        ),
    ] = None
    user_sessions: Annotated[
        int,
        Meta(ge=0),
        about("Maximum number of unarchived sessions of each user, except the owner. 0 means unlimited."),
    ] = 10_000
    user_messages: Annotated[
        int, Meta(ge=0), about("Maximum number of stored messages of each user, except the owner. 0 means unlimited.")
    ] = 100_000
    user_megabytes: Annotated[
        int, Meta(ge=0), about("Maximum size of the sessions of each user in MB, except the owner. 0 means unlimited.")
    ] = 256
    provider_limits: Annotated[
        tuple[str, ...],
        about("Rate limits per provider key and minute, such as `openai requests=500 tokens=200000 at_once=8`."),
    ] = ()
    model_catalogue: Annotated[
        tuple[str, ...],
        about(
            "Models to add to the catalogue, or to override in it, such as "
            "`my-model input=1 output=4 window=32000 answer=8000`: dollars per million tokens, and the maximum "
            "number of tokens of a request and of an answer."
        ),
    ] = ()
    budgets: Annotated[
        tuple[str, ...],
        about(
            "Budgets of tokens, requests, tool_calls, dollars and seconds of each turn, session, agent or user, or of"
            " the tenant, such as `turn tokens=200000 seconds=600` or `user dollars=5 per=day`."
        ),
    ] = ()
    alerts: Annotated[
        tuple[str, ...],
        about(
            "Alert rules of the gateway, such as `error_rate > 10% for 5m to webhook` or `turn_p95 > 60 to telegram`. "
            "Without a target, a rule sends to all configured targets."
        ),
    ] = ()
    alert_webhook: Annotated[
        Secret | None, about("URL that alerts are posted to, as JSON with the field `text`.", hides="all")
    ] = None
    policy: Annotated[Path | None, about("Policy file: which agents may call which tools.")] = None
    approval_deadline: Annotated[
        float, Meta(ge=1, le=604800), about("Seconds to wait for an approval before the call is denied.")
    ] = 300.0
    two_person: Annotated[bool, about("Require approval by someone other than the requester.")] = False
    max_actions_per_day: Annotated[
        int, Meta(ge=1), about("Maximum number of tool calls of an agent per day.", variable="MAX_ACTIONS_PER_DAY")
    ] = 1000
    calls_at_once: Annotated[int, Meta(ge=1, le=64), about("Maximum number of concurrent tool calls of a session.")] = 5
    calls_per_tick: Annotated[int, Meta(ge=1), about("Tool calls of an agent per tick; more calls wait.")] = 10
    tick: Annotated[float, Meta(ge=0.1, le=3600), about("Length of a tick in seconds.")] = 5.0
    repeats: Annotated[int, Meta(ge=1), about("Maximum number of identical tool calls in a row in one turn.")] = 10
    keep_events: Annotated[
        int,
        Meta(ge=0, le=36500),
        about("Days to keep the events of a finished turn for replay. Its messages stay. 0 keeps them forever."),
    ] = 30
    keep_journals: Annotated[
        int, Meta(ge=0, le=36500), about("Days to keep the journal of a finished turn. 0 keeps it forever.")
    ] = 0
    disabled_plugins: Annotated[tuple[str, ...], about("Installed plugins that are not loaded.")] = ()
    telemetry: Annotated[
        TelemetryKind,
        about(
            "`otel` records turns with OpenTelemetry and exports them as the variables `OTEL_EXPORTER_OTLP_…` define."
            " Requires the extra `otel` and the packages of the SDK."
        ),
    ] = "off"
    telemetry_content: Annotated[
        bool,
        about("Whether telemetry contains messages, arguments and results of tools, with secrets redacted."),
    ] = False
    log_level: Annotated[Level, about("Minimum level of logged messages.")] = "info"
    log_format: Annotated[Format, about("Log format: `text` for people, `json` for programs.")] = "text"
    origins: Mapping[str, str] = {}
    """Source of each value; a setting that is not listed has its default."""
    notices: tuple[str, ...] = ()
    """Warnings about values that are valid but probably not intended."""
    ignored: tuple[str, ...] = ()
    """Values of the working folder that are not applied because the folder is not trusted: name and source."""

    @property
    def limits(self) -> Limits:
        """Return the limits for tool calls."""
        return Limits(
            at_once=self.calls_at_once,
            per_tick=self.calls_per_tick,
            tick=self.tick,
            per_day=self.max_actions_per_day,
            repeats=self.repeats,
        )

    @property
    def history(self) -> History:
        """Return the limits on the messages that are sent to models."""
        model, threshold = self.compaction_model or "", self.compaction_threshold
        return History(compaction=Compaction(threshold=threshold, model=model) if self.compaction else None)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Return the secret values, which must never be displayed."""
        found = [getattr(self, key) for key, setting in SETTINGS.items() if setting.hides == "all"]
        return tuple(each for each in found if isinstance(each, Secret))

    @property
    def delegation(self) -> Delegation:
        """Return the limits for delegated tasks."""
        return Delegation(depth=self.delegation_depth, jobs=self.delegation_jobs, at_once=self.jobs_at_once)

    def explain(self) -> tuple[Explained, ...]:
        """Return every setting with its value, secrets redacted, and its source."""
        return tuple(
            Explained(key, _display(setting, getattr(self, key)), self.origins.get(key, "default"))
            for key, setting in SETTINGS.items()
        )


class Setting(msgspec.Struct, frozen=True):
    """Description of a setting.

    Attributes:
        key: Name in `atlas.toml`.
        type: Type of the value.
        variable: Environment variable that sets it.
        takes: Accepted values, in words.
        default: The default, in words.
        description: Effect of the setting.
        hides: Which part of the value is never displayed.
        in_files: Whether it can be set in a file; otherwise only in the environment and on the command line.
    """

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
    default = "" if field.default is msgspec.NODEFAULT else _format(field.default)
    return Setting(
        key=field.name,
        type=field.type,
        variable=extra.get("variable", f"ATLAS_{field.name.upper()}"),
        takes=describe_type(info),
        default=extra.get("default", default),
        description=schema["description"],
        hides=extra.get("hides", ""),
        in_files=extra.get("only") != "outside",
    )


def _display(setting: Setting, value: Any) -> str:
    if isinstance(value, Secret):
        return redact_url(value.reveal(), REDACTED) if setting.hides == "password" else REDACTED
    return _format(value)


def _format(value: Any) -> str:
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


_TOOL_FIELDS = {field.name for field in msgspec.structs.fields(ToolSettings)}
SETTINGS: dict[str, Setting] = {
    field.name: _setting(field)
    for field in sorted(msgspec.structs.fields(Settings), key=lambda field: field.name in _TOOL_FIELDS)
    if field.name not in ("origins", "notices", "ignored")
}
"""Every setting by its key in a settings file."""
