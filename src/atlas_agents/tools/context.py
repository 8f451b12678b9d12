"""Tool context: information and services for one call, and the metadata of its session.

Annotate a parameter with `ToolContext` to receive it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, cast

from atlas_agents.core.approvals import Filled, Form
from atlas_agents.core.errors import BadTool, ConfigError, ToolFailed
from atlas_agents.core.events import Usage
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Conversation
from atlas_agents.core.metadata import Metadata
from atlas_agents.core.store import NO_CHAIN, Chain, Write
from atlas_agents.core.tenancy import DEFAULT_DELEGATION, Delegation, TeamServices
from atlas_agents.tools.worker_pool import report


def _ignore_progress(message: str) -> None:
    """Default of `report`."""


def _reject_note(key: str, value: Any) -> None:
    raise BadTool(f"cannot add note {key!r} from a worker process: make the tool async, or set in_process=True")


def _reject_source(source: str) -> None:
    raise BadTool("cannot mark a result as untrusted from a worker process: make the tool async, or set untrusted=…")


def _ignore_usage(usage: Usage) -> None:
    """Do nothing: the call belongs to no turn."""


async def _reject_usage(model: str, usage: Usage) -> None:
    raise BadTool("cannot record token usage from a worker process: make the tool async")


async def _reject_reservation(tokens: int) -> None:
    raise BadTool("cannot reserve tokens from a worker process: make the tool async")


async def _reject_form(form: Form) -> Filled:
    raise BadTool("cannot show a form from a worker process: make the tool async")


_DELETED = object()
SHARED_STATE = "shared_state"
"""Key in the metadata of a session of the state that it shares with its frontend."""
MAX_SHARED_STATE = 64 * 1024
"""Bytes of the shared state, as compact JSON: a frontend sends it back with each run."""


class SessionMetadata(Metadata):
    """The metadata of a session during a turn: its own values, then those of the agent.

    Values set here belong to the session alone. `values` is the dict of the conversation, which is changed in place.
    `turn` are values of this turn only; they come first. With `stored`, a value must be JSON, because it is stored with
    the session.
    """

    __slots__ = ("_changed", "_stored", "_turn")

    def __init__(
        self, agent: Metadata, values: dict[str, Any], *, stored: bool, turn: Mapping[str, Any] | None = None
    ) -> None:
        self._brokers = (agent,)
        self._values = values
        self._subscriptions = []
        self._turn = Metadata(values=turn) if turn else None
        self._stored = stored
        self._changed: set[str] = set()

    def set(self, key: str, value: Any) -> "Metadata":
        if self._stored:
            try:
                size = len(encode(value))
            except (TypeError, ValueError, RecursionError) as error:
                raise ConfigError(
                    f"metadata {key!r} cannot be stored with the session: {error}; "
                    "set a JSON value, or pass objects with deps=…"
                ) from error
            if key == SHARED_STATE and size > MAX_SHARED_STATE:
                raise ConfigError(
                    f"metadata {key!r} is {size:,} bytes long; the maximum is {MAX_SHARED_STATE:,}; "
                    "share less with the frontend, and set the rest under other keys"
                )
        if self._turn is not None:
            self._turn.delete(key)
        super().set(key, value)
        self._changed.add(key)  # last: a tool in a thread may set values while `take_changes` runs
        return self

    def delete(self, key: str) -> "Metadata":
        if self._turn is not None:
            self._turn.delete(key)
        super().delete(key)
        self._changed.add(key)
        return self

    def all(self) -> dict[str, Any]:
        return super().all() | (self._turn.all() if self._turn is not None else {})

    def switch_agent(self, agent: Metadata) -> None:
        """Inherit from another agent, which continues the turn."""
        values = self._values
        self.rebase(agent, values=values)
        self._values = values

    def take_changes(self) -> tuple[dict[str, Any], tuple[str, ...]] | None:
        """Return the values that were set and the keys that were deleted since the last call; None if none were."""
        changed: set[str] = set()
        while self._changed:
            changed.add(self._changed.pop())
        if not changed:
            return None
        found = {key: self._values.get(key, _DELETED) for key in sorted(changed)}  # a thread may delete them meanwhile
        values = {key: value for key, value in found.items() if value is not _DELETED}
        return values, tuple(sorted(changed - values.keys()))

    def drop_turn_value(self, key: str) -> None:
        """Show the session's value instead of the turn's, because an earlier process set it in this turn."""
        if self._turn is not None:
            self._turn.delete(key)

    def _find_holder(self, key: str) -> Metadata | None:
        return self._turn if self._turn is not None and self._turn.has(key) else super()._find_holder(key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _ReadOnlyMetadata.copy, (self.all(),)

    def restore(self, values: Mapping[str, Any]) -> None:
        """Replace the session's values by those of a record, without marking them as changed."""
        self._values.clear()
        self._values.update(values)

    def put_back(self, changes: tuple[dict[str, Any], tuple[str, ...]]) -> None:
        """Return changes that could not be stored."""
        self._changed.update(changes[0], changes[1])


