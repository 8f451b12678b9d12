"""Attacks on the tool pipeline: each of these once succeeded."""

import asyncio
import base64
import os
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import pydantic
import pytest

from atlas_agents import (
    Agent,
    Answer,
    Approvals,
    Atlas,
    AtlasStream,
    BadArguments,
    Cancelled,
    ConfigError,
    Conversation,
    Limits,
    MemoryAudit,
    Policy,
    Question,
    Tool,
    ToolContext,
    ToolFailed,
    ToolResult,
    Transient,
    tool,
    verify,
)
from atlas_agents.core.paths import Environment
from atlas_agents.providers.registry import Registry
from atlas_agents.testing import Reply, Scripted, VirtualClock, calls, in_memory_atlas, says
from atlas_agents.tools.approvals import compute_binding
from atlas_agents.tools.audit import AuditEntry, AuditRecord
from atlas_agents.tools.execute import BadResult, to_json_value
from atlas_agents.tools.limits import Slots, Ticker, TickLimiter, process_slots
from atlas_agents.tools.policy import Actor
from atlas_agents.tools.redact import REDACTED, Redactor
from atlas_agents.tools.tool import Effect
from atlas_agents.tools.worker_pool import Workers
from checks import TIMEOUT, cpu_factor, is_paired, measure_loop_time, run_ready_tasks, scaled

NEUTRAL = "Tool execution failed. The error has been logged for investigation."


class Shop:
    """Counts what was bought; buying requires approval."""

    def __init__(self, confirm: Any = True) -> None:
        self.bought: list[tuple[str, int]] = []

        async def buy(item: str, count: int = 1) -> str:
            """Buy something."""
            self.bought.append((item, count))
            return "bought"

        self.buy = tool(confirm=confirm)(buy)


def _results(model: Scripted) -> list[ToolResult]:
    return [part for message in model.requests[-1].messages for part in message.parts if isinstance(part, ToolResult)]


def _model_results(model: Scripted) -> list[tuple[str, str | None, Any]]:
    return [(result.status, result.error, result.result) for result in _results(model)]


async def _ended(stream: AtlasStream) -> None:
    async with asyncio.timeout(TIMEOUT):
        with suppress(Cancelled):
            await stream.reply()


async def _bought(shop: Shop, approve: Any, **atlas: Any) -> Scripted:
    model = Scripted(calls("buy", item="tea"), says("Done."))
    async with in_memory_atlas(model, [shop.buy], approve=approve, **atlas) as made, asyncio.timeout(TIMEOUT):
        await made.ask("buy tea")
    return model


def _yes(question: Question) -> bool:
    return True


# Answers that must not count


async def _approves_when_cancelled(question: Question) -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "once"
    return "no"


async def test_answer_after_the_deadline_is_ignored() -> None:
    shop, clock = Shop(), VirtualClock()
    model = Scripted(calls("buy", item="tea"), says("Not bought."))
    approvals = Approvals(_approves_when_cancelled, deadline=60)
    async with in_memory_atlas(model, [shop.buy], clock=clock, approve=approvals) as atlas:
        stream = atlas.send("buy tea")
        await clock.advance(61)
        await _ended(stream)
    assert shop.bought == []
    declined = {"cancelled": True, "reason": "no answer within 60 s"}
    assert _model_results(model) == [("error", "declined", declined)]


async def test_approval_after_the_turn_was_cancelled_runs_nothing() -> None:
    shop, asked = Shop(), asyncio.Event()

    async def approve(question: Question) -> str:
        asked.set()
        return await _approves_when_cancelled(question)

    async with in_memory_atlas(
        Scripted(calls("buy", item="tea"), says("Bought.")), [shop.buy], approve=approve
    ) as atlas:
        stream = atlas.send("buy tea")
        await asked.wait()
        stream.cancel()
        with pytest.raises(Cancelled):
            await stream.reply()
    assert shop.bought == []


async def test_approve_function_that_ignores_cancellation_does_not_block_the_turn() -> None:
    shop, asked, release = Shop(), asyncio.Event(), asyncio.Event()

    async def approve(question: Question) -> str:
        asked.set()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        return "once"

    async with in_memory_atlas(Scripted(calls("buy", item="tea")), [shop.buy], approve=approve) as atlas:
        stream = atlas.send("buy tea")
        await asked.wait()
        stream.cancel()
        async with asyncio.timeout(TIMEOUT):  # the function is still asking
            await _ended(stream)
        release.set()
        await asyncio.sleep(0)
    assert shop.bought == []


def _exits(_: object) -> bool:
    raise SystemExit(3)


async def _exits_async(_: object) -> bool:
    raise SystemExit(3)


async def _raises_cancelled(_: object) -> bool:
    raise asyncio.CancelledError


