"""What a turn is to be, out of what a caller hands in or a row has kept."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import cast

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.events import Event
from atlas_agents.core.messages import Message, user
from atlas_agents.core.store import RunRow
from atlas_agents.engine.direct import direct
from atlas_agents.engine.lineup import Lineup
from atlas_agents.engine.loop import chained, rounds, shaped
from atlas_agents.engine.plan import planned
from atlas_agents.engine.run import Run, Terms, Wishes
from atlas_agents.engine.settings import Mode
from atlas_agents.tools.errand import Errand


def mode_of(run: Run) -> Callable[[Run], Awaitable[Message]]:
    """How this turn is taken, as one coroutine."""
    if run.terms.call is not None:
        return direct
    mode = planned if run.settings.mode == "plan" else rounds
    if run.terms.team.then:
        mode = partial(chained, mode=mode)
    return partial(shaped, mode=mode) if run.output else mode


def terms_of(errand: Errand, row: RunRow) -> Terms:
    """The terms of a run that was accepted before, as its row has kept them."""
    team = msgspec.json.decode(errand.team, type=Lineup)
    mode, call = cast(Mode | None, errand.mode or None), errand.call or None
    wishes = msgspec.json.decode(errand.wishes, type=Wishes | None)
    return Terms(
        model=errand.model,
        mode=mode,
        team=team,
        row=row,
        asks=errand.asks,
        chain=errand.chain,
        call=call,
        wishes=wishes,
    )


def nobody_hears(event: Event) -> None:
    """Only the answer is waited for."""


def as_message(message: str | Message) -> Message:
    """A text is what the user says."""
    if isinstance(message, Message):
        return message
    if not isinstance(cast(object, message), str):
        raise ConfigError(f"a message is a text or a Message, not {message!r}")
    return user(message)


def split(messages: str | Message | Sequence[Message]) -> tuple[Sequence[Message], Message | None]:
    """(what was said before, the new message); with nothing new from the user the model just goes on."""
    if isinstance(messages, str | Message):
        return (), as_message(messages)
    if not messages:
        raise ConfigError("run needs at least one message")
    return (messages[:-1], messages[-1]) if messages[-1].role == "user" else (messages, None)
