"""Open the resources that the settings name: the home folder, the store and the policy."""

import contextlib
import hashlib
import logging
import secrets
from functools import partial
from pathlib import Path
from typing import Any

from atlas_agents.config.load import POSTGRES, SQLITE
from atlas_agents.config.settings import Settings, redact_url, scheme
from atlas_agents.core import install_command
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Secret, make_private_folder, read_secret, write_file
from atlas_agents.core.plugins import Plugins
from atlas_agents.core.store import Store
from atlas_agents.core.trust import Trust, read_versions
from atlas_agents.storage.hash_chain import AuditSigner
from atlas_agents.tools.policy import Policy

logger = logging.getLogger(__name__)
_POST_TIMEOUT = 10.0


def open_home(settings: Settings) -> Path:
    """Return the home folder; create it, readable only by its owner, if it does not exist."""
    return make_private_folder(settings.home)


def open_policy(settings: Settings, trust: Trust | None = None) -> Policy | None:
    """Load the policy file of the settings, if one is set; with `trust`, load the version that a person agreed to."""
    if settings.policy is None:
        return None
    return Policy.load(settings.policy, _agreed_policy(settings.policy, trust) if trust is not None else None)


def _agreed_policy(path: Path, trust: Trust) -> bytes | None:
    try:
        found, agreed = read_versions(path, trust)
    except OSError as error:
        raise ConfigError(f"cannot read policy {path}: {error.strerror}") from error
    if agreed is None and found is not None:
        raise ConfigError(f"policy {path} was created by an agent; to see it and agree to it, run: atlas trust")
    if agreed != found:
        logger.warning("policy %s has changed; the version that you agreed to is in use; run: atlas trust", path)
    return agreed


def is_postgres(settings: Settings) -> bool:
    return scheme(settings.database_url.reveal()) in POSTGRES


def open_store(settings: Settings, transaction_hook: Any = None) -> Store:
    """Return the store of `database_url`; `await store.open()` connects it. Only Postgres calls `transaction_hook`."""
    url = settings.database_url.reveal()
    if scheme(url) in SQLITE:
        return _open_sqlite(Path(url.removeprefix("sqlite:///")), settings)
    if scheme(url) in POSTGRES:
        return _open_postgres(url, settings, transaction_hook)
    return _open_plugin_store(scheme(url), url, settings)


def database_files(settings: Settings) -> list[Path]:
    """Return the paths of the database's files; empty for a database server."""
    url = settings.database_url.reveal()
    file = url.removeprefix("sqlite:///")
    return [Path(f"{file}{end}") for end in ("", "-wal", "-shm", "-journal", "-lock")] if scheme(url) in SQLITE else []


def _open_plugin_store(kind: str, url: str, settings: Settings) -> Store:
    stores: dict[str, Store] = {}

    def add(name: str, factory: Any) -> None:
        if name == kind:
            stores[name] = factory(url)

    plugins = Plugins(settings.disabled_plugins)
    plugins.load("stores", add)
    if kind in stores:
        return stores[kind]
    reason = plugins.disabled.get(kind)
    raise ConfigError(
        f"database_url: the plugin {kind!r} is disabled: {reason}"
        if reason
        else f"database_url: unknown scheme {kind!r}: expected sqlite://, postgresql:// or that of a plugin"
    )


def _open_sqlite(path: Path, settings: Settings) -> Store:
    from atlas_agents.storage.sqlite import SqliteStore

    if path.parent == settings.home:
        open_home(settings)
    elif not path.parent.is_dir():
        advice = "create it; an absolute path starts with four slashes: sqlite:////folder/file.db"
        raise ConfigError(f"database_url: folder not found: {path.parent}; {advice}")
    return SqliteStore(path, audit=open_audit_signer(settings))


def _open_postgres(url: str, settings: Settings, transaction_hook: Any) -> Store:
    try:
        from atlas_agents.storage.history_cache import HistoryCache
        from atlas_agents.storage.postgres import PostgresStore
    except ImportError as error:
        raise ConfigError(f"database_url: Postgres needs an extra; run: {install_command('postgres')}") from error
    history_cache = HistoryCache() if transaction_hook else None
    audit = open_audit_signer(settings)
    return PostgresStore(url, transaction_hook=transaction_hook, history_cache=history_cache, audit=audit)


def open_audit_signer(settings: Settings) -> AuditSigner:
    """Return the signer of the audit log. Its key is in the home folder or in the settings, never in the database.

    Postgres requires a key in the settings: other machines, which do not have the key of this home folder, write too.
    """
    home = open_home(settings)
    own = _open_audit_key(home / "audit.key")
    given = settings.audit_key.reveal() if settings.audit_key else ""
    keys = [key.encode() for each in given.split(",") if (key := each.strip())]
    is_own_key = not keys and not is_postgres(settings)
    return AuditSigner(
        settings.audit_heads or _default_heads(settings, home),
        keys[0] if keys else own,
        (*keys, own) if keys or is_own_key else (),
        is_own_key=is_own_key,
        publish=partial(_post, settings.audit_webhook) if settings.audit_webhook else None,
    )


def _default_heads(settings: Settings, home: Path) -> Path:
    """Return a file next to the database, or for a database server one in the home folder."""
    if files := database_files(settings):
        return files[0].with_name(f"{files[0].name}-heads")
    server = redact_url(settings.database_url.reveal(), "")
    return home / f"audit-heads-{hashlib.sha256(server.encode()).hexdigest()[:8]}"


def _open_audit_key(path: Path) -> bytes:
    """Read the key of the audit log; create it if it is missing."""
    with contextlib.suppress(FileExistsError):
        if not path.exists():
            write_file(path, secrets.token_hex(32).encode() + b"\n", overwrite=False)
    return read_secret("the audit key", path).encode()


async def _post(url: Secret, content: bytes) -> None:
    """Send the signed heads of the audit log; a failure is logged, and the next heads are sent again."""
    import aiohttp

    from atlas_agents.core.http import open_session

    body, _, signature = content.rstrip(b"\n").rpartition(b"\n")
    headers = {"Content-Type": "application/json", "X-Atlas-Signature": signature.decode()}
    try:
        async with open_session() as session:
            timeout = aiohttp.ClientTimeout(total=_POST_TIMEOUT)
            async with session.post(url.reveal(), data=body, headers=headers, timeout=timeout) as response:
                if response.status >= 300:
                    logger.error("audit_webhook refused the signed heads: status=%d", response.status)
    except (aiohttp.ClientError, TimeoutError) as error:
        logger.error("audit_webhook cannot be reached: error=%s", type(error).__name__)
