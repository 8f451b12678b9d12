"""Params and results of `sessions.*` and of approvals."""

from typing import Annotated, Any

from msgspec import Meta

from atlas_agents.gateway.protocol.chat import Key, Page, RunOutcome
from atlas_agents.gateway.protocol.types import (
    ApprovalShape,
    Decision,
    MessageShape,
    Part,
    PlanStepShape,
    SessionShape,
    WireStruct,
)

Label = Annotated[str, Meta(max_length=200)]


class SessionsCreate(WireStruct, frozen=True):
    """Begin a session under a new name."""

    agent_id: str | None = None
    label: Label | None = None
    metadata: dict[str, Any] | None = None


class Created(WireStruct, frozen=True):
    session_key: str


class SessionsList(WireStruct, frozen=True):
    """Sessions, the latest changed first."""

    limit: Page = 100
    cursor: str | None = None
    archived: bool = False


class SessionPage(WireStruct, frozen=True):
    """Some sessions, and where to go on."""

    sessions: tuple[SessionShape, ...]
    next_cursor: str | None = None


class OneSession(WireStruct, frozen=True):
    """Name a session."""

    session_key: Key


class SessionFound(WireStruct, frozen=True):
    """A session and its last messages."""

    session: SessionShape
    messages: tuple[MessageShape, ...]


class SessionsUpdate(WireStruct, frozen=True):
    """Change a session; what is left out stays."""

    session_key: Key
    label: Label | None = None
    agent_id: str | None = None
    archived: bool | None = None
    metadata: dict[str, Any] | None = None


class SessionChanged(WireStruct, frozen=True):
    session: SessionShape


class SessionsFork(WireStruct, frozen=True):
    """Begin a session with the messages of another, up to and with one of them; without one, all."""

    session_key: Key
    message_id: str | None = None
    label: Label | None = None
    agent_id: str | None = None


class SessionsExport(WireStruct, frozen=True):
    """Ask for a session as text, from its first line on, or after one of them."""

    session_key: Key
    after: Annotated[int, Meta(ge=0)] = 0


class Exported(WireStruct, frozen=True):
    """Lines of JSON: one that says what it is, then a message each; `next` is what to go on after, if there is more."""

    lines: tuple[str, ...]
    next: int | None = None


class SessionsImport(WireStruct, frozen=True):
    """Make a session of exported lines, under its own key or another. A long one comes in pieces, cut anywhere: each
    but the last says that there is `more`."""

    text: str
    session_key: Key | None = None
    piece: Annotated[int, Meta(ge=0)] = 0
    more: bool = False


class Imported(WireStruct, frozen=True):
    """The session's key, once it is there."""

    session_key: str | None = None


class SessionsSearch(WireStruct, frozen=True):
    """Look for words in names and messages; of a session, the latest place counts."""

    query: Annotated[str, Meta(min_length=1, max_length=200)]
    limit: Page = 30


class SessionHit(WireStruct, frozen=True):
    """A session, and the words around the place; without a message, it is the name that fits."""

    session: SessionShape
    excerpt: str = ""
    message_id: str = ""


class Hits(WireStruct, frozen=True):
    """The latest changed first; `complete` is false if there was more to look through than there was time."""

    hits: tuple[SessionHit, ...]
    complete: bool = True


class SessionsSubscribe(WireStruct, frozen=True):
    """Hear all that happens in a session from now on; of the runs named, also what was missed after that number."""

    session_key: Key
    runs: dict[str, Annotated[int, Meta(ge=0)]] | None = None
    after_message_id: str | None = None


class RunPosition(WireStruct, frozen=True):
    """Where a run stands: its missed frames follow (`replay`), or `parts` is all it has said so far (`snapshot`), and
    `progress` the last that its running calls have said; `plan` is how far its plan is."""

    run_id: str
    mode: str
    seq: int
    parts: tuple[Part, ...] | None = None
    pending_approval: ApprovalShape | None = None
    progress: dict[str, tuple[str, ...]] = {}
    plan: tuple[PlanStepShape, ...] = ()


class Subscribed(WireStruct, frozen=True):
    """The session as it is now; the next frames go on from here. `outcomes` are those of turns without an answer,
    `waiting` are messages whose turn has not come."""

    session: SessionShape
    messages: tuple[MessageShape, ...]
    runs: tuple[RunPosition, ...]
    outcomes: tuple[RunOutcome, ...] = ()
    waiting: tuple[MessageShape, ...] = ()


class ApprovalsFound(WireStruct, frozen=True):
    approvals: tuple[ApprovalShape, ...]


class ApprovalsResolve(WireStruct, frozen=True):
    """Answer a question; `arguments` are edited ones to use instead, or the values for a form. Values that do not fit
    are refused, and it waits on; to dismiss it is to leave it unanswered."""

    approval_id: str
    decision: Decision
    reason: str = ""
    arguments: dict[str, Any] | None = None


class ExecAnswer(WireStruct, frozen=True):
    """Answer a question with the method's own word."""

    approval_id: str
    reason: str = ""
