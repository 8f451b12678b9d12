"""`atlas token`, `users`, `plans`, `tenants` and `telegram`: who may use the gateway, and how much."""

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

from atlas_agents.cli.command import Argument, Group, JsonFlag, Option, command
from atlas_agents.cli.connect import call, load_settings, open_calls, read_token
from atlas_agents.cli.output import format_age, format_time, print_json, print_table
from atlas_agents.core.errors import ConfigError, Unreachable

if TYPE_CHECKING:
    from atlas_agents.channels.telegram.state import PairedUser, Pairing
    from atlas_agents.config.settings import Settings
    from atlas_agents.gateway.auth import TokenFile
    from atlas_agents.gateway.protocol.types import Scope

token = Group()
users = Group()
plans = Group()
tenants = Group()
telegram = Group()
_ACCEPT_TIMEOUT = 30.0
_LIMITS = ("tokens", "agents", "storage", "seats")
TokenName = Annotated[str, Argument(metavar="NAME", help="Name of the token: lowercase letters, digits, - and _.")]
DryRunFlag = Annotated[bool, Option("--dry-run", help="Only show what would change.")]
Name = Annotated[str, Argument(metavar="NAME", help="Lowercase letters, digits, - and _.")]


@command(token, "show")
def show_token() -> None:
    """Print the main token."""
    settings = load_settings()
    _open_tokens(settings)  # creates the main token if there is none
    print(read_token(settings))


@command(token, "rotate")
def rotate_token() -> None:
    """Replace the main token. A running gateway rejects the old one within a second."""
    path = _open_tokens(load_settings()).rotate()
    print(f"Wrote a new token to {path}; the old one is no longer valid.", file=sys.stderr)


@command(token, "create")
def create_token(
    name: TokenName,
    scopes: Annotated[str, Option(metavar="LIST", help="Comma-separated: read, write, approve, admin.")] = "read,write",
    all_sessions: Annotated[
        bool, Option("--all-sessions", help="Grant access to all sessions, not only its own.")
    ] = False,
    role: Annotated[str, Option(metavar="ROLE", help="The role that policies see.")] = "",
    user: Annotated[str, Option(metavar="NAME", help="The user of the token; by default NAME.")] = "",
) -> None:
    """Create a token and print it. It cannot be shown again."""
    from atlas_agents.gateway.auth import TokenEntry

    sessions = "all" if all_sessions else "own"
    entry = TokenEntry(_parse_scopes(scopes), sessions=sessions, role=role, user=user)
    secret = _open_tokens(load_settings()).create(name, entry).reveal()
    print(f"Token for {name}; it is shown only once:", file=sys.stderr)
    print(secret)


@command(token, "list")
def list_tokens(as_json: JsonFlag = False) -> None:
    """List tokens by name, without their values."""
    tokens = _open_tokens(load_settings())
    found = tokens.principals
    if as_json:
        print_json(found)
        return
    names = ("owner", *tokens.entries())
    rows = [(name, each.id, each.role, ", ".join(each.scopes)) for name, each in zip(names, found, strict=True)]
    print_table(("name", "user", "role", "scopes"), rows, "There are no tokens.")


@command(token, "revoke")
def revoke_token(name: TokenName) -> None:
    """Revoke a token. A running gateway rejects it within a second."""
    _open_tokens(load_settings()).remove(name)
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


def _limit_option(help: str) -> Any:
    return Option(metavar="N", help=f"{help}; none for no limit.")


def _parse_limit(name: str, text: str) -> int | None:
    if text == "none":
        return None
    try:
        limit = int(text)
    except ValueError:
        limit = -1
    if limit < 0:
        raise ConfigError(f"invalid --{name} {text!r}: expected an integer from 0, or none for no limit")
    return limit


@command(users, "list")
def list_users(as_json: JsonFlag = False) -> None:
    """List users, their roles and when they were last active."""
    found = call("users.list")["users"]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["name"],
            each["role"],
            each["status"],
            format_age(each["lastActive"]) if "lastActive" in each else "never",
        )
        for each in found
    ]
    print_table(("user", "role", "status", "last active"), rows, "There are no users.")