@pytest.mark.parametrize("approve", [_exits, _exits_async, _raises_cancelled])
async def test_approve_function_that_raises_exit_denies_the_call(approve: Any) -> None:
    shop = Shop()
    model = await _bought(shop, approve)
    assert shop.bought == []
    assert [(*each[:2], each[2]["cancelled"]) for each in _model_results(model)] == [("error", "declined", True)]


@pytest.mark.parametrize("confirm", [_exits, _exits_async])
async def test_confirm_predicate_that_raises_exit_denies_the_call(confirm: Any) -> None:
    shop = Shop(confirm=confirm)
    model = await _bought(shop, _yes)
    assert shop.bought == []
    assert [(*each[:2], each[2]["cancelled"]) for each in _model_results(model)] == [("error", "declined", True)]


# Approvals of something else


async def test_arguments_changed_by_a_predicate_are_neither_shown_nor_stored() -> None:
    shown: list[dict[str, Any]] = []

    def harmless(arguments: dict[str, Any]) -> bool:
        arguments["item"] = "water"
        return True

    def approve(question: Question) -> bool:
        shown.append(dict(question.arguments))
        question.arguments["item"] = "gold"
        return True

    shop = Shop(confirm=harmless)
    model = await _bought(shop, approve)
    assert shown == [{"item": "tea"}]
    assert shop.bought == [("tea", 1)]
    assert model.requests[-1].messages[1].tool_calls[0].arguments == {"item": "tea"}


async def test_arguments_edited_in_place_are_run_as_edited() -> None:
    def approve(question: Question) -> Answer:
        question.arguments["count"] = 3
        return Answer("once", arguments=question.arguments)

    shop = Shop()
    model = await _bought(shop, approve)
    assert shop.bought == [("tea", 3)]
    assert _results(model)[0].result == {"edited_arguments": {"item": "tea", "count": 3}, "result": "bought"}


async def test_edited_arguments_are_valid_only_under_the_policy_of_the_question() -> None:
    def approve(question: Question) -> Answer:
        atlas.policy = Policy(tools={"buy": {"*": "yes"}, "sell": {"*": "no"}})
        return Answer("once", arguments={"item": "tea", "count": 2})

    shop, model = Shop(), Scripted(calls("buy", item="tea"), says("Done."))
    async with in_memory_atlas(model, [shop.buy], policy=Policy(tools={"buy": {"*": "yes"}}), approve=approve) as atlas:
        await atlas.ask("buy tea")
    assert shop.bought == []


async def test_edited_arguments_are_valid_only_in_the_directory_of_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def approve(question: Question) -> Answer:
        monkeypatch.chdir(tmp_path)
        return Answer("once", arguments={"item": "tea", "count": 2})

    shop = Shop()
    model = await _bought(shop, approve)
    assert shop.bought == []
    assert [(*each[:2], each[2]["cancelled"]) for each in _model_results(model)] == [("error", "declined", True)]


@pytest.mark.parametrize(
    "note",
    [object(), {1: "a"}, float("nan"), b"x", "\ud83d"],
    ids=["object", "key that is a number", "NaN", "bytes", "half a pair"],
)
async def test_edited_arguments_that_are_not_json_are_rejected(note: object) -> None:
    ran: list[Any] = []

    async def act(note: Any) -> None:
        """Act."""
        ran.append(note)

    def approve(question: Question) -> Answer:
        return Answer("once", arguments={"note": note})

    model = Scripted(calls("act", note="n"), says("Done."))
    async with in_memory_atlas(model, [tool(confirm=True)(act)], approve=approve) as atlas:
        await atlas.ask("go")
    assert ran == []
    assert [result.status for result in _results(model)] == ["error"]


def test_different_arguments_have_different_bindings() -> None:
    alike: list[Any] = [
        None,
        0,
        0.0,
        -0.0,
        False,
        1,
        1.0,
        True,
        "1",
        "",
        [],
        {},
        "é",
        "e\u0301",
        "ls",
        "ls ",
        "ls\u200b",
    ]
    hashes = {compute_binding("act", {"a": value}, "v", "/") for value in alike}
    assert len(hashes) == len(alike)
    both = {compute_binding("act", arguments, "v", "/") for arguments in ({"a": 1, "b": 2}, {"b": 2, "a": 1})}
    assert len(both) == 1
    for value in (float("nan"), float("inf"), b"AQ==", {1: 2}, (1, 2)):
        with pytest.raises(BadArguments, match="not plain JSON"):
            compute_binding("act", {"a": value}, "v", "/")


