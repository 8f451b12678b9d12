"""What a tool may know about the call it serves: annotate a parameter with `ToolContext` to be given one."""

from collections.abc import Awaitable, Callable
from typing import Any

from atlas_agents.core.approvals import Filled, Form
from atlas_agents.core.errors import BadTool, ToolFailed
from atlas_agents.core.events import Usage
from atlas_agents.core.messages import Conversation
from atlas_agents.core.metadata import Metadata
from atlas_agents.core.store import NO_CHAIN, Chain, Write
from atlas_agents.core.tenancy import TeamServices
from atlas_agents.tools.worker_pool import report


def _silent(message: str) -> None:
    """Nobody listens."""


def _unheard(key: str, value: Any) -> None:
    """A row is written by the process that runs the turn."""
    raise BadTool(f"a note ({key!r}) can only be made by an async tool, or one that is in_process")


async def _uncounted(model: str, usage: Usage) -> None:
    """Sums are kept by the process that runs the turn."""
    raise BadTool("tokens can only be counted by an async tool")


async def _unasked(form: Form) -> Filled:
    """Nobody can be asked from a worker."""
    raise BadTool("a person can only be asked by an async tool")


class ToolContext:
    """Whose call it is. `idempotency_key` is the same whenever this very call is tried again; `user` is for whom the
    turn is taken, and `chain` who handed it on; `approved` says whether a person was asked about it, and said yes;
    `team_services` is None where nothing is kept."""

    __slots__ = (
        *("_ask", "_note", "_report", "_spend", "_writes", "agent", "approved", "call_id", "chain", "conversation"),
        *("idempotency_key", "metadata", "team_services", "run_id", "tenant_id", "user"),
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
        report: Callable[[str], object] = _silent,
        user: str = "",
        approved: bool = False,
        note: Callable[[str, Any], object] = _unheard,
        ask: Callable[[Form], Awaitable[Filled]] = _unasked,
        spend: Callable[[str, Usage], Awaitable[None]] = _uncounted,
        chain: Chain = NO_CHAIN,
        team_services: TeamServices | None = None,
        writes: list[Write] | None = None,
    ) -> None:
        self.conversation = conversation
        self.agent = agent
        self.run_id = run_id
        self.call_id = call_id
        self.tenant_id = tenant_id
        self.metadata = metadata
        self.approved = approved
        self.idempotency_key = f"{run_id}:{call_id}"
        self.user = user
        self.chain = chain
        self.team_services = team_services
        self._report = report
        self._note = note
        self._ask = ask
        self._spend = spend
        self._writes = writes

    def progress(self, message: str) -> None:
        """Tell whoever listens how far the work is."""
        self._report(str(message))

    def note(self, key: str, value: Any) -> None:
        """Add to the call's row in the audit log, under `notes`: what it ran in, what it asked. It is redacted."""
        self._note(str(key), value)

    async def ask(self, form: Form) -> Filled:
        """Ask whoever the turn is taken for; the tool's time stands still meanwhile. Where nobody can be asked, or
        nobody answers in time, it is a cancel."""
        return await self._ask(form)

    async def check_budget(self) -> None:
        """Before a model is asked: PlanSpent if the tenant's tokens are used up."""
        if self.team_services is not None:
            await self.team_services.tenancy.check_tokens()

    async def spend(self, model: str, usage: Usage) -> None:
        """Count what a model took that this call had speak: to the turn, the session and the tenant."""
        await self._spend(model, usage)

    def also(self, write: Write) -> None:
        """Have this written together with the outcome of the call, if it is a good one: both or none."""
        if self._writes is None:
            raise ToolFailed("nothing is kept here: this needs a store, and a session by name")
        self._writes.append(write)

    def begin_again(self) -> None:
        """Another try: what an earlier one wanted to have written is not."""
        if self._writes:
            self._writes.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """In a worker it is a copy; what it reports from there still arrives."""
        return _in_worker, (
            self.conversation,
            self.agent,
            self.run_id,
            self.call_id,
            self.tenant_id,
            self.metadata,
            self.user,
            self.approved,
            self.chain,
        )


def _in_worker(
    conversation: Conversation,
    agent: Any,
    run_id: str,
    call_id: str,
    tenant_id: str,
    metadata: Metadata,
    user: str,
    approved: bool,
    chain: Chain,
) -> ToolContext:
    return ToolContext(
        conversation=conversation,
        agent=agent,
        run_id=run_id,
        call_id=call_id,
        tenant_id=tenant_id,
        metadata=metadata,
        report=report,
        user=user,
        approved=approved,
        chain=chain,
    )
