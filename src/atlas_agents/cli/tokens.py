"""`atlas token …`: the main token and the named ones, as files in the home folder."""

import os
import secrets
import sys
from hashlib import sha256
from pathlib import Path

import msgspec

from atlas_agents.cli import options as given
from atlas_agents.cli import show as shown
from atlas_agents.cli.border import guarded, quiet
from atlas_agents.cli.options import token_of
from atlas_agents.config.open import open_home
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError
from atlas_agents.gateway.auth import ALL, Named, TokenFile
from atlas_agents.gateway.protocol.types import Scope


def show() -> int:
    def work() -> None:
        settings = given.settings()
        _opened(settings)
        print(token_of(settings))

    quiet()
    return guarded(work)


def rotate() -> int:
    """The file is changed; a gateway that runs sees that within a second."""

    def work() -> None:
        path = _opened(given.settings()).rotate()
        print(f"A new token is in {path}; the old one opens nothing any more.", file=sys.stderr)

    quiet()
    return guarded(work)


def create(name: str, scopes: str, *, all_sessions: bool, role: str, user: str = "") -> int:
    def work() -> None:
        settings = given.settings()
        _opened(settings)
        path = settings.home / "tokens.json"
        lines = _read(path)
        if name in lines:
            raise ConfigError(f"there is a token for {name!r} already: revoke it first")
        token = secrets.token_urlsafe(32)
        digest = sha256(token.encode()).hexdigest()
        sessions = "all" if all_sessions else "own"
        lines[name] = Named(_scopes(scopes), sha256=digest, sessions=sessions, role=role, user=user)
        _write(path, lines)
        try:
            _opened(settings)
        except ConfigError:
            del lines[name]
            _write(path, lines)
            raise
        print(f"The token of {name}, shown this once:", file=sys.stderr)
        print(token)

    quiet()
    return guarded(work)


def list_tokens(*, as_json: bool) -> int:
    def work() -> None:
        found = _opened(given.settings()).principals
        if as_json:
            shown.as_json(found)
            return
        rows = [(each.id, each.role, ", ".join(each.scopes)) for each in found]
        shown.table(("whose", "role", "may"), rows, "There are no tokens.")

    quiet()
    return guarded(work)


def revoke(name: str) -> int:
    def work() -> None:
        path = given.settings().home / "tokens.json"
        lines = _read(path)
        if name not in lines:
            known = ", ".join(lines) or "none"
            raise ConfigError(f"there is no token for {name!r}; there are: {known} (the main one is changed by rotate)")
        del lines[name]
        _write(path, lines)
        print(f"The token of {name} opens nothing any more.", file=sys.stderr)

    quiet()
    return guarded(work)


def _opened(settings: Settings) -> TokenFile:
    return TokenFile(open_home(settings), settings.token)


def _scopes(text: str) -> tuple[Scope, ...]:
    wanted = [each.strip() for each in text.split(",") if each.strip()]
    for each in wanted:
        if each not in ALL:
            raise ConfigError(f"--scopes: there is no scope {each!r}; there are {', '.join(ALL)}")
    if not wanted:
        raise ConfigError(f"--scopes: name at least one of {', '.join(ALL)}")
    return tuple([scope for scope in ALL if scope in wanted])


def _read(path: Path) -> dict[str, Named]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Named])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _write(path: Path, lines: dict[str, Named]) -> None:
    """Whole or not at all, and for its owner only."""
    fresh = path.with_name(f".tokens-{secrets.token_hex(8)}")
    content = {
        name: {key: value for key, value in msgspec.to_builtins(line).items() if value} for name, line in lines.items()
    }
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
