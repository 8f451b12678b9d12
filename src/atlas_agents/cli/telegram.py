"""`atlas telegram …`: pair and unpair the people who may use the Telegram bot."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from atlas_agents.cli.command import JsonFlag, command, command_group
from atlas_agents.cli.connect import load_settings
from atlas_agents.cli.output import print_json, print_table

if TYPE_CHECKING:
    from atlas_agents.channels.telegram.state import PairedUser, Pairing
    from atlas_agents.config.settings import Settings

app = command_group()


@command(app)
def pair(code: Annotated[str, typer.Argument(metavar="CODE", help="The code that the bot sent them.")]) -> None:
    """Allow a person to chat with all agents and to answer approval requests.

    A code is valid once, for one hour, and only in a private chat: the bot ignores groups.
    """
    settings = load_settings()
    found = _pairing(settings).pair(code)
    print(f"{_name(found)} (Telegram user {found.user}) can now chat with your agents.", file=sys.stderr)
    if settings.telegram_token is None:
        print("No bot is configured: set ATLAS_TELEGRAM_TOKEN before you run atlas serve.", file=sys.stderr)


@command(app, "list")
def list_pairs(as_json: JsonFlag = False) -> None:
    """List the paired people."""
    found = _pairing(load_settings()).pairs().values()
    if as_json:
        print_json(list(found))
        return
    rows = [(each.user, _name(each), time.strftime("%Y-%m-%d", time.localtime(each.since))) for each in found]
    empty = "No one is paired. Send the bot a message, then run: atlas telegram pair CODE"
    print_table(("user", "name", "since"), rows, empty)


@command(app)
def unpair(
    user: Annotated[str, typer.Argument(metavar="USER", help="Their number or @name, as `list` shows it.")],
) -> None:
    """Withdraw a person's access; it takes effect at once."""
    found = _pairing(load_settings()).unpair(user)
    print(f"{_name(found)} (Telegram user {found.user}) can no longer chat with your agents.", file=sys.stderr)


def _pairing(settings: "Settings") -> "Pairing":
    from atlas_agents.channels.telegram.state import Pairing
    from atlas_agents.config.open import open_home

    return Pairing(open_home(settings))


def _name(pair: "PairedUser") -> str:
    return f"{pair.name} @{pair.username}" if pair.username else pair.name or "unknown"