@pytest.mark.parametrize("other", ["agent", "user", "tenant", "session"])
async def test_standing_approval_covers_one_agent_user_and_tenant(other: str) -> None:
    asked: list[str] = []

    def approve(question: Question) -> str:
        asked.append(question.agent_id)
        return "always" if len(asked) == 1 else "no"

    approvals, shops = Approvals(approve), [Shop(), Shop()]
    for turn, shop in enumerate(shops):
        model = Scripted(calls("buy", item="tea"), says("Done."))
        agent = Agent(f"agent {turn if other == 'agent' else 0}", model=model, tools=[shop.buy])
        tenant, user = (f"{kind} {turn if other == kind else 0}" for kind in ("tenant", "user"))
        async with Atlas([agent], approve=approvals, tenant=tenant) as atlas:
            await atlas.ask("buy", user=user, session=f"session {turn}")
    assert [len(shop.bought) for shop in shops] == [1, 1 if other == "session" else 0]


async def test_approval_in_an_unnamed_session_does_not_cover_other_sessions() -> None:
    shop, answers = Shop(), ["session", "no"]

    def approve(question: Question) -> str:
        return answers.pop(0)

    model = Scripted(calls("buy", item="tea"), says("ok"), calls("buy", item="tea"), says("ok"))
    nameless = Conversation()
    nameless.id = ""
    async with in_memory_atlas(model, [shop.buy], approve=approve) as atlas:
        await atlas.ask("buy", session=nameless)
        await atlas.ask("buy", session="another")
    assert len(shop.bought) == 1


@pytest.mark.parametrize("by", ["Ana ", "ANA", "assistant", " "])
async def test_two_person_rule_ignores_case_and_rejects_the_agent(by: str) -> None:
    def approve(question: Question) -> Answer:
        return Answer("once", by=by)

    shop, model = Shop(), Scripted(calls("buy", item="tea"), says("Done."))
    async with in_memory_atlas(model, [shop.buy], approve=Approvals(approve, two_person=True)) as atlas:
        await atlas.ask("buy", user="ana")
    assert shop.bought == []


async def test_standing_approval_does_not_cover_calls_of_the_approver() -> None:
    shop, asked = Shop(), list[str]()

    def approve(question: Question) -> Answer:
        asked.append(question.asked_by)
        return Answer("always", by="ben")

    model = Scripted(calls("buy", item="tea"), says("ok"), calls("buy", item="tea"), says("ok"))
    async with in_memory_atlas(model, [shop.buy], approve=Approvals(approve, two_person=True)) as atlas:
        await atlas.ask("buy", user="ana")
        await atlas.ask("buy", user="ben")
    assert asked == ["ana", "ben"]
    assert len(shop.bought) == 1


async def test_checked_call_does_not_run_if_the_policy_now_requires_approval() -> None:
    shop, given = Shop(confirm=False), list[str]()

    @tool(confirm=True)
    async def give(to: str) -> str:
        """Give something away."""
        given.append(to)
        return "given"

    def approve(question: Question) -> bool:
        atlas.policy = Policy(tools={"buy": {"*": "ask"}, "give": {"*": "yes"}})
        return False

    model = Scripted(calls("buy", item="tea") + calls("give", to="ana"), says("Done."))
    policy = Policy(tools={"buy": {"*": "yes"}, "give": {"*": "yes"}})
    async with in_memory_atlas(model, [shop.buy, give], policy=policy, approve=approve) as atlas:
        await atlas.ask("go")
    assert (shop.bought, given) == ([], [])


# Retries that must not happen


async def test_every_try_gets_the_approved_arguments() -> None:
    clock, seen = VirtualClock(), list[list[str]]()

    @tool
    async def act(items: list[str]) -> str:
        """Act."""
        seen.append(list(items))
        items.append("one more")
        if len(seen) < 3:
            raise Transient("busy")
        return "done"

    async with in_memory_atlas(Scripted(calls("act", items=["a"]), says("ok")), [act], clock=clock) as atlas:
        stream = atlas.send("go")
        await clock.advance(20)
        await _ended(stream)
    assert seen == [["a"]] * 3


@pytest.mark.parametrize("late", [True, False], ids=["timed out", "cancelled"])
async def test_stopped_tool_is_not_retried(late: bool) -> None:
    tried, started = list[str](), asyncio.Event()

    @tool(timeout=0.05 if late else 30)
    async def act() -> None:
        """Act, and report when stopped that nothing has happened."""
        tried.append("tried")
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise Transient("interrupted", retry_after=0) from None

    async with in_memory_atlas(Scripted(calls("act"), says("ok")), [act]) as atlas:
        stream = atlas.send("go")
        await started.wait()
        if not late:
            stream.cancel()
        await _ended(stream)
        await run_ready_tasks()
        (result,) = atlas.conversation().messages[2].tool_results
    assert tried == ["tried"]
    assert (result.status, result.error) == ("unknown", "timeout" if late else "unknown")


