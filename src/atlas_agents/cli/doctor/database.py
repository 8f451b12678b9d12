"""The database and Redis: reachable, whole, writable, with room."""

import asyncio
import os
import sqlite3
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from atlas_agents.cli.doctor.finding import Finding, broken, notice, ok
from atlas_agents.config.open import open_store
from atlas_agents.config.settings import Settings, redacted, scheme
from atlas_agents.core.errors import AtlasError
from atlas_agents.stores.migrations import STEPS

_OURS = 0x41544C53
_CONNECT = 5.0


async def look_at_database(settings: Settings) -> AsyncIterator[Finding]:
    url = settings.database_url.reveal()
    if scheme(url) == "sqlite":
        for finding in _sqlite(Path(url.removeprefix("sqlite:///"))):
            yield finding
        return
    shown = redacted(url, "…")
    store = open_store(settings)
    try:
        async with asyncio.timeout(_CONNECT * 2):
            await store.open()
            await store.sessions("default", limit=1)
    except (AtlasError, TimeoutError) as error:
        yield broken("database", f"{shown}: {error or 'no answer'}", "is it running, and are name and password right?")
    else:
        yield ok("database", f"{shown} answers, schema {len(STEPS)}")
    finally:
        await store.close()


def _sqlite(path: Path) -> list[Finding]:
    """Looked at without opening it for writing: a doctor changes nothing."""
    if not path.exists():
        if path.parent.exists() and not os.access(path.parent, os.W_OK):
            return [broken("database", f"{path} cannot be made: its folder is read-only", "give this user the right")]
        return [notice("database", f"{path} is not there yet", "it is made at the first start")]
    if not path.is_file():
        return [broken("database", f"{path} is no file", "take it away, or set ATLAS_DATABASE_URL")]
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK):
        remedy = f"say chmod u+rw {path}, or set ATLAS_DATABASE_URL to another file"
        return [broken("database", f"{path} is read-only", remedy)]
    try:
        return _inside(path)
    except sqlite3.DatabaseError as error:
        return [broken("database", f"{path} is damaged or no database: {error}", "restore a backup")]


def _inside(path: Path) -> list[Finding]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_CONNECT)
    try:
        ours: int = connection.execute("PRAGMA application_id").fetchone()[0]
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if ours != _OURS:
            empty = path.stat().st_size == 0
            if empty:
                return [notice("database", f"{path} is empty", "it is filled at the first start")]
            return [broken("database", f"{path} is a database of another program", "set ATLAS_DATABASE_URL elsewhere")]
        if version > len(STEPS):
            words = f"{path} was written by a newer version (schema {version}, this one knows {len(STEPS)})"
            return [broken("database", words, "install the newer version again")]
        whole: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if whole != "ok":
            return [broken("database", f"{path} is damaged: {whole}", "restore a backup")]
        words = f"{path}, schema {version}, {path.stat().st_size / 1e6:.1f} MB, whole"
        older = version < len(STEPS)
        return [
            notice("database", words, "it is brought up to date at the next start") if older else ok("database", words)
        ]
    finally:
        connection.close()


async def look_at_redis(settings: Settings) -> AsyncIterator[Finding]:
    if settings.redis_url is None:
        return
    url = settings.redis_url.reveal()
    shown = redacted(url, "…")
    try:
        async with asyncio.timeout(_CONNECT):
            answer = await _ping(url)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
        words = f"{shown} does not answer ({error or 'no answer in time'})"
        yield broken("redis", words, "is it running, and is the address right? or take redis_url out")
        return
    if answer == b"+PONG":
        yield ok("redis", f"{shown} answers")
    else:
        yield broken("redis", f"{shown}: {answer.decode(errors='replace')}", "is the password right?")


async def _ping(url: str) -> bytes:
    """Say who we are, if the address does, and PING; the last answer."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        reader, writer = await asyncio.open_unix_connection(parts.path)
    else:
        known = parse_qs(parts.query).get("ssl_ca_certs", [None])[0]
        secure = ssl.create_default_context(cafile=known) if parts.scheme == "rediss" else None
        reader, writer = await asyncio.open_connection(parts.hostname or "127.0.0.1", parts.port or 6379, ssl=secure)
    try:
        if parts.password:
            name = [unquote(parts.username)] if parts.username else []
            writer.write(_command("AUTH", *name, unquote(parts.password)))
            answer = (await reader.readuntil(b"\r\n")).strip()
            if not answer.startswith(b"+"):
                return answer
        writer.write(_command("PING"))
        return (await reader.readuntil(b"\r\n")).strip()
    finally:
        writer.close()


def _command(*words: str) -> bytes:
    encoded = [word.encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)
