"""What settings name, opened: the home folder, the store, the policy."""

from pathlib import Path
from typing import Any

from atlas_agents.config.load import POSTGRES, SQLITE
from atlas_agents.config.settings import Settings, scheme
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Secret, make_private
from atlas_agents.core.plugins import Plugins
from atlas_agents.core.store import Store
from atlas_agents.tools.policy import Policy

_TIMEOUT = 2.0
_LIKE = "it looks like redis://:password@host:6379/0 or rediss://:password@host:6379/0?ssl_ca_certs=/path"


def open_valkey(url: Secret | None) -> Any:
    """A client with a pool of its own, which connects when it is used; None where none is set. The certificate of
    `rediss://` must be of the host that the address names."""
    if url is None:
        return None
    try:
        from valkey.asyncio import Valkey
        from valkey.exceptions import ValkeyError
    except ImportError as error:
        raise ConfigError("redis_url: Valkey and Redis need an extra: pip install 'atlas-agents[cluster]'") from error
    options: dict[str, Any] = {"socket_timeout": _TIMEOUT, "protocol": 2, "client_name": "atlas"}
    if scheme(url.reveal()) != "unix":
        options["socket_connect_timeout"] = _TIMEOUT
    if scheme(url.reveal()) == "rediss":
        options["ssl_check_hostname"] = True
    try:
        client: Any = Valkey.from_url(url.reveal(), **options)
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # which knows the options; it connects to nobody yet
    except (ValueError, TypeError, ValkeyError):  # their words may repeat the address, and the password in it
        raise ConfigError(f"redis_url: the address, or an option in it, cannot be read: {_LIKE}") from None
    return client


def open_home(settings: Settings) -> Path:
    """The home folder, made for its owner only if it is not there yet."""
    return make_private(settings.home)


def open_policy(settings: Settings) -> Policy | None:
    """The policy that the settings name."""
    return Policy.load(settings.policy) if settings.policy else None


def is_postgres(settings: Settings) -> bool:
    return scheme(settings.database_url.reveal()) in POSTGRES


def open_store(settings: Settings, beside: Any = None) -> Store:
    """The store that the settings name; `await store.open()` connects it. What is to happen `beside` each commit only
    Postgres can do."""
    url = settings.database_url.reveal()
    if scheme(url) in SQLITE:
        return _sqlite(Path(url.removeprefix("sqlite:///")), settings)
    if scheme(url) in POSTGRES:
        return _postgres(url, settings, beside)
    return _of_plugin(scheme(url), url, settings)


def database_files(settings: Settings) -> list[Path]:
    """Where the store keeps what it knows, if that is in files."""
    url = settings.database_url.reveal()
    file = url.removeprefix("sqlite:///")
    return [Path(f"{file}{end}") for end in ("", "-wal", "-shm", "-journal")] if scheme(url) in SQLITE else []


def _of_plugin(kind: str, url: str, settings: Settings) -> Store:
    stores: dict[str, Store] = {}

    def take(name: str, thing: Any) -> None:
        if name == kind:
            stores[name] = thing(url)

    plugins = Plugins(settings.disabled_plugins)
    plugins.load("stores", take)
    if kind in stores:
        return stores[kind]
    why = plugins.disabled.get(kind)
    raise ConfigError(
        f"database_url: the plugin {kind!r} is disabled: {why}"
        if why
        else "database_url: it must begin with sqlite:// or postgresql://, or be of a kind that a plugin knows"
    )


def _sqlite(path: Path, settings: Settings) -> Store:
    from atlas_agents.storage.sqlite import SqliteStore

    if path.parent == settings.home:
        open_home(settings)
    elif not path.parent.is_dir():
        advice = "make it; a whole path begins with four slashes: sqlite:////folder/file.db"
        raise ConfigError(f"database_url: there is no folder {path.parent}; {advice}")
    return SqliteStore(path)


def _postgres(url: str, settings: Settings, beside: Any) -> Store:
    try:
        from atlas_agents.storage.postgres import PostgresStore
    except ImportError as error:
        raise ConfigError("database_url: Postgres needs an extra: pip install 'atlas-agents[postgres]'") from error
    return PostgresStore(url, transaction_hook=beside, history_cache=_histories(settings) if beside else None)


def _histories(settings: Settings) -> Any:
    """What processes that share a database keep of it."""
    from atlas_agents.storage.history_cache import HistoryCache

    client = open_valkey(settings.redis_url)
    if client is None:
        return HistoryCache()
    from atlas_agents.storage.valkey_cache import ValkeyCache

    return HistoryCache(ValkeyCache(client))
