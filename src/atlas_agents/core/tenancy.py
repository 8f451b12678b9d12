"""Who belongs to a tenant, which plan it has, and how much of that is used."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock, day_of
from atlas_agents.core.errors import ConfigError, QuotaExceeded
from atlas_agents.core.json import encode
from atlas_agents.core.store import DropRecord, PutRecord, RecordKind, Store

UserStatus: TypeAlias = Literal["active", "invited", "suspended"]
T = TypeVar("T", bound=msgspec.Struct)
_FRESH = 5.0
_FRESH_SUM = 60.0
"""Seconds for which a plan, and the sum of what is stored, are taken for true without looking again."""


class Plan(msgspec.Struct, frozen=True):
    """What a tenant may use: tokens in a month, agents, bytes, users. None is no limit."""

    name: str
    tokens: int | None = None
    agents: int | None = None
    storage: int | None = None
    seats: int | None = None


class User(msgspec.Struct, frozen=True):
    """Somebody who belongs to a tenant. Keys of a user who is suspended open nothing."""

    name: str
    role: str = "member"
    status: UserStatus = "active"
    created_at: int = 0


class Tenant(msgspec.Struct, frozen=True):
    """What a tenant says of itself."""

    name: str
    plan: str = "unlimited"
    created_at: int = 0


class Used(msgspec.Struct, frozen=True):
    """How much of its plan a tenant uses: tokens of this month, bytes, users."""

    tokens: int
    storage: int
    seats: int


UNLIMITED = Plan("unlimited")
OWNER = User("owner", "owner")
"""Where nobody was named there is one user, and no limit."""


class Tenancy:
    """One tenant's users and plan, in its store."""

    def __init__(self, store: Store, tenant: str, clock: Clock) -> None:
        self._store = store
        self.tenant = tenant
        self._clock = clock
        self._plan: tuple[float, Plan] | None = None
        self._stored: tuple[float, int] | None = None

    async def users(self) -> list[User]:
        """By name; at least the owner."""
        return await self._all("user", User) or [OWNER]

    async def put_user(self, user: User) -> User:
        """Add somebody, or change them. PlanSpent if all seats are taken."""
        known = {each.name: each for each in await self._all("user", User)}
        plan = await self.plan()
        if user.name not in known and plan.seats is not None and len(known) >= plan.seats:
            raise QuotaExceeded(f"the plan {plan.name} has {plan.seats} seats, and all are taken")
        created = known[user.name].created_at if user.name in known else int(self._clock.time() * 1000)
        kept = msgspec.structs.replace(user, created_at=created)
        await self._store.commit(self.tenant, [PutRecord("user", kept.name, encode(kept))])
        return kept

    async def remove_user(self, name: str) -> None:
        await self._store.commit(self.tenant, [DropRecord("user", name)])

    async def plans(self) -> list[Plan]:
        """All that the tenant could have."""
        return [UNLIMITED, *(await self._all("plan", Plan))]

    async def put_plan(self, plan: Plan) -> Plan:
        if plan.name == UNLIMITED.name:
            raise ConfigError("the plan unlimited has no limits: give yours another name")
        await self._store.commit(self.tenant, [PutRecord("plan", plan.name, encode(plan))])
        self._plan = None
        return plan

    async def use_plan(self, name: str) -> Tenant:
        """Have this plan from now on. ConfigError if there is no such one."""
        known = [plan.name for plan in await self.plans()]
        if name not in known:
            raise ConfigError(f"there is no plan {name!r}; there are: {', '.join(known)}")
        kept = msgspec.structs.replace(await self.about(), plan=name)
        await self._store.commit(self.tenant, [PutRecord("tenant", "", encode(kept))])
        self._plan = None
        return kept

    async def about(self) -> Tenant:
        found = await self._store.record(self.tenant, "tenant", "")
        return msgspec.json.decode(found.body, type=Tenant) if found else Tenant(self.tenant)

    async def plan(self) -> Plan:
        """The plan that it has."""
        now = self._clock.monotonic()
        if self._plan is None or now - self._plan[0] > _FRESH:
            named = (await self.about()).plan
            found = await self._store.record(self.tenant, "plan", named) if named != UNLIMITED.name else None
            self._plan = now, msgspec.json.decode(found.body, type=Plan) if found else UNLIMITED
        return self._plan[1]

    async def used(self) -> Used:
        tokens, storage = await self._tokens(), await self._store.stored(self.tenant)
        return Used(tokens, storage, len(await self.users()))

    async def admit(self, agent_id: str, agents: Sequence[str]) -> None:
        """May this agent take another turn? PlanSpent if the plan does not allow it."""
        plan = await self.plan()
        if plan.agents is not None and agent_id in agents[plan.agents :]:
            raise QuotaExceeded(
                f"the plan {plan.name} has room for {plan.agents} agents, and {agent_id} is not among them"
            )
        if plan.storage is not None and await self._bytes() >= plan.storage:
            raise QuotaExceeded(
                f"the {plan.storage:,} bytes of the plan {plan.name} are full: remove what is not needed"
            )
        await self.check_tokens()

    async def check_tokens(self) -> None:
        """Before a model is asked: PlanSpent if the month's tokens are used up."""
        plan = await self.plan()
        if plan.tokens is not None and (used := await self._tokens()) >= plan.tokens:
            raise QuotaExceeded(
                f"the {plan.tokens:,} tokens of the plan {plan.name} are used up for this month ({used:,})"
            )

    async def _tokens(self) -> int:
        month = day_of(self._clock.time())[:8]
        return await self._store.tokens(self.tenant, f"{month}01", f"{month}99")

    async def _bytes(self) -> int:
        now = self._clock.monotonic()
        if self._stored is None or now - self._stored[0] > _FRESH_SUM:
            self._stored = now, await self._store.stored(self.tenant)
        return self._stored[1]

    async def _all(self, kind: RecordKind, type: type[T]) -> list[T]:
        found: list[Any] = [
            msgspec.json.decode(row.body, type=type) for row in await self._store.records(self.tenant, kind)
        ]
        return found


class Delegation(msgspec.Struct, frozen=True):
    """How far work may be handed on: so many agents deep, so many jobs that follow from one message of a user, so many
    that are worked on at once. `pauses` are the seconds before a job is tried again."""

    depth: int = 3
    jobs: int = 50
    at_once: int = 8
    pauses: tuple[float, ...] = (5.0, 30.0, 120.0, 600.0)

    def __post_init__(self) -> None:
        for name in ("depth", "jobs", "at_once"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Delegation({name}=…) must be at least 1, not {getattr(self, name)}")
        if not self.pauses or min(self.pauses) < 0:
            raise ConfigError("Delegation(pauses=…) needs seconds to wait, none of them negative")


class AgentInfo(msgspec.Struct, frozen=True):
    """An agent, as the others know it."""

    id: str
    name: str
    role: str
    description: str


class TeamServices:
    """One per house that keeps things."""

    def __init__(
        self, store: Store, tenant: str, delegation: Delegation | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.store = store
        self.tenancy = Tenancy(store, tenant, clock)
        self.users = self.tenancy.users
        self.delegation = delegation or Delegation()
        self.clock = clock
        self.agents: Callable[[], Sequence[AgentInfo]] = tuple
        """All that there are now."""
        self.wake: Callable[[], None] = _nobody
        """Called when there may be something to do."""


def _nobody() -> None:
    """Nobody works on jobs here."""