@pytest.mark.parametrize(("effect", "status"), [("pure", "error"), ("keyed", "unknown")])
async def test_failed_retry_does_not_hide_that_an_earlier_try_may_have_happened(effect: Effect, status: str) -> None:
    clock, errors = VirtualClock(), [ConnectionResetError("gone"), ToolFailed("no such account")]

    @tool(effect=effect)
    async def pay() -> None:
        """Pay."""
        raise errors.pop(0)

    model = Scripted(calls("pay"), says("ok"))
    async with in_memory_atlas(model, [pay], clock=clock) as atlas:
        stream = atlas.send("go")
        await clock.advance(20)
        await _ended(stream)
    assert [result.status for result in _results(model)] == [status]
    assert "no such account" in _results(model)[0].result


async def test_call_stopped_before_its_first_step_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    class SecondIsDown(MemoryAudit):
        asked = 0

        async def ready(self) -> None:
            self.asked += 1
            if self.asked == 2:
                raise OSError("down")

    shop, audit = Shop(confirm=False), SecondIsDown()
    model = Scripted(calls("buy", item="tea") + calls("buy", item="milk"))
    async with in_memory_atlas(model, [shop.buy], audit=audit) as atlas, measure_loop_time() as spent:
        with pytest.raises(OSError, match="down"):
            await atlas.ask("go")
        assert spent.seconds < scaled(0.9)
    assert "abandoned" not in caplog.text
    assert len(await audit.records()) == 2


async def test_nested_calls_do_not_wait_for_the_slots_of_their_callers() -> None:
    arrived, full = list[int](), asyncio.Event()

    @tool(effect="pure")
    async def leaf() -> str:
        """Answer."""
        return "leaf"

    @tool(timeout=TIMEOUT)
    async def delegate(n: int) -> str:
        """Ask another agent, once all slots of the process are taken."""
        arrived.append(n)
        if len(arrived) == 64:
            full.set()
        await full.wait()
        return (await in_memory_atlas(Scripted(calls("leaf"), says("leaf")), [leaf]).ask("go")).text

    models = [Scripted(_round("delegate", 5), says("ok")) for _ in range(13)]
    agents = [Agent(f"a{place}", model=model, tools=[delegate]) for place, model in enumerate(models)]
    async with Atlas(agents) as atlas, asyncio.timeout(TIMEOUT):
        for stream in [atlas.send("go", agent_id=agent.id, session=agent.id) for agent in agents]:
            await stream.reply()
    assert [result.result for model in models for result in _results(model)] == ["leaf"] * 65


def _round(name: str, count: int) -> Reply:
    reply = calls(name, n=0)
    for n in range(1, count):
        reply = reply + calls(name, n=n)
    return reply


async def test_function_runs_in_the_directory_of_the_call_after_waiting_for_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, workers = os.getcwd(), Workers(warm=1, at_most=1)
    try:
        first = asyncio.create_task(workers.run(time.sleep, {}, positional=[0.3]))
        await asyncio.sleep(0)
        second = asyncio.create_task(workers.run(os.getcwd, {}))
        await asyncio.sleep(0)
        monkeypatch.chdir(tmp_path)
        async with asyncio.timeout(TIMEOUT):
            await first
            assert await second == here
    finally:
        await workers.close()


async def test_function_does_not_run_if_its_directory_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers(warm=1, at_most=1)
    gone = tmp_path / "gone"
    gone.mkdir()
    try:
        await workers.run(os.getcwd, {})
        first = asyncio.create_task(workers.run(time.sleep, {}, positional=[0.2]))
        await asyncio.sleep(0)
        monkeypatch.chdir(gone)
        second = asyncio.create_task(workers.run(os.getcwd, {}))
        await asyncio.sleep(0)
        monkeypatch.chdir(tmp_path)
        gone.rmdir()
        async with asyncio.timeout(TIMEOUT):
            await first
            with pytest.raises(TypeError, match="cannot unpickle the call in a worker"):
                await second
    finally:
        await workers.close()


# Results and errors that must end only their call


class NoClass:
    """An object whose `__class__` raises."""

    @property
    def __class__(self) -> Any:
        raise KeyboardInterrupt


class Dumps:
    """An object that looks like a pydantic model."""

    def model_dump(self, mode: str) -> Any:
        raise SystemExit(3)


class ExitingMessage(ToolFailed):
    """An error whose message raises SystemExit."""

    def __str__(self) -> str:
        raise SystemExit(3)


def _deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("result", "error"),
    [(NoClass(), "internal"), (Dumps(), "internal"), (ExitingMessage("x"), "failed"), (_deep(600), "failed")],
    ids=["no class", "dump", "words", "600 levels"],
)
async def test_odd_results_and_errors_end_only_their_call(result: Any, error: str) -> None:
    @tool
    async def act() -> Any:
        """Act."""
        if isinstance(result, Exception):
            raise result
        return result

    model, audit = Scripted(calls("act"), says("Alive.")), MemoryAudit()
    async with in_memory_atlas(model, [act], audit=audit) as atlas:
        assert (await atlas.ask("go")).text == "Alive."
    assert [each[:2] for each in _model_results(model)] == [("error", error)]
    assert len(await audit.records()) == 1