@command(users, "set")
def set_user(
    name: Name,
    role: Annotated[str | None, Option(metavar="ROLE", help="The user's role; member for a new user.")] = None,
    status: Annotated[
        str | None, Option(metavar="STATUS", help="active, invited or suspended; active for a new user.")
    ] = None,
    dry_run: DryRunFlag = False,
) -> None:
    """Add a user, or change the given fields. The tokens of a suspended user are rejected."""
    with open_calls() as gateway:
        found = next((each for each in gateway("users.list")["users"] if each["name"] == name), {})
        role, status = role or found.get("role", "member"), status or found.get("status", "active")
        changed = gateway("users.put", name=name, role=role, status=status, dry_run=dry_run)
    if not _is_preview(changed, dry_run):
        print(f"{name}: {status}, {role}.", file=sys.stderr)


@command(users, "invite")
def invite_user(
    name: Name,
    role: Annotated[str | None, Option(metavar="ROLE", help="The user's role; member for a new user.")] = None,
    scopes: Annotated[
        str | None,
        Option(metavar="LIST", help="Comma-separated: read, write, approve, admin; read,write for a new user."),
    ] = None,
    all_sessions: Annotated[
        bool | None, Option(help="Grant access to all sessions, or only to their own; their own for a new user.")
    ] = None,
    days: Annotated[
        int | None, Option(metavar="N", min=1, max=90, help="How long the invitation is valid; at least 7 by default.")
    ] = None,
    dry_run: DryRunFlag = False,
) -> None:
    """Invite a user and print a link that signs them in once. It needs a running gateway.

    For a user who is already invited, change only the given fields.
    """
    from atlas_agents.cli.connect import find_running_gateway

    running = find_running_gateway()
    if running is None and not dry_run:
        raise ConfigError("no gateway is running to accept the invitation; run: atlas serve")
    rights = {
        "scopes": None if scopes is None else list(_parse_scopes(scopes)),
        "sessions": None if all_sessions is None else "all" if all_sessions else "own",
    }
    made = call("users.invite", name=name, role=role, days=days, dry_run=dry_run, **rights)
    if _is_preview(made, dry_run) or running is None:
        return
    until = format_time(made["user"]["invitedUntil"])
    print(f"Invitation for {name}; it is shown only once, and valid once until {until}:", file=sys.stderr)
    print(f"{running.url}{made['path']}")


@command(users, "accept")
def accept_invitation(
    link: Annotated[str, Argument(metavar="LINK", help="The link that `atlas users invite` or the web UI printed.")],
) -> None:
    """Accept an invitation and print your token, for a program or ATLAS_TOKEN. The link works once."""
    import urllib.error
    import urllib.parse
    import urllib.request

    parts = urllib.parse.urlsplit(link)
    code = parts.fragment.removeprefix("invite=")
    if parts.scheme not in ("http", "https") or not parts.netloc or code in ("", parts.fragment):
        raise ConfigError(f"invalid invitation {link!r}: expected a link such as https://atlas.example.org/#invite=…")
    origin = f"{parts.scheme}://{parts.netloc}"
    headers = {"Content-Type": "application/json", "Origin": origin}
    body = json.dumps({"code": code}).encode()
    request = urllib.request.Request(f"{origin}/api/invitation", body, headers)  # noqa: S310 - http or https
    try:
        with urllib.request.urlopen(request, timeout=_ACCEPT_TIMEOUT) as response:  # noqa: S310 - see above
            accepted = json.load(response)
    except urllib.error.HTTPError as error:
        raise ConfigError(_error_message(error.read()) or f"{origin}: HTTP {error.code}") from error
    except OSError as error:
        raise Unreachable(f"cannot reach {origin}: {getattr(error, 'reason', error)}") from error
    print(f"Token for {accepted['user']}; it is shown only once:", file=sys.stderr)
    print(accepted["token"])


