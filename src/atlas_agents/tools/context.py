"""What a tool may know about the call it serves: annotate a parameter with `ToolContext` to be given one."""

from collections.abc import Callable
from typing import Any

from atlas_agents.core.conversation import Conversation
from atlas_agents.core.errors import BadTool
from atlas_agents.core.metadata import Metadata
from atlas_agents.tools.workers import report


def _silent(message: str) -> None:
    """Nobody listens."""


def _unheard(key: str, value: Any) -> None:
    """A row is written by the process that runs the turn."""
    raise BadTool(f"a note ({key!r}) can only be made by an async tool, or one that is in_process")


class ToolContext:
    """Whose call it is. `idempotency_key` is the same whenever this very call is tried again; `user` is for whom the
    turn is taken; `approved` says whether a person was asked about it, and said yes."""

    __slots__ = (
        *("_note", "_report", "agent", "approved", "call_id", "conversation", "idempotency_key", "metadata", "run_id"),
        *("tenant_id", "user"),
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
        self._report = report
        self._note = note

    def progress(self, message: str) -> None:
        """Tell whoever listens how far the work is."""
        self._report(str(message))

    def note(self, key: str, value: Any) -> None:
        """Add to the call's row in the audit log, under `notes`: what it ran in, what it asked. It is redacted."""
        self._note(str(key), value)

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
    )