def _breaks(value: int) -> int:
    raise KeyError("a typo in a validator")


async def test_failing_validator_does_not_affect_other_calls() -> None:
    @tool
    async def odd(n: Annotated[int, pydantic.AfterValidator(_breaks)]) -> int:
        """Return an odd number."""
        return n

    shop, audit = Shop(confirm=False), MemoryAudit()
    model = Scripted(calls("odd", n=1) + calls("buy", item="tea"), says("Done."))
    async with in_memory_atlas(model, [odd, shop.buy], audit=audit) as atlas:
        await atlas.ask("go")
    assert _model_results(model) == [("error", "internal", NEUTRAL), ("ok", None, "bought")]
    assert len(await audit.records()) == 2


@pytest.mark.parametrize(
    "text",
    ["[" * 900 + "]" * 900, '["\\ud800"]', f"[{'9' * 5000}]", '{"a": ' * 300 + "1" + "}" * 300, "\ud800", object()],
    ids=["deep", "half a pair", "large number", "deep objects", "half a pair itself", "no JSON"],
)
async def test_odd_arguments_do_not_prevent_the_audit_row(text: object) -> None:
    @tool
    async def act(text: Any) -> str:
        """Act."""
        return "done"

    audit = MemoryAudit()
    async with in_memory_atlas(Scripted(calls("act", text=text), says("Done.")), [act], audit=audit) as atlas:
        assert (await atlas.ask("go")).text == "Done."
    rows = await audit.records()
    assert [row.entry.success for row in rows] == [isinstance(text, str)]
    assert verify(rows) is None


# Limits


class ShiftedWallClock(VirtualClock):
    """A clock whose wall time the test shifts."""

    set_by = 0.0

    def time(self) -> float:
        return super().time() + self.set_by


@pytest.mark.parametrize("days", [1, -1])
async def test_setting_the_clock_does_not_reset_the_daily_limit(days: int) -> None:
    shop, clock = Shop(confirm=False), ShiftedWallClock()
    model = Scripted(calls("buy", item="tea"), says("ok"), calls("buy", item="tea"), says("ok"))
    async with in_memory_atlas(model, [shop.buy], clock=clock, limits=Limits(per_day=1)) as atlas:
        await atlas.ask("buy")
        clock.set_by = days * 86_400.0
        await atlas.ask("buy")
    assert len(shop.bought) == 1


def test_tick_limiter_continues_in_another_event_loop() -> None:
    shop = Shop(confirm=False)
    model = Scripted(*(reply for _ in range(5) for reply in (calls("buy", item="tea"), says("ok"))))
    atlas = in_memory_atlas(model, [shop.buy], limits=Limits(per_tick=2, tick=0.05))

    async def turn() -> None:
        async with asyncio.timeout(TIMEOUT):
            await atlas.ask("buy")

    for _ in range(5):
        asyncio.run(turn())
    assert len(shop.bought) == 5


class ManualClock(VirtualClock):
    """A clock that fires its timer on demand."""

    fire: Callable[[], object]

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Any:
        self.fire = callback
        return super().call_later(seconds, callback)


async def test_tick_slot_of_a_cancelled_call_goes_to_the_next() -> None:
    clock = ManualClock()
    ticks = TickLimiter(Ticker(clock, 5.0), 1)
    await ticks.acquire("a")
    second, third = (asyncio.create_task(ticks.acquire("a")) for _ in range(2))
    await asyncio.sleep(0)
    clock.fire()
    second.cancel()
    async with asyncio.timeout(TIMEOUT):
        await third
    assert second.cancelled()
    assert ticks.queue_length("a") == 0


