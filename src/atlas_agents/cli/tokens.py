"""`atlas token …`: show, rotate, create, list and revoke the tokens of the gateway."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atlas_agents.cli.command import JsonFlag, command, command_group
from atlas_agents.cli.connect import load_settings, read_token
from atlas_agents.cli.output import print_json, print_table
from atlas_agents.core.errors import ConfigError

if TYPE_CHECKING:
    from atlas_agents.config.settings import Settings
    from atlas_agents.gateway.auth import TokenEntry, TokenFile
    from atlas_agents.gateway.protocol.types import Scope

app = command_group()
Name = Annotated[str, typer.Argument(metavar="NAME", help="Who uses it: lowercase letters, digits, - and _.")]


@command(app)
def show() -> None:
    """Print the main token."""
    settings = load_settings()
    _open_tokens(settings)  # creates the main token if there is none
    print(read_token(settings))


@command(app)
def rotate() -> None:
    """Replace the main token. A running gateway rejects the old one within a second."""
    path = _open_tokens(load_settings()).rotate()
    print(f"Wrote a new token to {path}; the old one is no longer valid.", file=sys.stderr)


@command(app)
def create(
    name: Name,
    scopes: Annotated[
        str, typer.Option(metavar="LIST", help="Comma-separated: read, write, approve, admin.")
    ] = "read,write",
    all_sessions: Annotated[
        bool, typer.Option("--all-sessions", help="Grant access to all sessions, not only its own.")
    ] = False,
    role: Annotated[str, typer.Option(metavar="ROLE", help="The role that policies see.")] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="The user, if it is not NAME.")] = "",
) -> None:
    """Create a token and print it. It cannot be shown again."""
    import secrets
    from hashlib import sha256

    from atlas_agents.gateway.auth import TokenEntry

    settings = load_settings()
    _open_tokens(settings)
    path = settings.home / "tokens.json"
    tokens = _read(path)
    if name in tokens:
        raise ConfigError(f"a token for {name!r} already exists; run: atlas token revoke {name}")
    token = secrets.token_urlsafe(32)
    digest = sha256(token.encode()).hexdigest()
    sessions = "all" if all_sessions else "own"
    tokens[name] = TokenEntry(_parse_scopes(scopes), sha256=digest, sessions=sessions, role=role, user=user)
    _write(path, tokens)
    try:
        _open_tokens(settings)
    except ConfigError:
        del tokens[name]
        _write(path, tokens)
        raise
    print(f"Token for {name}; it is shown only once:", file=sys.stderr)
    print(token)


@command(app, "list")
def list_tokens(as_json: JsonFlag = False) -> None:
    """List tokens by name, without their values."""
    found = _open_tokens(load_settings()).principals
    if as_json:
        print_json(found)
        return
    rows = [(each.id, each.role, ", ".join(each.scopes)) for each in found]
    print_table(("name", "role", "scopes"), rows, "There are no tokens.")


@command(app)
def revoke(name: Name) -> None:
    """Revoke a token. A running gateway rejects it within a second."""
    path = load_settings().home / "tokens.json"
    tokens = _read(path)
    if name not in tokens:
        known = ", ".join(tokens) or "none"
        raise ConfigError(
            f"token not found: {name!r}; tokens: {known}. Replace the main token with: atlas token rotate"
        )
    del tokens[name]
    _write(path, tokens)
    print(f"Revoked the token of {name}.", file=sys.stderr)


def _open_tokens(settings: "Settings") -> "TokenFile":
    from atlas_agents.config.open import open_home
    from atlas_agents.gateway.auth import TokenFile

    return TokenFile(open_home(settings), settings.token)


def _parse_scopes(text: str) -> "tuple[Scope, ...]":
    from atlas_agents.gateway.auth import ALL

    wanted = [each.strip() for each in text.split(",") if each.strip()]
    unknown = [each for each in wanted if each not in ALL]
    if unknown or not wanted:
        raise ConfigError(f"invalid --scopes {text!r}: expected one or more of {', '.join(ALL)}")
    return tuple([scope for scope in ALL if scope in wanted])


def _read(path: Path) -> "dict[str, TokenEntry]":
    from atlas_agents.core.paths import read_json
    from atlas_agents.gateway.auth import TokenEntry

    return read_json(path, dict[str, TokenEntry]) or {}


def _write(path: Path, tokens: "dict[str, TokenEntry]") -> None:
    import msgspec

    from atlas_agents.core.paths import write_json

    values = {name: msgspec.to_builtins(token) for name, token in tokens.items()}
    write_json(path, {name: {key: value for key, value in each.items() if value} for name, each in values.items()})
