"""Tenants: users, plans and their usage, and the services that team tools use."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock, utc_day
from atlas_agents.core.errors import ConfigError, LimitExceeded, QuotaExceeded
from atlas_agents.core.json import encode
from atlas_agents.core.store import Chain, DropRecord, PutRecord, RecordKind, RecountBudget, Store

UserStatus: TypeAlias = Literal["active", "invited", "suspended"]
T = TypeVar("T", bound=msgspec.Struct)
_PLAN_TTL = 5.0
_STORAGE_TTL = 60.0
"""Cache lifetime in seconds of a plan and of the storage total."""


class Plan(msgspec.Struct, frozen=True):
    """A tenant's limits: tokens per month, agents, bytes and users. None means no limit.

    Attributes:
        name: Name of the plan.
        tokens: Maximum number of tokens per month.
        agents: Maximum number of agents.
        storage: Maximum storage in bytes.
        seats: Maximum number of users.
    """

    name: str
    tokens: int | None = None
    agents: int | None = None
    storage: int | None = None
    seats: int | None = None


class User(msgspec.Struct, frozen=True):
    """A user of a tenant. A suspended user's tokens are rejected.

    Attributes:
        name: Unique name.
        role: Role of the user in the tenant.
        status: `active`, `invited` or `suspended`.
        created_at: When the user was added, in milliseconds since 1970.
    """

    name: str
    role: str = "member"
    status: UserStatus = "active"
    created_at: int = 0


class Tenant(msgspec.Struct, frozen=True):
    """A tenant's own settings."""

    name: str
    plan: str = "unlimited"
    created_at: int = 0


class PlanUsage(msgspec.Struct, frozen=True):
    """A tenant's usage against its plan: tokens this month, bytes and users."""

    tokens: int
    storage: int
    seats: int


UNLIMITED = Plan("unlimited")
OWNER = User("owner", "owner")
"""Name of the owner, who holds the main token of the gateway. The owner is always a user and takes a seat."""


def check_plan_name(name: str) -> None:
    """Raise ConfigError if a plan cannot have this name."""
    if name == UNLIMITED.name:
        raise ConfigError("the name 'unlimited' is reserved for the plan without limits; choose another name")


def check_not_owner(name: str) -> None:
    """Raise ConfigError for the user that cannot be edited."""
    if name == OWNER.name:
        raise ConfigError("the owner cannot be changed or removed: the main token of the gateway is theirs")


