"""Budgets: limits on tokens, model requests, tool calls, dollars and seconds of a turn, session, agent, user or tenant.

Each step reserves its maximum before it starts and settles its real usage afterwards, in one place that all turns
share: a store, or memory. Reservations count as used, so concurrent turns together stay within a limit.
"""

import asyncio
import math
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast, get_args

import msgspec

from atlas_agents.core import store
from atlas_agents.core.aio import Alarm, Clock, finish_despite_cancel, notify, utc_day
from atlas_agents.core.errors import BudgetExceeded, BudgetUnavailable, ConfigError
from atlas_agents.core.events import Usage
from atlas_agents.core.store import MEASURES, NOTHING, Amounts, BudgetLimit

Scope: TypeAlias = Literal["turn", "session", "agent", "user", "tenant"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
Per: TypeAlias = Literal["day", "month"]
TENANT = "tenant"
"""Key of the tenant's budget. It includes usage from before the tenant had a limit."""
_PART = re.compile(r"([a-z_]+)=([0-9][0-9_]*(?:\.[0-9]+)?|[a-z]+)")
_FACTORS = (1, 1, 1, 100_000_000, 1000)
"""Units of `Amounts` per unit of a limit: microcents per dollar, milliseconds per second."""
_MICROCENTS = _FACTORS[3]
DEFAULT_OUTPUT = 32_768
"""Output tokens to reserve for a model whose limit is unknown."""
MIN_OUTPUT = 64
"""Minimum number of output tokens: a call with a smaller rest of the budget is not made."""
_ENOUGH_OUTPUT = 2048
"""While other turns hold reservations, a call that would get fewer output tokens waits for them."""
_SLICE = 60_000
"""Milliseconds that a running turn reserves at a time."""
_POLL = 0.25
"""Seconds between two attempts to reserve: another process may have returned its reservation."""
_LEASE = 1800
"""Seconds after which a reservation is void: it was lost in a crash, and the turn was not resumed."""


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of one turn, or of all turns of a session, agent, user or tenant. A limit that is None does not apply.

    Args:
        tokens: Input and output tokens.
        requests: Model requests.
        tool_calls: Tool calls.
        dollars: Cost in US dollars; requires a price for every model.
        seconds: Time that turns run, including tools and approvals.
        scope: What is limited: each `turn`, `session`, `agent` or `user`, or the `tenant` as a whole.
        per: `day` or `month` (UTC) after which the counts start again; None if they never do.
    """

    tokens: int | None = None
    requests: int | None = None
    tool_calls: int | None = None
    dollars: float | None = None
    seconds: float | None = None
    scope: Scope = "turn"
    per: Per | None = None

    def __post_init__(self) -> None:
        _check_names(self.scope, self.per)
        if self.scope == "turn" and self.per is not None:
            raise ConfigError(f"a budget per {self.per} needs a scope other than turn: session, agent, user or tenant")
        for name in MEASURES:
            limit = getattr(self, name)
            if limit is not None and not (0 < limit < math.inf):
                raise ConfigError(f"invalid budget {name}={limit}: must be more than 0")
        if all(getattr(self, name) is None for name in MEASURES):
            raise ConfigError(f"a budget needs at least one of {', '.join(MEASURES)}")

    @property
    def limits(self) -> tuple[int | None, ...]:
        """The limits in the units of `Amounts`."""
        given = [getattr(self, name) for name in MEASURES]
        return tuple(
            None if limit is None else max(1, round(limit * factor))
            for limit, factor in zip(given, _FACTORS, strict=True)
        )


def _check_names(scope: object, per: object) -> None:
    if scope not in SCOPES:
        raise ConfigError(f"unknown scope of a budget {scope!r}; known scopes: {', '.join(SCOPES)}")
    if per is not None and per not in get_args(Per):
        raise ConfigError(f"unknown period of a budget {per!r}: expected day or month")


BudgetLike: TypeAlias = Budget | Mapping[str, Any] | str
"""A budget, its fields as a mapping, or a text such as `user dollars=5 per=day`."""


def read_budgets(
    value: BudgetLike | Sequence[BudgetLike] | None, scopes: Sequence[Scope] = SCOPES
) -> tuple[Budget, ...]:
    """Convert budgets given in any form; raises ConfigError for an unknown name, an invalid value or another scope."""
    if value is None:
        return ()
    given = [value] if isinstance(value, (Budget, Mapping, str)) else value
    if not isinstance(cast(object, given), Sequence):
        raise ConfigError(f"invalid budget {given!r}: expected a Budget, a mapping of its fields, or several of them")
    found = tuple([_read_budget(each) for each in given])
    for budget in found:
        if budget.scope not in scopes:
            expected = " or ".join(scopes)
            raise ConfigError(f"a budget of scope {budget.scope!r} cannot be set here: expected {expected}")
    return found


def _read_budget(value: BudgetLike) -> Budget:
    if isinstance(value, Budget):
        return value
    fields = _parse_fields(value) if isinstance(value, str) else dict(value)
    known = Budget.__struct_fields__
    if unknown := [str(name) for name in fields if name not in known]:
        raise ConfigError(f"unknown budget setting {unknown[0]!r}; known settings: {', '.join(known)}")
    _check_names(fields.get("scope", "turn"), fields.get("per"))
    try:
        return msgspec.convert(fields, Budget)
    except msgspec.ValidationError as error:
        given = str(error) if isinstance(error.__cause__, ConfigError) else f"invalid budget: {error}"
        raise ConfigError(given) from error


def _parse_fields(text: str) -> dict[str, Any]:
    """Parse `user dollars=5 tokens=200000 per=day`; without a scope, the budget is that of a turn."""
    first, *rest = text.split() or [""]
    scope, parts = ("turn", [first, *rest]) if "=" in first else (first, rest)
    matches = [_PART.fullmatch(part) for part in parts]
    if not parts or None in matches or len({match[1] for match in matches if match}) < len(parts):
        raise ConfigError(
            f"invalid budget {text!r}: expected limits, after a scope ({', '.join(SCOPES)}) or without one, for "
            "example 'user dollars=5 tokens=200000 per=day'"
        )
    fields = {match[1]: _parse_value(match[1], match[2]) for match in matches if match}
    return {"scope": scope, **fields}


def _parse_value(name: str, text: str) -> Any:
    if name in ("scope", "per") or not text[0].isdigit():
        return text
    return int(text) if "." not in text else float(text)


def current_period(per: Per | None, now: float) -> str:
    """Return the period that contains a time: a day, a month or always the same one."""
    return "" if per is None else utc_day(now)[: 10 if per == "day" else 7]


def next_period(per: Per | None, now: float) -> float | None:
    """Return when the period that contains a time ends, in seconds since 1970."""
    if per is None:
        return None
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = 1 if per == "day" else 32 - today.day
    end = today + timedelta(days=days)
    return (end if per == "day" else end.replace(day=1)).timestamp()


# Counting


class BudgetCount(NamedTuple):
    """Usage of a budget, reservations of other runs, and reservations of this run."""

    used: Amounts = NOTHING
    others: Amounts = NOTHING
    own: Amounts = NOTHING

    @classmethod
    def read(cls, rows: Iterable[store.BudgetRow], run_id: str) -> "BudgetCount":
        used = others = own = NOTHING
        for row in rows:
            if not row.run_id:
                used = add_amounts(used, row.amounts)
            elif row.run_id == run_id:
                own = add_amounts(own, row.amounts)
            else:
                others = add_amounts(others, row.amounts)
        return cls(used, others, own)


def add_amounts(to: Amounts, more: Amounts, times: int = 1) -> Amounts:
    return cast(Amounts, tuple([one + times * other for one, other in zip(to, more, strict=True)]))


def grant(write: store.ReserveBudget, counts: Sequence[BudgetCount]) -> int:
    """Return the number of units that fit into all budgets; raise BudgetUnavailable if it is too low."""
    granted, waits = write.most, None
    for budget, count in zip(write.budgets, counts, strict=True):
        for measure, limit in enumerate(budget.limits):
            base, unit = write.base[measure], write.unit[measure]
            if limit is None or not (base or unit):
                continue
            free = limit - count.used[measure] - count.own[measure] - base
            fits, alone = [
                (left // unit if unit else write.most) if left >= 0 else -1
                for left in (free - count.others[measure], free)
            ]
            if fits >= write.enough or (fits >= write.least and fits == alone):
                granted = min(granted, fits)
                continue
            pending = alone >= write.least and count.others[measure] > 0
            refusal = BudgetUnavailable(budget.key, budget.period, measure, count.used[measure], pending=pending)
            if not pending:
                raise refusal
            waits = waits or refusal
    if waits is not None:
        raise waits
    return granted


class BudgetStore(Protocol):
    """Port for budget counters: a store, or memory."""

    async def commit(self, tenant: str, writes: Sequence[Any]) -> list[Any]: ...

    async def budget_rows(self, tenant: str, key: str, period: str) -> list[store.BudgetRow]: ...


class MemoryBudgets:
    """Budgets of an Atlas without a store."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[str, Amounts]] = {}

    async def commit(self, tenant: str, writes: Sequence[Any]) -> list[Any]:
        return [self._apply(write) for write in writes]

    async def budget_rows(self, tenant: str, key: str, period: str) -> list[store.BudgetRow]:
        found = self._rows.get((key, period), {})
        return [store.BudgetRow(key, period, run_id, *amounts) for run_id, amounts in found.items()]

    def _apply(self, write: Any) -> int | None:
        if isinstance(write, store.ReserveBudget):
            counts = [self._count(budget, write.run_id) for budget in write.budgets]
            granted = grant(write, counts)
            for budget in write.budgets:
                self._add(budget, write.run_id, add_amounts(write.base, write.unit, granted))
            return granted
        if isinstance(write, store.SettleBudget):
            for budget in write.budgets:
                self._add(budget, write.run_id, write.reserved, -1)
                self._add(budget, "", write.used)
        elif isinstance(write, store.ReleaseBudgets):
            for rows in self._rows.values():
                rows.pop(write.run_id, None)
            if write.ended:
                self._rows.pop((f"turn/{write.run_id}", ""), None)
        return None

    def _count(self, budget: BudgetLimit, run_id: str) -> BudgetCount:
        rows = self._rows.get((budget.key, budget.period), {})
        found = [store.BudgetRow(budget.key, budget.period, id, *amounts) for id, amounts in rows.items()]
        return BudgetCount.read(found, run_id)

    def _add(self, budget: BudgetLimit, run_id: str, amounts: Amounts, times: int = 1) -> None:
        rows = self._rows.setdefault((budget.key, budget.period), {})
        rows[run_id] = add_amounts(rows.get(run_id, NOTHING), amounts, times)


def inherit_limits(run_id: str, budgets: Sequence[Budget]) -> list[BudgetLimit]:
    """Return the limits of a turn that its delegated turns inherit: all except the time limit."""
    found: tuple[int | None, ...] | None = None
    for budget in budgets:
        if budget.scope == "turn":
            found = _lowest(found, (*budget.limits[:4], None))
    return [BudgetLimit(f"turn/{run_id}", "", found)] if found else []


# Turns


class HasCost(Protocol):
    """The price of a model."""

    def cost(self, usage: Usage) -> float:
        """Return the cost of a usage in dollars."""
        ...


class ModelCall(msgspec.Struct, frozen=True):
    """A model call to reserve for: its estimated input and its limit of output tokens, if any.

    `models` are those that may answer, with their prices; a price is None if it is unknown. `least` is the number of
    output tokens without which the call is useless, and `longest` that of the longest answer of these models.
    """

    input_tokens: int
    max_tokens: int | None = None
    models: tuple[tuple[str, HasCost | None], ...] = ()
    least: int = MIN_OUTPUT
    longest: int = DEFAULT_OUTPUT


class Reservation(msgspec.Struct, frozen=True):
    """Reservation for a model call. `max_tokens` is the limit of output tokens if it had to be lowered."""

    call: ModelCall
    budgets: tuple[BudgetLimit, ...]
    reserved: Amounts
    max_tokens: int | None = None
    outer: "Reservation | None" = None
    """Reservation for the same call in the outer turn, whose tool started this turn."""
    run_id: str = ""


class TurnIdentity(msgspec.Struct, frozen=True):
    """The run, session, agent and user of a turn."""

    run_id: str
    session: str
    agent_id: str
    user: str = ""

    def key(self, scope: Scope) -> str:
        """Return the key under which a budget of this scope is counted."""
        names = {"turn": self.run_id, "session": self.session, "agent": self.agent_id, "user": self.user}
        return TENANT if scope == "tenant" else f"{scope}/{names[scope]}"


class TokenPlan(NamedTuple):
    """The part of a tenant's plan that is a budget: tokens per month."""

    name: str
    tokens: int


SharedLimits: TypeAlias = tuple[TokenPlan | None, Sequence[BudgetLimit]]
"""The token plan of a tenant, and the limits of the turn that delegated another one."""


class BudgetStatus(msgspec.Struct, frozen=True):
    """One limit of a budget: the amounts used and reserved, and when they reset (seconds since 1970).

    Attributes:
        scope: Whose budget it is: `turn`, `session`, `agent`, `user` or `tenant`.
        subject: The id or name of the turn, session, agent, user or tenant.
        measure: What is limited: `tokens`, `requests`, `tool_calls`, `dollars` or `seconds`.
        limit: The limit.
        used: The amount used so far.
        reserved: The amount that running requests may still use.
        per: Period after which it resets; None if never.
        resets_at: When it resets, in seconds since 1970; None if never.
    """

    scope: str
    subject: str
    measure: store.Measure
    limit: float
    used: float
    reserved: float
    per: Per | None = None
    resets_at: float | None = None

    @property
    def left(self) -> float:
        return max(0.0, self.limit - self.used - self.reserved)


outer_turn: ContextVar["TurnBudget | None"] = ContextVar("atlas_turn_budget", default=None)
"""The budget of the turn whose tool is running."""


class BudgetBook:
    """The budgets that apply to every turn of an Atlas, and where they are counted."""

    def __init__(self, budgets: tuple[Budget, ...], counts: BudgetStore, tenant: str, clock: Clock) -> None:
        self.budgets = budgets
        self.counts = counts
        self.tenant = tenant
        self.clock = clock
        self.on_exceeded: list[Callable[[BudgetExceeded], object]] = []
        self._waiters: dict[tuple[str, str], deque[asyncio.Future[None]]] = {}
        self._inputs: dict[str, tuple[int, int]] = {}

    def open_turn(
        self,
        turn: TurnIdentity,
        budgets: Sequence[Budget],
        *,
        commit: "Commit | None" = None,
    ) -> "TurnBudget":
        """Return the budget of a turn.

        With `commit`, the turn has a journal, and its settlements are committed with the journal's next step.
        """
        return TurnBudget(self, turn, (*self.budgets, *budgets), commit, outer_turn.get())

    def correct_input(self, call: ModelCall) -> int:
        """Return the estimate of the input, raised by the error of the last estimate for the same model."""
        tokens = call.input_tokens
        for model, _ in call.models[:1]:
            estimated, real = self._inputs.get(model, (1, 0))
            if real > estimated:
                tokens = min(math.ceil(tokens * real / max(estimated, 1)), tokens + real - estimated)
        return tokens

    def learn_input(self, call: ModelCall, usage: Usage) -> None:
        """Remember how many input tokens the vendor counted."""
        for model, _ in call.models[:1]:
            if usage.input_tokens and not usage.estimated:
                self._inputs[model] = (call.input_tokens, usage.input_tokens)

    async def wait(self, refusal: BudgetUnavailable) -> None:
        """Wait until an unused reservation was returned to a budget; first come, first served.

        The first waiter also checks periodically whether another process has returned one.
        """
        queue = self._waiters.setdefault((refusal.key, refusal.period), deque())
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def poll() -> None:
            nonlocal alarm
            if not waiter.done() and queue and queue[0] is waiter:
                waiter.set_result(None)
            elif not waiter.done():
                alarm = self.clock.call_later(_POLL, poll)

        alarm = self.clock.call_later(_POLL, poll)
        queue.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self.wake((refusal.key, refusal.period))
            raise
        finally:
            alarm.cancel()
            if waiter in queue:
                queue.remove(waiter)

    def wake(self, *budgets: tuple[str, str]) -> None:
        """Let the next turn that waits for each of these budgets try again."""
        for each in budgets:
            queue = self._waiters.get(each)
            while queue:
                waiter = queue.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    break
            if not queue:
                self._waiters.pop(each, None)

    async def status(self, turn: TurnIdentity, budgets: Sequence[Budget]) -> list[BudgetStatus]:
        """Return the used and remaining amounts of budgets, except those of a turn."""
        now, found = self.clock.time(), list[BudgetStatus]()
        for budget in budgets:
            if budget.scope == "turn" or (budget.scope == "session" and not turn.session):
                continue
            key, period = turn.key(budget.scope), current_period(budget.per, now)
            count = BudgetCount.read(await self.counts.budget_rows(self.tenant, key, period), "")
            resets_at, subject = next_period(budget.per, now), key.partition("/")[2]
            for index, (measure, limit) in enumerate(zip(MEASURES, budget.limits, strict=True)):
                if limit is not None:
                    total, used, reserved = [
                        each / _FACTORS[index] for each in (limit, count.used[index], count.others[index])
                    ]
                    found.append(
                        BudgetStatus(budget.scope, subject, measure, total, used, reserved, budget.per, resets_at)
                    )
        return found


Settled: TypeAlias = store.SettleBudget | store.ReleaseBudgets
Commit: TypeAlias = Callable[[Sequence[Any]], Awaitable[list[Any]]]
"""Commits writes, and retries while the store is unavailable."""


class TurnBudget:
    """The budgets that apply to one turn: reserves for its model calls and counts its tool calls and its time."""

    def __init__(
        self,
        book: BudgetBook,
        turn: TurnIdentity,
        budgets: tuple[Budget, ...],
        commit: Commit | None,
        outer: "TurnBudget | None",
    ) -> None:
        self._book = book
        self._turn = turn
        self._budgets = budgets
        self._plan: TokenPlan | None = None
        self._inherited: tuple[BudgetLimit, ...] = ()
        self._timer: _TurnTimer | None = None
        self._outer = outer if outer is not None and outer.is_shared else None
        self._journaled = commit is not None
        self._commit: Commit = commit or (lambda writes: book.counts.commit(book.tenant, writes))
        self._settled: list[Settled] = []
        self._limits: tuple[str, tuple[BudgetLimit, ...]] = ("", ())
        self._clocked: tuple[BudgetLimit, ...] = ()
        self._reserved_ms = self._used_ms = 0
        self._since = 0.0
        self.exhausted: BudgetExceeded | None = None
        """Why the turn must not call the model again."""

    @property
    def is_shared(self) -> bool:
        """Whether turns that are started by tools of this turn count against it as well."""
        return self._outer is not None or any(each.key.startswith("turn/") for each in self.limits())

    def switch_agent(self, agent_id: str, before: Sequence[Budget], now: Sequence[Budget]) -> None:
        """Continue the turn with another agent, whose budgets replace the previous agent's. Those of the turn stay."""
        kept = [each for each in self._budgets if each not in before or each.scope == "turn"]
        self._budgets = (*kept, *[each for each in now if each.scope != "turn"])
        self._turn = msgspec.structs.replace(self._turn, agent_id=agent_id)
        self._limits = ("", ())

    def set_shared(self, plan: TokenPlan | None, inherited: Sequence[BudgetLimit]) -> None:
        """Set the current plan of the tenant, and the limits of the turn that delegated this one."""
        if (plan, tuple(inherited)) != (self._plan, self._inherited):
            self._plan, self._inherited = plan, tuple(inherited)
            self._limits = ("", ())

    def limits(self) -> tuple[BudgetLimit, ...]:
        """Return the limits that apply today; the lowest counts if several have the same key."""
        now = self._book.clock.time()
        today = utc_day(now)
        if self._limits[0] != today:
            found: dict[tuple[str, str], tuple[int | None, ...]] = {
                (each.key, each.period): each.limits for each in self._inherited
            }
            for budget in self._budgets:
                where = self._turn.key(budget.scope), current_period(budget.per, now)
                found[where] = _lowest(found.get(where), budget.limits)
            if self._plan is not None:
                where = TENANT, current_period("month", now)
                found[where] = _lowest(found.get(where), (self._plan.tokens, None, None, None, None))
            self._limits = today, tuple([BudgetLimit(*where, limits) for where, limits in found.items()])
        return self._limits[1]

    async def check(self) -> None:
        """Raise BudgetExceeded if a budget is used up already, before the turn is accepted."""
        for budget in self.limits():
            if budget.key.startswith("turn/") and budget not in self._inherited:
                continue
            rows = await self._book.counts.budget_rows(self._book.tenant, budget.key, budget.period)
            used = BudgetCount.read(rows, "").used
            for measure, limit in enumerate(budget.limits):
                if limit is not None and used[measure] >= limit and MEASURES[measure] != "tool_calls":
                    refusal = BudgetUnavailable(budget.key, budget.period, measure, used[measure], pending=False)
                    raise self.exceeded(refusal)

    # Model calls

    async def reserve(self, call: ModelCall) -> Reservation:
        """Reserve tokens for a model call: its input, and as much output as fits. Raises BudgetExceeded."""
        if self.exhausted is not None:
            raise self.exhausted
        await self.start_time()
        run_id = self._turn.run_id
        outer = await self._outer.reserve_within(call, run_id) if self._outer is not None else None
        try:
            return await self._reserve(call, self.limits(), outer, run_id)
        except BaseException:
            if outer is not None and self._outer is not None:
                await self._outer.settle(outer, None)
            raise

    async def reserve_within(self, call: ModelCall, run_id: str) -> Reservation:
        """Reserve tokens for an inner turn, which a tool of this turn started: its calls count against this budget."""
        outer = await self._outer.reserve_within(call, run_id) if self._outer is not None else None
        limits = tuple([each for each in self.limits() if each.key.startswith("turn/")])
        return await self._reserve(call, limits, outer, run_id)

    async def _reserve(
        self, call: ModelCall, limits: tuple[BudgetLimit, ...], outer: Reservation | None, run_id: str
    ) -> Reservation:
        wanted = most = call.max_tokens or call.longest
        if outer is not None and outer.max_tokens is not None:
            most = min(most, outer.max_tokens)
        least = min(most, call.least)
        enough = min(most, max(least, _ENOUGH_OUTPUT))

        def build() -> store.ReserveBudget:
            tokens = self._book.correct_input(call)
            cost, cost_per_token = self._worst_cost(call, tokens, limits)
            base, unit = (tokens, 1, 0, cost, 0), (1, 0, 0, cost_per_token, 0)
            return store.ReserveBudget(run_id, limits, base, unit, least, enough, most)

        granted, reserved = await self._grant(build)
        return Reservation(call, limits, reserved, granted if granted < wanted else None, outer, run_id)

    def _worst_cost(self, call: ModelCall, tokens: int, limits: Sequence[BudgetLimit]) -> tuple[int, int]:
        """Return the highest cost in microcents of the input, and of one output token, among the models."""
        if all(each.limits[3] is None for each in limits):
            return 0, 0
        if unknown := [model for model, price in call.models if price is None]:
            raise ConfigError(
                f"the dollar budget cannot be kept: the price of model {unknown[0]!r} is unknown; "
                f"pass prices={{{unknown[0]!r}: Price(input, output)}}, set "
                f'ATLAS_MODEL_CATALOGUE="{unknown[0]} input=1 output=4" (dollars per million tokens), or limit tokens'
            )
        prices = [price for _, price in call.models if price is not None]
        inputs = [price.cost(Usage(tokens, cache_write_tokens=written)) for price in prices for written in (0, tokens)]
        outputs = [price.cost(Usage(0, 1000)) / 1000 for price in prices]
        return math.ceil(max(inputs, default=0) * _MICROCENTS), math.ceil(max(outputs, default=0) * _MICROCENTS)

    async def _grant(self, build: Callable[[], store.ReserveBudget], *, waits: bool = True) -> tuple[int, Amounts]:
        """Reserve an amount; wait if other turns hold reservations that they may return. Raises BudgetExceeded.

        `build` is called for each attempt, because estimates improve. Returns the number of units and the whole
        reservation.
        """
        waited: BudgetUnavailable | None = None
        while True:
            write = build()
            granted = await self._try(write)
            blocked = granted if isinstance(granted, BudgetUnavailable) else None
            if waited is not None and (blocked is None or blocked.key != waited.key or not blocked.pending):
                self._book.wake((waited.key, waited.period))  # the next one in the queue
            if not isinstance(granted, BudgetUnavailable):
                return granted, add_amounts(write.base, write.unit, granted)
            if not (granted.pending and waits):
                raise self.exceeded(granted)
            waited = granted
            await self._book.wait(granted)

    async def _try(self, write: store.ReserveBudget) -> int | BudgetUnavailable:
        """Commit pending settlements, and reserve if enough is left."""
        if not write.budgets:
            return write.most
        if write.run_id:
            write = msgspec.structs.replace(write, lease=_LEASE * 1000)
        settled = self.take_settled()
        try:
            try:
                *_, granted = await self._commit([*settled, write])
            except BudgetUnavailable as refusal:  # nothing of the commit was written
                granted = refusal
                if settled:
                    await self._commit(settled)
        except BaseException:
            self.put_back(settled)
            raise
        self.committed(settled)
        return write.most if granted is None else granted

    async def settle(self, reservation: Reservation | None, usage: Usage | None) -> None:
        """Replace a reservation, if there was one, by the call's usage; None means that nothing was sent.

        With a journal, it is committed with the next step, otherwise at once.
        """
        if reservation is None:
            reservation = Reservation(ModelCall(0), self.limits(), NOTHING)
        used: Amounts = NOTHING
        if usage is not None:
            self._book.learn_input(reservation.call, usage)
            tokens = usage.input_tokens + usage.output_tokens
            used = (tokens, 1, 0, self._cost(reservation, usage), 0)
        if reservation.outer is not None and self._outer is not None:
            await self._outer.settle(reservation.outer, usage)
        if not reservation.budgets:
            return
        run_id = reservation.run_id or self._turn.run_id
        write = store.SettleBudget(run_id, reservation.budgets, reservation.reserved, used)
        self._settled += [write, *self._settle_time()]
        if not self._journaled or run_id != self._turn.run_id:
            await finish_despite_cancel(self._flush())

    def _cost(self, reservation: Reservation, usage: Usage) -> int:
        if all(each.limits[3] is None for each in reservation.budgets):
            return round((usage.cost or 0) * _MICROCENTS)
        prices = [price for _, price in reservation.call.models if price is not None]
        cost = usage.cost if usage.cost is not None else max([price.cost(usage) for price in prices], default=0)
        return math.ceil(cost * _MICROCENTS)

    async def _flush(self) -> None:
        if settled := self.take_settled():
            try:
                await self._commit(settled)
            except BaseException:
                self.put_back(settled)
                raise
            self.committed(settled)

    # What rides on the next step of the journal

    def take_settled(self) -> list[Settled]:
        """Return the writes that the next commit must contain."""
        settled, self._settled = self._settled, []
        return settled

    def put_back(self, settled: Sequence[Settled]) -> None:
        """Keep writes for the next commit, because this one failed."""
        self._settled[:0] = settled

    def committed(self, settled: Sequence[Settled]) -> None:
        """Let waiting turns try again after a commit that returned reservations."""
        returned = {
            (each.key, each.period): None
            for write in settled
            if isinstance(write, store.SettleBudget)
            for each in write.budgets
        }
        self._book.wake(*returned)

    # Tool calls

    def tool_call_write(self, prefix: str = "") -> store.ReserveBudget | None:
        """Return the write that counts a tool call, for the commit that records it; None if none is limited."""
        found = [each for each in self.limits() if each.limits[2] is not None and each.key.startswith(prefix)]
        limits = tuple(found)
        return store.ReserveBudget("", limits, (0, 0, 1, 0, 0)) if limits else None

    async def count_tool_call(self, prefix: str = "") -> None:
        """Count a tool call at once. Raises BudgetExceeded."""
        if (write := self.tool_call_write(prefix)) is not None:
            await self._grant(lambda: write, waits=False)

    async def count_outer_tool_call(self) -> None:
        """Count a tool call against the turn whose tool started this one. Raises BudgetExceeded."""
        if self._outer is not None:
            try:
                await self._outer.count_outer_tool_call()
                await self._outer.count_tool_call("turn/")
            except BudgetExceeded as exceeded:
                self.exhausted = exceeded
                raise

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Alarm:
        """Schedule a callback on the clock of the budgets."""
        return self._book.clock.call_later(seconds, callback)

    def exceeded(self, refusal: BudgetUnavailable) -> BudgetExceeded:
        """Return the error for a budget that is used up; the turn does not call its model again."""
        self.exhausted = self._describe(refusal)
        for callback in self._book.on_exceeded:
            notify(callback, self.exhausted)
        return self.exhausted

    def _describe(self, refusal: BudgetUnavailable) -> BudgetExceeded:
        measure, factor = MEASURES[refusal.measure], _FACTORS[refusal.measure]
        found = next(each for each in self.limits() if (each.key, each.period) == (refusal.key, refusal.period))
        limit, used = (found.limits[refusal.measure] or 0) / factor, refusal.used / factor
        per: Per | None = None if not refusal.period else "day" if len(refusal.period) > 7 else "month"
        resets_at = next_period(per, self._book.clock.time())
        scope, _, subject = refusal.key.partition("/")
        plan = self._plan
        amount, spent = format_amount(measure, limit), format_amount(measure, used)
        if plan is not None and (scope, per, measure, plan.tokens) == (TENANT, "month", "tokens", limit):
            text = f"the monthly quota of {amount} of the plan {plan.name}"
        else:
            whose = f" of {scope} {subject!r}" if subject and scope != "turn" else f" of the {scope}"
            text = f"the budget{whose} of {amount}" + (f" per {per}" if per else "")
        text += " is used up" if used >= limit else " has too little left for the next step"
        text += f" ({spent.split()[0]} used)"
        if resets_at is not None:
            text += f"; it resets at {datetime.fromtimestamp(resets_at, UTC):%Y-%m-%dT%H:%M}Z"
        return BudgetExceeded(text, scope=scope, measure=measure, limit=limit, used=used, resets_at=resets_at)

    # Time

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Count the running time of the turn; cancel it and raise BudgetExceeded when the time is used up."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        token = outer_turn.set(self)
        timer = self._timer = _TurnTimer(self, task)
        try:
            yield
        except asyncio.CancelledError:
            if timer.failure is None or task.uncancel() > timer.cancelling:
                raise
            raise timer.failure from None
        finally:
            self._timer = None
            timer.stop()
            outer_turn.reset(token)
            self._settled += self._settle_time(final=True)
            if not self._journaled:  # otherwise the end of the journal releases what is left
                self._settled.append(store.ReleaseBudgets(self._turn.run_id, ended=True))
                await finish_despite_cancel(self._flush())

    async def start_time(self) -> None:
        """Start the clock of the turn, just before its first call of a model or a tool."""
        if self._timer is not None:
            await self._timer.start()

    async def reserve_time(self, *, waits: bool) -> float:
        """Reserve the next slice of time and return the seconds until it is used up; infinite without a time limit."""
        clocked = tuple([each for each in self.limits() if each.limits[4] is not None])
        if not clocked:
            return math.inf
        if clocked != self._clocked:
            self._settled += self._settle_time(final=True)
            self._clocked, self._since = clocked, self._book.clock.monotonic()
        else:
            self._settled += self._settle_time()
        unit: Amounts = (0, 0, 0, 0, 1)
        write = store.ReserveBudget(self._turn.run_id, clocked, NOTHING, unit, 1, 1, _SLICE)
        granted, _ = await self._grant(lambda: write, waits=waits)
        self._reserved_ms += granted
        elapsed = (self._book.clock.monotonic() - self._since) * 1000
        return max(0.0, self._reserved_ms + self._used_ms - elapsed) / 1000

    def _settle_time(self, *, final: bool = False) -> list[store.SettleBudget]:
        """Return the write that counts the time since the last one. `final` also releases the unused reservation."""
        if not self._clocked:
            return []
        elapsed = round((self._book.clock.monotonic() - self._since) * 1000) - self._used_ms
        used = min(elapsed, self._reserved_ms)
        reserved = self._reserved_ms if final else used
        self._used_ms += used
        self._reserved_ms -= reserved
        write = store.SettleBudget(self._turn.run_id, self._clocked, (0, 0, 0, 0, reserved), (0, 0, 0, 0, used))
        if final:
            self._clocked, self._used_ms = (), 0
        return [write]


class _TurnTimer:
    """Cancels the task of a turn when the time that it may run is used up."""

    def __init__(self, budget: TurnBudget, task: "asyncio.Task[Any]") -> None:
        self._budget = budget
        self._task = task
        self._alarm: Alarm | None = None
        self._extension: asyncio.Task[None] | None = None
        self._started = False
        self.cancelling = task.cancelling()
        self.failure: BudgetExceeded | None = None

    async def start(self) -> None:
        if not self._started:
            self._started = True
            self._schedule(await self._budget.reserve_time(waits=True))

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        if self._extension is not None:
            self._extension.cancel()

    def _schedule(self, seconds: float) -> None:
        if seconds < math.inf:
            self._alarm = self._budget.call_later(seconds, self._on_alarm)

    def _on_alarm(self) -> None:
        self._extension = asyncio.ensure_future(self._extend())

    async def _extend(self) -> None:
        try:
            self._schedule(await self._budget.reserve_time(waits=False))
        except BudgetExceeded as exceeded:
            self.failure = exceeded
            self._task.cancel()


def _lowest(one: tuple[int | None, ...] | None, other: tuple[int | None, ...]) -> tuple[int | None, ...]:
    if one is None:
        return other
    pairs = [[limit for limit in pair if limit is not None] for pair in zip(one, other, strict=True)]
    return tuple([min(pair) if pair else None for pair in pairs])


def format_amount(measure: store.Measure, amount: float) -> str:
    """Return an amount with its unit: `1,000 tokens`, `$2.50`."""
    if measure == "dollars":
        return f"${amount:,.2f}" if amount >= 0.01 or not amount else f"${amount:.6f}"
    if measure == "seconds":
        return f"{amount:,.4g} seconds"
    names = {"tokens": "tokens", "requests": "model requests", "tool_calls": "tool calls"}
    return f"{int(amount):,} {names[measure]}"
