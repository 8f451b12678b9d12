"""`atlas telegram …`: who may talk to agents through the bot, as files in the home folder."""

import sys
import time

from atlas_agents.channels.telegram.state import Pair, Pairing
from atlas_agents.cli import options as given
from atlas_agents.cli import show
from atlas_agents.cli.border import guarded, quiet
from atlas_agents.config.open import open_home


def pair(code: str) -> int:
    """A channel that runs sees it within a second."""

    def work() -> None:
        settings = given.settings()
        found = Pairing(open_home(settings)).pair(code)
        print(f"{_name(found)} (Telegram user {found.user}) can talk to your agents now.", file=sys.stderr)
        if settings.telegram_token is None:
            print("No bot is set up: set ATLAS_TELEGRAM_TOKEN before atlas serve.", file=sys.stderr)

    quiet()
    return guarded(work)


def list_pairs(*, as_json: bool) -> int:
    def work() -> None:
        found = Pairing(open_home(given.settings())).pairs().values()
        if as_json:
            show.as_json(list(found))
            return
        rows = [(each.user, _name(each), time.strftime("%Y-%m-%d", time.localtime(each.since))) for each in found]
        show.table(("user", "name", "since"), rows, "Nobody is paired: write to the bot, and say atlas telegram pair.")

    quiet()
    return guarded(work)


def unpair(who: str) -> int:
    def work() -> None:
        found = Pairing(open_home(given.settings())).unpair(who)
        print(f"{_name(found)} (Telegram user {found.user}) cannot talk to your agents any more.", file=sys.stderr)

    quiet()
    return guarded(work)


def _name(pair: Pair) -> str:
    return f"{pair.name} @{pair.username}" if pair.username else pair.name or "somebody"
