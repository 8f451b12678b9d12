"""Parameters and results of `sessions.*`, `approvals.*` and `exec.*`."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from atlas_agents.gateway.protocol import types
from atlas_agents.gateway.protocol.chat import Effort, Key, Page, RunOutcome
from atlas_agents.gateway.protocol.events import ClientCallShape

Label = Annotated[str, Meta(max_length=200)]


class SessionsCreate(types.WireStruct, frozen=True):
    """Create a session, with a new key unless one is given that no session has."""

    agent_id: str | None = None
    label: Label | None = None
    metadata: dict[str, Any] | None = None
    session_key: Key | None = None


class Created(types.WireStruct, frozen=True):
    session_key: str


class SessionsList(types.WireStruct, frozen=True):
    """List sessions, latest change first."""

    limit: Page = 100
    cursor: str | None = None
    archived: bool = False


class SessionPage(types.WireStruct, frozen=True):
    """A page of sessions, and the cursor of the next page."""

    sessions: tuple[types.SessionShape, ...]
    next_cursor: str | None = None


class OneSession(types.WireStruct, frozen=True):
    """Identifies a session."""

    session_key: Key


class SessionResult(types.WireStruct, frozen=True):
    """A session and its last messages."""

    session: types.SessionShape
    messages: tuple[types.MessageShape, ...]


class SessionsUpdate(types.WireStruct, frozen=True):
    """Update a session; omitted fields do not change.

    An empty `model`, `effort` or `folder` removes the choice. `model` and `effort` apply to every turn of the session,
    whichever client sends the message, unless the message names others.
    """

    session_key: Key
    label: Label | None = None
    agent_id: str | None = None
    archived: bool | None = None
    metadata: dict[str, Any] | None = None
    model: Annotated[str, Meta(max_length=200)] | None = None
    effort: Effort | Literal[""] | None = None
    pinned: bool | None = None
    folder: Annotated[str, Meta(max_length=60)] | None = None


class SessionChanged(types.WireStruct, frozen=True):
    session: types.SessionShape


class SessionsFork(types.WireStruct, frozen=True):
    """Copy the messages of a session into a new one, up to and including a message; without one, all.

    `metadata` is added to that of the source.
    """

    session_key: Key
    message_id: str | None = None
    label: Label | None = None
    agent_id: str | None = None
    metadata: dict[str, Any] | None = None


class Branches(types.WireStruct, frozen=True):
    """Sessions with the same `root` in the `branch` of their metadata, and that root."""

    sessions: tuple[types.SessionShape, ...]


class SessionsExport(types.WireStruct, frozen=True):
    """Export a session as text, from the first line or after a given one."""

    session_key: Key
    after: Annotated[int, Meta(ge=0)] = 0


class Exported(types.WireStruct, frozen=True):
    """JSON lines: a header, then one line per message. `next` is the position to continue after, if there is more."""

    lines: tuple[str, ...]
    next: int | None = None


class SessionsImport(types.WireStruct, frozen=True):
    """Import exported lines, under the original key or another one.

    A long text is sent in parts, split anywhere; every part except the last sets `more`.
    """

    text: str
    session_key: Key | None = None
    piece: Annotated[int, Meta(ge=0)] = 0
    more: bool = False


class Imported(types.WireStruct, frozen=True):
    """The key of the session once it is created."""

    session_key: str | None = None


class SessionsSearch(types.WireStruct, frozen=True):
    """Search names and messages for all words of the query, or words that begin with them.

    Each session is returned once, with its latest match.
    """

    query: Annotated[str, Meta(min_length=1, max_length=200)]
    limit: Page = 30


class SessionHit(types.WireStruct, frozen=True):
    """A session with the text around the match. Without a message, the name matches."""

    session: types.SessionShape
    excerpt: str = ""
    message_id: str = ""


class Hits(types.WireStruct, frozen=True):
    """Matches, latest first. `complete` is false if there are more, or if not all sessions are indexed yet."""

    hits: tuple[SessionHit, ...]
    complete: bool = True


class SessionsSubscribe(types.WireStruct, frozen=True):
    """Subscribe to all events of a session; for the given runs, also replay the events after the given number."""

    session_key: Key
    runs: dict[str, Annotated[int, Meta(ge=0)]] | None = None
    after_message_id: str | None = None


class RunPosition(types.WireStruct, frozen=True):
    """The position of a run: missed events follow (`replay`), or `parts` is its output so far (`snapshot`).

    `progress` is the recent output of running calls; `plan` is the current plan. `pendingApprovals` are all that wait,
    oldest first, and `pendingApproval` is the first of them. `pendingCalls` are the calls that wait for the client.
    """

    run_id: str
    mode: str
    seq: int
    parts: tuple[types.Part, ...] | None = None
    pending_approval: types.ApprovalShape | None = None
    progress: dict[str, tuple[str, ...]] = {}
    plan: tuple[types.PlanStepShape, ...] = ()
    pending_approvals: tuple[types.ApprovalShape, ...] = ()
    pending_calls: tuple[ClientCallShape, ...] = ()


class Subscribed(types.WireStruct, frozen=True):
    """The current state of the session; the next frames continue from here.

    `outcomes` lists turns that ended without an answer; `waiting` lists the messages of queued turns.
    """

    session: types.SessionShape
    messages: tuple[types.MessageShape, ...]
    runs: tuple[RunPosition, ...]
    outcomes: tuple[RunOutcome, ...] = ()
    waiting: tuple[types.MessageShape, ...] = ()


class ApprovalsResult(types.WireStruct, frozen=True):
    approvals: tuple[types.ApprovalShape, ...]


class ApprovalsResolve(types.WireStruct, frozen=True):
    """Resolve an approval. `arguments` are edited arguments, or the values for a form.

    Invalid values are refused and the approval stays pending; to dismiss it is to leave it unanswered. With a
    `digest`, it is resolved only if that is the digest of what it shows.
    """

    approval_id: str
    decision: types.Decision
    reason: str = ""
    arguments: dict[str, Any] | None = None
    digest: str | None = None


class SeenApproval(types.WireStruct, frozen=True):
    """An approval that a person saw: its id, and the digest of the content shown."""

    approval_id: str
    digest: str


class ApprovalsResolveMany(types.WireStruct, frozen=True):
    """Allow several approvals once, or deny them. Forms are resolved one by one."""

    approvals: Annotated[tuple[SeenApproval, ...], Meta(min_length=1, max_length=100)]
    decision: Literal["allow-once", "deny"]
    reason: str = ""


class ApprovalOutcome(types.WireStruct, frozen=True):
    """The outcome of one approval. `error` says why it was not resolved, and `kind` is the kind of error."""

    approval_id: str
    ok: bool
    error: str = ""
    kind: str = ""


class ApprovalsResolved(types.WireStruct, frozen=True):
    """One outcome for each approval, in the order of the request."""

    outcomes: tuple[ApprovalOutcome, ...]


class ExecAnswer(types.WireStruct, frozen=True):
    """Identifies an approval; the method's name is the decision."""

    approval_id: str
    reason: str = ""