class Tenancy:
    """One tenant's users and plan, kept in the store: `atlas.tenancy`."""

    def __init__(self, store: Store, tenant: str, clock: Clock) -> None:
        self._store = store
        self.tenant = tenant
        self._clock = clock
        self._plan: tuple[float, Plan] | None = None
        self._storage_total: tuple[float, int] | None = None

    async def users(self) -> list[User]:
        """Return the users by name, among them always the owner."""
        stored = {each.name: each for each in await self._read_records("user", User)}
        return sorted({**stored, OWNER.name: OWNER}.values(), key=lambda user: user.name)

    async def put_user(self, user: User) -> User:
        """Add or change a user. Raises QuotaExceeded if all seats are taken, ConfigError for the owner."""
        existing = await self.check_seat(user.name)
        created = existing[user.name].created_at if user.name in existing else int(self._clock.time() * 1000)
        updated = msgspec.structs.replace(user, created_at=created)
        await self._store.commit(self.tenant, [PutRecord("user", updated.name, encode(updated))])
        return updated

    async def check_seat(self, name: str) -> dict[str, User]:
        """Return the users by name. Raises QuotaExceeded if a new user has no seat, ConfigError for the owner."""
        check_not_owner(name)
        existing = {each.name: each for each in await self.users()}
        plan = await self.plan()
        if name not in existing and plan.seats is not None and len(existing) >= plan.seats:
            raise QuotaExceeded(
                f"no seat is left in the plan {plan.name}, which has {plan.seats}; remove a user or choose another plan"
            )
        return existing

    async def remove_user(self, name: str) -> None:
        """Remove a user; their stored sessions stay. Raises ConfigError for the owner."""
        check_not_owner(name)
        await self._store.commit(self.tenant, [DropRecord("user", name)])

    async def plans(self) -> list[Plan]:
        """Return all plans the tenant can choose from."""
        return [UNLIMITED, *(await self._read_records("plan", Plan))]

    async def put_plan(self, plan: Plan) -> Plan:
        """Create or replace a plan."""
        check_plan_name(plan.name)
        recount = RecountBudget(self._month)
        await self._store.commit(self.tenant, [PutRecord("plan", plan.name, encode(plan)), recount])
        self._plan = None
        return plan

    async def use_plan(self, name: str) -> Tenant:
        """Switch to this plan. Raises ConfigError if it does not exist."""
        existing = [plan.name for plan in await self.plans()]
        if name not in existing:
            raise ConfigError(f"unknown plan {name!r}; known plans: {', '.join(existing)}")
        updated = msgspec.structs.replace(await self.about(), plan=name)
        recount = RecountBudget(self._month)
        await self._store.commit(self.tenant, [PutRecord("tenant", "", encode(updated)), recount])
        self._plan = None
        return updated

    async def about(self) -> Tenant:
        """Return the tenant's own settings."""
        found = await self._store.record(self.tenant, "tenant", "")
        return msgspec.json.decode(found.body, type=Tenant) if found else Tenant(self.tenant)

    async def plan(self) -> Plan:
        """Return the current plan."""
        now = self._clock.monotonic()
        if self._plan is None or now - self._plan[0] > _PLAN_TTL:
            plan_name = (await self.about()).plan
            found = await self._store.record(self.tenant, "plan", plan_name) if plan_name != UNLIMITED.name else None
            self._plan = now, msgspec.json.decode(found.body, type=Plan) if found else UNLIMITED
        return self._plan[1]

    async def used(self) -> PlanUsage:
        """Return the usage of the plan: tokens of this month, bytes and users."""
        month = self._month
        summed = await self._store.tokens(self.tenant, f"{month}-01", f"{month}-99")
        tokens = max(summed, await self._counted_tokens() or 0)
        return PlanUsage(tokens, await self._stored_bytes(), len(await self.users()))

    async def admit(self, agent_id: str, agents: Sequence[str]) -> None:
        """Internal: check that this agent may take another turn. Raises QuotaExceeded if the plan does not allow it."""
        plan = await self.plan()
        if plan.agents is not None and agent_id in agents[plan.agents :]:
            raise QuotaExceeded(f"the plan {plan.name} allows {plan.agents} agents, and {agent_id} is not one of them")
        if plan.storage is not None and await self._stored_bytes() >= plan.storage:
            raise QuotaExceeded(
                f"the storage quota of {plan.storage:,} bytes of the plan {plan.name} is used up; delete unneeded data"
            )
        await self.check_tokens()

    async def check_tokens(self) -> None:
        """Internal: check the token quota before a turn. Raises QuotaExceeded if this month's tokens are used up."""
        plan = await self.plan()
        if plan.tokens is None:
            return
        used = await self._counted_tokens()
        used = (await self.used()).tokens if used is None else used
        if used >= plan.tokens:
            raise QuotaExceeded(
                f"the monthly quota of {plan.tokens:,} tokens of the plan {plan.name} is used up ({used:,} used)"
            )

    @property
    def _month(self) -> str:
        return utc_day(self._clock.time())[:7]

    async def _counted_tokens(self) -> int | None:
        """Return the tokens that were counted against this month's quota; None if none were."""
        rows = await self._store.budget_rows(self.tenant, "tenant", self._month)
        return next((row.tokens for row in rows if not row.run_id), None)

    async def _stored_bytes(self) -> int:
        now = self._clock.monotonic()
        if self._storage_total is None or now - self._storage_total[0] > _STORAGE_TTL:
            self._storage_total = now, await self._store.storage_bytes(self.tenant)
        return self._storage_total[1]

    async def _read_records(self, kind: RecordKind, type: type[T]) -> list[T]:
        found: list[Any] = [
            msgspec.json.decode(row.body, type=type) for row in await self._store.records(self.tenant, kind)
        ]
        return found


class Delegation(msgspec.Struct, frozen=True):
    """Delegation limits.

    Args:
        depth: How many agents in a row may delegate to another one.
        jobs: Maximum number of jobs that follow from one message of a user.
        at_once: Maximum number of concurrent jobs.
        retry_delays: Seconds to wait before each retry of a job.
    """

    depth: int = 3
    jobs: int = 50
    at_once: int = 8
    retry_delays: tuple[float, ...] = (5.0, 30.0, 120.0, 600.0)

    def __post_init__(self) -> None:
        for name in ("depth", "jobs", "at_once"):
            if getattr(self, name) < 1:
                raise ConfigError(f"invalid Delegation({name}={getattr(self, name)}): must be at least 1")
        if not self.retry_delays or min(self.retry_delays) < 0:
            raise ConfigError("invalid Delegation(retry_delays=…): expected seconds to wait, none of them negative")

    def check_depth(self, chain: Chain) -> None:
        """Internal: raise LimitExceeded if a turn with this chain must not pass its task on to yet another agent."""
        if len(chain.agents) >= self.depth:
            raise LimitExceeded(f"The delegation depth limit of {self.depth} is reached: do the task yourself.")


DEFAULT_DELEGATION = Delegation()


class AgentInfo(msgspec.Struct, frozen=True):
    """Summary of an agent, as other agents see it."""

    id: str
    name: str
    role: str
    description: str


class TeamServices:
    """Services for the team tools: agents, users, store and delegation limits."""

    def __init__(
        self,
        store: Store,
        tenant: str,
        agents: Callable[[], Sequence[AgentInfo]],
        delegation: Delegation | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.store = store
        self.tenancy = Tenancy(store, tenant, clock)
        self.users = self.tenancy.users
        self.delegation = delegation or DEFAULT_DELEGATION
        self.clock = clock
        self.agents = agents
        """Function that returns all agents."""
        self._on_new_work: list[Callable[[], None]] = []

    def on_new_work(self, callback: Callable[[], None]) -> None:
        """Call a function when a tool has added a job."""
        self._on_new_work.append(callback)

    def wake(self) -> None:
        """Announce that there may be a new job."""
        for callback in self._on_new_work:
            callback()