async def test_slot_of_a_cancelled_waiter_goes_to_the_next() -> None:
    slots = Slots(1)
    await slots.acquire()
    first, second = (asyncio.create_task(slots.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    slots.release()
    async with asyncio.timeout(TIMEOUT):
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
    slots.release()
    assert slots.free == 1


# Audit rows must be written once


class SlowLog(MemoryAudit):
    """Waits for some iterations of the event loop, before or after it has written."""

    def __init__(self, *, before: int = 0, after: int = 0) -> None:
        super().__init__()
        self.before, self.after = before, after
        self.reached = asyncio.Event()

    async def append(self, entry: AuditEntry) -> AuditRecord:
        if self.before:
            self.reached.set()
            await run_ready_tasks(self.before)
        record = await super().append(entry)
        self.reached.set()
        await run_ready_tasks(self.after)
        return record


class HungLog(SlowLog):
    """Never writes."""

    async def append(self, entry: AuditEntry) -> AuditRecord:
        self.reached.set()
        await asyncio.Event().wait()
        return await super().append(entry)


@pytest.mark.parametrize("log", [{"before": 200}, {"after": 200}], ids=["before", "after"])
@pytest.mark.parametrize("case", ["done", "refused"])
async def test_turn_cancelled_while_its_row_is_written_has_one_row(log: dict[str, int], case: str) -> None:
    shop, audit = Shop(confirm=case == "refused"), SlowLog(**log)
    async with in_memory_atlas(Scripted(calls("buy", item="tea")), [shop.buy], audit=audit) as atlas:
        stream = atlas.send("go")
        await audit.reached.wait()
        stream.cancel()
        await _ended(stream)
        (result,) = atlas.conversation().messages[-1].tool_results
    (row,) = await audit.records()
    assert (row.entry.meta["status"], result.status) == (("ok", "ok") if case == "done" else ("error", "error"))


async def test_hanging_audit_log_does_not_block_cancellation_and_unrecorded_calls_are_not_reported_as_done() -> None:
    shop, audit = Shop(confirm=False), HungLog()
    async with in_memory_atlas(Scripted(calls("buy", item="tea")), [shop.buy], audit=audit) as atlas:
        stream = atlas.send("go")
        await audit.reached.wait()
        async with measure_loop_time() as spent:
            stream.cancel()
            await _ended(stream)
            assert spent.seconds < scaled(1.5)
        (result,) = atlas.conversation().messages[-1].tool_results
        assert (shop.bought, result.status) == ([("tea", 1)], "unknown")


async def test_failing_audit_log_is_called_once() -> None:
    class Full(MemoryAudit):
        async def append(self, entry: AuditEntry) -> AuditRecord:
            await super().append(entry)
            raise OSError("the disk is full")

    shop, audit = Shop(confirm=False), Full()
    async with in_memory_atlas(Scripted(calls("buy", item="tea")), [shop.buy], audit=audit) as atlas:
        with pytest.raises(OSError, match="disk is full"):
            await atlas.ask("go")
        await asyncio.sleep(0)
        assert [result.status for result in atlas.conversation().messages[-1].tool_results] == ["unknown"]
    assert len(await audit.records()) == 1


class RandomDelayLog(MemoryAudit):
    """Waits a random time before it writes."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self._dice = dice

    async def append(self, entry: AuditEntry) -> AuditRecord:
        if self._dice.random() < 0.5:
            await run_ready_tasks(self._dice.randrange(40))
        record = await super().append(entry)
        if self._dice.random() < 0.5:
            await run_ready_tasks(self._dice.randrange(40))
        return record


def _unruly_tools(dice: random.Random, ran: list[int]) -> list[Tool]:
    async def nap(n: int) -> int:
        ran.append(n)
        await run_ready_tasks(dice.randrange(60))
        return n

    async def fail(n: int) -> None:
        ran.append(n)
        raise KeyError("a bug")

    async def leave(n: int) -> None:
        ran.append(n)
        raise SystemExit(n)

    async def cancel_itself(n: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return n

    async def swallow(n: int) -> str:
        with suppress(asyncio.CancelledError):
            await nap(n)
        return "swallowed"

    async def insist(n: int) -> None:
        try:
            await nap(n)
        except asyncio.CancelledError:
            raise Transient("again") from None

    functions = (nap, fail, leave, cancel_itself, swallow, insist)
    return [tool(confirm=dice.random() < 0.2)(function) for function in functions]


@asynccontextmanager
async def _rough_turn(seed: int) -> AsyncGenerator[tuple[Conversation, RandomDelayLog, list[int]]]:
    """Cancel a turn with many calls at a random moment, possibly twice."""
    dice, ran, talk = random.Random(seed), list[int](), Conversation()
    tools, audit = _unruly_tools(dice, ran), RandomDelayLog(dice)
    names = [*(each.name for each in tools), "missing"]
    reply = calls("nap", n=-1)
    for n in range(dice.randint(0, 12)):
        reply = reply + calls(dice.choice(names), n=n)
    limits = Limits(per_tick=dice.choice([None, 4]), tick=0.01, per_day=dice.choice([None, 6]))
    model, agent = Scripted(reply, says("Done.")), {"parallel_tools": dice.random() < 0.7}

    def approve(question: Question) -> bool:
        return dice.random() < 0.7

    async with in_memory_atlas(model, tools, approve=approve, audit=audit, limits=limits, agent=agent) as atlas:
        task = asyncio.create_task(atlas.ask("go", session=talk))
        for _ in range(dice.choice([0, 1, 1, 2])):
            await run_ready_tasks(dice.randrange(200))
            task.cancel()
        async with asyncio.timeout(TIMEOUT):
            with suppress(asyncio.CancelledError):
                await task
        yield talk, audit, ran


@pytest.mark.parametrize("seed", range(25))
async def test_each_call_of_a_cancelled_turn_has_one_result_and_one_row_and_stops(seed: int) -> None:
    async with _rough_turn(seed) as (talk, audit, ran):
        at_the_end = list(ran)
    asked = sorted(call.id for message in talk.messages for call in message.tool_calls)
    rows = await audit.records()
    assert is_paired(talk.messages)
    assert sorted(row.entry.meta["call_id"] for row in rows) == asked
    assert verify(rows) is None
    await run_ready_tasks(200)
    assert ran == at_the_end
    assert process_slots().free == 64


# Names of agents, groups and users


def test_agent_named_like_a_group_or_user_gets_none_of_their_grants() -> None:
    policy = Policy(
        tools={"post": {"publishers": "yes"}},
        grants={"publishers": ["x:post"], "user:ana": ["mail:*"], "*": ["time:read"]},
        groups={"publishers": ["kelly"]},
    )
    for agent_id, role in (("publishers", ""), ("user:ana", ""), ("eve", "user:ana"), ("eve", "*"), ("*", "")):
        for needs in ("x:post", "mail:send"):
            assert policy.verdict("act", Actor(agent_id, role), needs=[needs]).cell == "no", (agent_id, role, needs)
        assert policy.verdict("post", Actor(agent_id, role)).cell == "no", (agent_id, role)
    assert policy.verdict("post", Actor("kelly")).cell == "yes"
    assert policy.verdict("post", Actor("eve", "publishers")).cell == "yes"
    assert policy.verdict("act", Actor("eve", user="ana"), needs=["mail:send"]).cell == "yes"


def test_text_instead_of_a_list_of_names_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"grants\.ana must be a list of names"):
        Policy(grants={"ana": "file:*"})
    with pytest.raises(ConfigError, match=r"groups\.staff must be a list of names"):
        Policy(groups={"staff": "ana"})


def test_cell_for_a_user_is_rejected() -> None:
    with pytest.raises(ConfigError, match="users can only have grants"):
        Policy(tools={"act": {"*": "yes", "user:ana": "no"}})


# Secrets in unusual forms

CANARY = "kanarien/vogel+7731"


async def test_secret_is_redacted_in_progress_validation_errors_names_and_logs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", CANARY)

    def picky(value: int) -> int:
        raise ValueError(f"only {CANARY} is right")

    @tool
    async def check(n: Annotated[int, pydantic.AfterValidator(picky)]) -> int:
        """Check."""
        return n

    @tool(confirm=True)
    async def ask(password: str) -> str:
        """Ask."""
        return password

    @tool
    async def work(context: ToolContext) -> str:
        """Work."""
        context.progress(f"using {CANARY}")
        return "done"

    def approve(question: Question) -> bool:
        raise RuntimeError(f"cannot show {question.arguments}") from ValueError(CANARY)

    def listen(event: Any) -> None:
        raise RuntimeError(f"cannot bear {CANARY}")

    replies = calls("check", n=1) + calls("ask", password="hunter-22") + calls("work") + calls(f"find {CANARY}")
    model, audit = Scripted(replies, says("Done.")), MemoryAudit()
    async with in_memory_atlas(model, [check, ask, work], approve=approve, audit=audit) as atlas:
        atlas.on("tool:called", listen)
        stream = atlas.send("go")
        events = [event async for event in stream]
    progress = [event.message for event in events if event.type == "tool:progress"]
    assert progress == [f"using {REDACTED}"]
    seen = str(_model_results(model)) + caplog.text + msgspec.json.encode(await audit.records()).decode()
    assert CANARY not in seen
    assert "hunter-22" not in seen
    assert f"only {REDACTED} is right" in seen
    assert "cannot bear" in caplog.text


async def test_secret_field_of_a_result_is_redacted_in_the_audit_row() -> None:
    @tool
    async def settings(as_text: bool) -> Any:
        """Read the settings."""
        found = {"db_pass": "one-one", "deep": [{"apiKey": "two-two"}], "pairs": [["cookie", "three-three"]]}
        return msgspec.json.encode(found).decode() if as_text else found

    audit = MemoryAudit()
    replies = calls("settings", as_text=False) + calls("settings", as_text=True)
    async with in_memory_atlas(Scripted(replies, says("ok")), [settings], audit=audit) as atlas:
        await atlas.ask("go")
    rows = msgspec.json.encode(await audit.records()).decode()
    assert [word for word in ("one-one", "two-two", "three-three") if word in rows] == []


PEM = "-----BEGIN X-----\nMIIEabcdefghijklmnop\nQRSTUVWXYZ0123456789\n-----END X-----"


@pytest.mark.parametrize(
    "text",
    [
        quote(CANARY),
        quote(CANARY, safe=""),
        CANARY.encode().hex(),
        *(base64.b64encode(f"{before}{CANARY}!".encode()).decode() for before in ("", "u:", "us:", "use:")),
        base64.urlsafe_b64encode(CANARY.encode()).decode(),
        "the line QRSTUVWXYZ0123456789 of it",
        "the password tiger-77 was wrong",
    ],
)
def test_known_secret_is_redacted_in_encoded_and_partial_form(text: str) -> None:
    environment = {"A_KEY": CANARY, "PEM_KEY": PEM, "DATABASE_URL": "postgresql://ana:tiger-77@db.example/shop"}
    assert REDACTED in str(Redactor(environment=environment).remove_known(text))


@pytest.mark.parametrize(
    "text",
    [
        "GET https://x.example/?api_key=abcdefgh&page=2 was refused",
        "{'password': 'abc def', 'page': 2}",
        'settings: {"client_secret": "abc def", "page": 2}',
        "redis://:abcdefgh@cache.example",
        "Authorization: Basic dXNlcjphYmNkZWY=",
    ],
)
def test_secret_named_in_a_text_is_redacted(text: str) -> None:
    hidden = Redactor(environment={}).text(text)
    assert REDACTED in hidden
    assert not any(word in hidden for word in ("abc", "dXNl"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AUTH_MODE", "production"),
        ("DB_CONN", "localhost"),
        ("MAX_TOKENS", "128000"),
        ("COOKIE_DOMAIN", "shop.example"),
        ("TOKEN_URL", "https://auth.example/token"),
        ("KEY_FILE", "/run/secrets/key"),
        ("POSTGRES_PASSWORD", "postgres"),
    ],
)
def test_common_values_of_the_environment_stay_in_results(name: str, value: str) -> None:
    text = f"it says {value} there"
    assert Redactor(environment={name: value}).remove_known({"a": [text]}) == {"a": [text]}


@pytest.mark.parametrize(
    "text",
    [
        "only basic information is available",
        "password: Input should be a valid string",
        "no row with key=42",
        "120 tokens=5 keyboard=qwerty http://h.example:80/a@b",
    ],
)
def test_text_without_secrets_stays_unchanged(text: str) -> None:
    assert Redactor(environment={}).text(text) == text


def test_json_in_a_string_without_secrets_stays_unchanged() -> None:
    written = '{"b":1,  "a": [1.0, "é"]}'
    assert Redactor(environment={}).value({"text": written}) == {"text": written}


async def test_key_from_a_file_is_a_known_secret(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=plain-looking-key\nOPENAI_BASE_URL=http://127.0.0.1:9/v1\n")
    registry = Registry(Environment({}, dotenv=tmp_path / ".env"))

    @tool
    async def act() -> None:
        """Act."""
        raise ToolFailed("the key plain-looking-key was refused")

    model = Scripted(calls("act"), says("ok"))
    agents = [Agent("real", model="openai/gpt"), Agent("scripted", model=model, tools=[act])]
    async with Atlas(agents, registry=registry) as atlas:
        stream = atlas.send("go", agent_id="real")
        stream.cancel()
        await _ended(stream)
        await atlas.ask("go", agent_id="scripted", session="another")
    assert _results(model)[0].result == f"the key {REDACTED} was refused"


# Large data must not block the event loop


def _cpu(work: Callable[[], object]) -> float:
    begun = time.process_time()
    with suppress(BadArguments, BadResult):
        work()
    return time.process_time() - begun


async def _sort(items: list[str]) -> str:
    """Sort."""
    return ""


@pytest.mark.parametrize(
    "work",
    [
        lambda: Redactor(environment={}).text("eyJ-" * 25_000),
        lambda: Redactor(environment={f"A{n}_KEY": os.urandom(16).hex() for n in range(40)}).remove_known(
            "a b " * 250_000
        ),
        lambda: to_json_value([0] * 3_000_000),
        lambda: tool(_sort).check({"items": [0] * 200_000}),
    ],
    ids=["looks", "known", "result", "validation"],
)
def test_a_megabyte_is_redacted_fast(work: Callable[[], object]) -> None:
    assert min(_cpu(work) for _ in range(2)) < cpu_factor()


def test_verdicts_for_200_tools_are_fast() -> None:
    groups = {f"group {n}": [f"agent {m}" for m in range(20)] for n in range(50)}
    policy = Policy(groups=groups, grants={group: ["file:*", "mail:read"] for group in groups})
    needs = ("file:read", "mail:send")

    def judge() -> None:
        for n in range(200):
            policy.verdict(f"tool {n}", Actor("agent 3", "clerk"), needs=needs)

    judge()
    assert min(_cpu(judge) for _ in range(3)) < 0.01 * cpu_factor()
