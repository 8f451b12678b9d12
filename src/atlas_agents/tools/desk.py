"""Where one run's tool calls are handled: the tools it has, whose calls they are, and the rules of the house."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from atlas_agents.core.clock import Clock
from atlas_agents.core.conversation import Conversation
from atlas_agents.core.events import Event, Usage
from atlas_agents.core.jobs import NOBODY, Chain
from atlas_agents.core.messages import ToolCall
from atlas_agents.core.metadata import Metadata
from atlas_agents.core.office import Office
from atlas_agents.tools.approvals import Approvals, Book
from atlas_agents.tools.audit import AuditLog
from atlas_agents.tools.journal import Journal
from atlas_agents.tools.limits import Limiter, Repeats
from atlas_agents.tools.permissions import Actor, Policy, Verdict
from atlas_agents.tools.redact import Redactor
from atlas_agents.tools.tool import Tool
from atlas_agents.tools.workers import Workers


class Governance:
    """What governs every call of a house; shared by all its runs. A policy may be replaced while runs are under way."""

    __slots__ = (
        *("_underway", "approvals", "audit", "clock", "limiter", "office", "policy", "redactor", "retries", "workers"),
    )

    def __init__(
        self,
        *,
        clock: Clock,
        workers: Workers,
        approvals: Approvals,
        limiter: Limiter,
        audit: AuditLog,
        redactor: Redactor,
        policy: Policy | None = None,
        retries: tuple[float, ...] = (1.0, 3.0, 9.0),
        office: Office | None = None,
    ) -> None:
        self.clock = clock
        self.office = office
        self.workers = workers
        self.approvals = approvals
        self.limiter = limiter
        self.audit = audit
        self.redactor = redactor
        self.policy = policy
        self.retries = retries
        self._underway: set[asyncio.Task[None]] = set()

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done to its end, whatever becomes of the turn that it belongs to."""
        task = asyncio.create_task(work)
        self._underway.add(task)
        task.add_done_callback(self._underway.discard)

    async def catch_up(self, limit: float) -> None:
        """Give what was to be kept a while to come to its end."""
        loop = asyncio.get_running_loop()
        if mine := [task for task in self._underway if task.get_loop() is loop]:
            await asyncio.wait(mine, timeout=limit)

    @property
    def version(self) -> str:
        """The policy's version: a yes given under one does not hold under another."""
        return self.policy.version if self.policy else ""

    def verdict(self, tool: Tool, actor: Actor) -> Verdict:
        """May this actor call this tool? Without a policy, handing a tool to an agent is the grant, unless the tool
        names what it needs."""
        if self.policy is not None:
            return self.policy.verdict(tool.name, actor, needs=tool.permissions, acts=tool.effect != "pure")
        if tool.permissions:
            return Verdict("no", f"it needs {', '.join(tool.permissions)}, and there is no policy that grants it")
        return _HANDED


_HANDED = Verdict("yes", "it was handed to the agent")


def _uncounted(model: str, usage: Usage) -> Usage:
    """There is no turn to count it to."""
    return usage


class Desk:
    """One run's calls. `conversation` is also the session that limits and approvals count by; where it does not ask, a
    call that needs a yes is refused unless it has one already."""

    __slots__ = (
        "_shown",
        "_shown_under",
        "actor",
        "agent",
        "asks",
        "chain",
        "conversation",
        "count",
        "emit",
        "house",
        "journal",
        "metadata",
        "repeats",
        "run_id",
        "slots",
        "took",
        "tools",
    )

    def __init__(
        self,
        house: Governance,
        *,
        run_id: str,
        agent: Any,
        actor: Actor,
        tools: Mapping[str, Tool],
        conversation: Conversation,
        metadata: Metadata,
        emit: Callable[[Event], None],
        journal: Journal | None = None,
        asks: bool = True,
        chain: Chain = NOBODY,
    ) -> None:
        self.journal = journal
        self.asks = asks
        self.chain = chain
        self.house = house
        self.run_id = run_id
        self.agent = agent
        self.actor = actor
        self.tools = tools
        self.conversation = conversation
        self.metadata = metadata
        self.emit = emit
        self.count: Callable[[str, Usage], Usage] = _uncounted
        """Counts what a model took that a tool had speak to the turn, and says what it cost."""
        self.repeats: Repeats | None = house.limiter.repeats()
        self.slots = house.limiter.slots(conversation.id)
        self.took: dict[str, int] = {}
        """How many milliseconds each call took, by its id."""
        self._shown: list[Tool] | None = None
        self._shown_under: Policy | None = None

    @property
    def book(self) -> Book | None:
        """Where this run's questions are kept, if they are."""
        return self.journal.questions if self.journal is not None else None

    def take_over(self, agent: Any, actor: Actor, tools: Mapping[str, Tool]) -> None:
        """Another agent goes on with the run: from here on it is its calls, under its role."""
        self.agent, self.actor, self.tools = agent, actor, tools
        self._shown = None

    def shown(self) -> list[Tool]:
        """The tools that this agent may call; a model is not shown the others. Judged once per policy."""
        policy = self.house.policy
        if self._shown is None or self._shown_under is not policy:
            tools = self.tools.values()
            self._shown = [tool for tool in tools if self.house.verdict(tool, self.actor).cell != "no"]
            self._shown_under = policy
        return self._shown

    def shown_name(self, call: ToolCall) -> str:
        """The tool's own name for the name that the model used."""
        tool = self.tools.get(call.name)
        return tool.name if tool else call.name


class Cleared(msgspec.Struct, frozen=True):
    """A call that may act, with the arguments it may act on and, where a person said yes, what the yes is bound to;
    `ruled` if nobody was asked because a command rule spared the question."""

    call: ToolCall
    tool: Tool
    values: dict[str, Any]
    verdict: Verdict
    edited: bool = False
    bound: str = ""
    approved_by: str = ""
    ruled: bool = False