class _ReadOnlyMetadata(Metadata):
    """The metadata of a session in a worker process: changes there would be lost."""

    __slots__ = ()

    @classmethod
    def copy(cls, values: dict[str, Any]) -> "_ReadOnlyMetadata":
        return cls(values=values)

    def set(self, key: str, value: Any) -> Metadata:
        raise BadTool(f"cannot set metadata {key!r} from a worker process: make the tool async, or set in_process=True")

    def delete(self, key: str) -> Metadata:
        raise BadTool(
            f"cannot delete metadata {key!r} in a worker process: make the tool async, or set in_process=True"
        )


class _InWorker:
    """Placeholder for `deps` in a worker process."""


if TYPE_CHECKING:  # the default needs Python 3.13 or typing_extensions
    from typing_extensions import TypeVar

    Deps = TypeVar("Deps", default=Any)
else:
    from typing import TypeVar

    Deps = TypeVar("Deps")
_COPIED = (
    *("conversation", "run_id", "call_id", "tenant_id", "metadata", "user", "approved", "chain"),
    *("traceparent", "tracestate", "untrusted"),
)


class ToolContext(Generic[Deps]):
    """The call that a tool executes: its conversation, agent, run, tenant and user.

    `ToolContext[Deps]` sets the type of `deps`, the value that the caller passed as `deps=…`. Values set in `metadata`
    belong to the session. `idempotency_key` is the same for every try of this call. `chain` lists the delegations that
    led to this turn. `approved` is True if a person approved the call. `team_services` is None without a store.
    `untrusted` lists the sources of untrusted content in the session.

    Args:
        conversation: The conversation of the turn.
        agent: The agent that made the call.
        run_id: Id of the turn.
        call_id: Id of the call.
        tenant_id: Tenant of the session.
        metadata: Metadata of the session.
        report: Function that receives progress.
        user: The user for whom the turn runs; empty if none was named.
        approved: Whether a person approved the call.
        untrusted: Sources of untrusted content in the session.
        note: Function that adds a value to the audit row.
        mark: Function that receives a source of untrusted content.
        ask: Function that asks a person to fill in a form.
        spend: Function that counts the usage of a model.
        count: Function that counts the usage of another turn.
        reserve: Function that reserves tokens of the budget.
        chain: Delegations that led to this turn.
        delegation: Limits of delegation between agents.
        traceparent: Trace context of the call (W3C), to pass on to other services; empty outside of a trace.
        tracestate: W3C tracestate that belongs to `traceparent`, to pass on with it.
        team_services: Users and jobs; None without a store.
        writes: Where rows are collected that are stored together with the result.
        deps: The value that the caller passed as `deps=…`.
    """

    __slots__ = (
        *(
            "_ask",
            "_count",
            "_deps",
            "_in_thread",
            "_mark",
            "_note",
            "_report",
            "_reserve",
            "_spend",
            "_writes",
            "agent",
            "approved",
            "call_id",
        ),
        *("chain", "conversation", "delegation", "idempotency_key", "metadata", "team_services", "run_id", "tenant_id"),
        *("traceparent", "tracestate", "untrusted", "user"),
    )

    def __init__(
        self,
        *,
        conversation: Conversation,
        agent: Any,
        run_id: str,
        call_id: str,
        tenant_id: str,
        metadata: Metadata,
        report: Callable[[str], object] = _ignore_progress,
        user: str = "",
        approved: bool = False,
        untrusted: tuple[str, ...] = (),
        note: Callable[[str, Any], object] = _reject_note,
        mark: Callable[[str], object] = _reject_source,
        ask: Callable[[Form], Awaitable[Filled]] = _reject_form,
        spend: Callable[[str, Usage], Awaitable[None]] = _reject_usage,
        count: Callable[[Usage], object] = _ignore_usage,
        reserve: Callable[[int], Awaitable[None]] = _reject_reservation,
        chain: Chain = NO_CHAIN,
        delegation: Delegation = DEFAULT_DELEGATION,
        traceparent: str = "",
        tracestate: str = "",
        team_services: TeamServices | None = None,
        writes: list[Write] | None = None,
        deps: Any = _InWorker,
    ) -> None:
        self._deps = deps
        self.conversation = conversation
        self.agent = agent
        self.run_id = run_id
        self.call_id = call_id
        self.tenant_id = tenant_id
        self.metadata = metadata
        self.approved = approved
        self.untrusted = untrusted
        self.idempotency_key = f"{run_id}:{call_id}"
        self.user = user
        self.chain = chain
        self.delegation = delegation
        self.traceparent = traceparent
        self.tracestate = tracestate
        self.team_services = team_services
        self._report = report
        self._in_thread = False
        self._note = note
        self._mark = mark
        self._ask = ask
        self._spend = spend
        self._count = count
        self._reserve = reserve
        self._writes = writes

    @property
    def deps(self) -> Deps:
        """The value that the caller of the turn passed as `deps=…`, or None. Not available in a worker process."""
        if self._deps is _InWorker:
            raise BadTool("deps are not available in a worker process: make the tool async, or set in_process=True")
        return cast(Deps, self._deps)

    def enter_thread(self) -> None:
        """Internal: have `progress` called from another thread than that of the event loop."""
        if not self._in_thread:
            self._in_thread = True
            self._report = partial(asyncio.get_running_loop().call_soon_threadsafe, self._report)

    def progress(self, message: str) -> None:
        """Report progress to the subscribers of the turn."""
        self._report(str(message))

    def note(self, key: str, value: Any) -> None:
        """Add a note to the call's audit row, under `notes`. Secrets in it are redacted."""
        self._note(str(key), value)

    def mark_untrusted(self, source: str) -> None:
        """Mark the result as content that someone else wrote, with its source, such as `mail: ana@example.org`."""
        self._mark(str(source))

    async def ask(self, form: Form) -> Filled:
        """Ask the user to fill in a form; the timeout of the call is paused meanwhile.

        The action is "cancel" if no one can be asked or no one answers in time.
        """
        return await self._ask(form)

    async def check_budget(self, tokens: int = 1) -> None:
        """Reserve tokens for a call of a model; `spend` settles them. Raises QuotaExceeded if too few are left."""
        await self._reserve(tokens)

    async def spend(self, model: str, usage: Usage) -> None:
        """Record the token usage of a model that this call used, for the turn, the session and the tenant."""
        await self._spend(model, usage)

    def add_turn(self, usage: Usage) -> None:
        """Internal: add the usage of another turn, which this call ran and which recorded it itself, to that of this
        turn.
        """
        self._count(usage)

    def add_write(self, write: Write) -> None:
        """Internal: commit this write in the same transaction as the outcome, if the call succeeds."""
        if self._writes is None:
            raise ToolFailed("this tool requires a store and a named session")
        self._writes.append(write)

    def discard_writes(self) -> None:
        """Internal: discard the writes of an earlier try."""
        if self._writes:
            self._writes.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Send a copy to a worker process; progress reported there still arrives."""
        agent = None if self.agent is None else self.agent.worker_copy()
        values = {name: getattr(self, name) for name in _COPIED}
        return partial(ToolContext, report=report, agent=agent, **values), ()