def _error_message(body: bytes) -> str:
    """Return the message of an error response; empty if it is not from a gateway."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""


@command(users, "remove")
def remove_user(name: Name, dry_run: DryRunFlag = False) -> None:
    """Remove a user; their sessions are kept."""
    if not _is_preview(call("users.remove", name=name, dry_run=dry_run), dry_run):
        print(f"{name}: removed.", file=sys.stderr)


def _is_preview(result: dict[str, Any], dry_run: bool) -> bool:
    """Print the warnings of a change, and after a dry run what would change."""
    if dry_run:
        print(result.get("diff") or "Nothing would change.")
    for warning in result.get("warnings", ()):
        print(f"! {warning}", file=sys.stderr)
    return dry_run


@command(plans, "list")
def list_plans(as_json: JsonFlag = False) -> None:
    """List the plans."""
    found = call("plans.list")["plans"]
    if as_json:
        print_json(found)
        return
    rows = [(each["name"], *(_limit(each, name) for name in _LIMITS)) for each in found]
    print_table(("plan", "tokens per month", "agents", "bytes", "seats"), rows, "There are no plans.")


@command(plans, "set")
def set_plan(
    name: Name,
    tokens: Annotated[str | None, _limit_option("Tokens per month")] = None,
    agents: Annotated[str | None, _limit_option("Number of agents")] = None,
    storage: Annotated[str | None, _limit_option("Bytes of storage")] = None,
    seats: Annotated[str | None, _limit_option("Number of users")] = None,
    dry_run: DryRunFlag = False,
) -> None:
    """Create a plan, or change the given limits.

    A new plan has no other limits.
    """
    given = {"tokens": tokens, "agents": agents, "storage": storage, "seats": seats}
    limits = {limit: _parse_limit(limit, text) for limit, text in given.items() if text is not None}
    with open_calls() as gateway:
        found = next((each for each in gateway("plans.list")["plans"] if each["name"] == name), {})
        limits = {limit: found.get(limit) for limit in _LIMITS} | limits
        changed = gateway("plans.put", name=name, **limits, dry_run=dry_run)
    if not _is_preview(changed, dry_run):
        print(f"Saved plan {name}.", file=sys.stderr)


@command(plans, "use")
def use_plan(name: Name, dry_run: DryRunFlag = False) -> None:
    """Switch this tenant to a plan."""
    if not _is_preview(call("tenants.update", plan=name, dry_run=dry_run), dry_run):
        print(f"Switched to plan {name}.", file=sys.stderr)


@command(tenants, "show")
def show_tenant(as_json: JsonFlag = False) -> None:
    """Show the plan and how much of it is used."""
    found = call("tenants.get")
    if as_json:
        print_json(found)
        return
    print(f"{found['tenant']}, plan {found['plan']['name']}")
    rows = [(name, f"{found[name]:,}", _limit(found["plan"], name)) for name in _LIMITS]
    print_table(("resource", "used", "limit"), rows, "")


@command(tenants, "list")
def list_tenants(as_json: JsonFlag = False) -> None:
    """List the tenants of this store."""
    found = call("tenants.list")["tenants"]
    if as_json:
        print_json(found)
        return
    print_table(("tenant",), [(each,) for each in found], "No tenant has its own plan.")


def _limit(plan: dict[str, Any], name: str) -> str:
    return f"{plan[name]:,}" if plan.get(name) is not None else "no limit"


@command(telegram)
def pair(code: Annotated[str, Argument(metavar="CODE", help="The code that the bot sent them.")]) -> None:
    """Allow a person to chat with all agents and to answer approval requests.

    A code is valid once, for one hour, and only in a private chat: the bot ignores groups.
    """
    from atlas_agents.builtin_tools.telegram_api import BotAccount

    settings = load_settings()
    found = _pairing(settings).pair(code)
    print(f"{_person(found)} (Telegram user {found.user}) can now chat with your agents.", file=sys.stderr)
    if BotAccount(settings.telegram_token, settings.home).token is None:
        print("No bot is configured: add one in Settings, Channels, or set ATLAS_TELEGRAM_TOKEN.", file=sys.stderr)


@command(telegram, "list")
def list_pairs(as_json: JsonFlag = False) -> None:
    """List the paired people."""
    found = _pairing(load_settings()).pairs().values()
    if as_json:
        print_json(list(found))
        return
    rows = [(each.user, _person(each), time.strftime("%Y-%m-%d", time.localtime(each.since))) for each in found]
    empty = "No one is paired. Send the bot a message, then run: atlas telegram pair CODE"
    print_table(("user", "name", "since"), rows, empty)


@command(telegram)
def unpair(
    user: Annotated[str, Argument(metavar="USER", help="Their number or @name, as `list` shows it.")],
) -> None:
    """Withdraw a person's access; it takes effect at once."""
    found = _pairing(load_settings()).unpair(user)
    print(f"{_person(found)} (Telegram user {found.user}) can no longer chat with your agents.", file=sys.stderr)


def _pairing(settings: "Settings") -> "Pairing":
    from atlas_agents.channels.telegram.state import Pairing
    from atlas_agents.config.open import open_home

    return Pairing(open_home(settings))


def _person(pair: "PairedUser") -> str:
    return f"{pair.name} @{pair.username}" if pair.username else pair.name or "unknown"
