"""The fault simulator: seeded faults and crashes of an agent, and proof that it detects lost and repeated effects."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from atlas_agents import Agent, ConfigError, ProviderError, ToolContext, tool
from atlas_agents.builtin_tools.team import delegate_task
from atlas_agents.core.aio import Clock
from atlas_agents.core.store import AcceptRun, AddJournal, AddMessage, Write
from atlas_agents.guardrails import personal_data
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import (
    FaultKind,
    FaultSimulator,
    Scripted,
    Simulation,
    calls,
    fails,
    fault_simulator,  # noqa: F401
    faults,
    says,
)
from atlas_agents.testing.faults import FAULT_KINDS
from checks import TIMEOUT


def buy() -> Scripted:
    return Scripted(calls("charge", amount=5), says("Done."))


def shop(simulation: Simulation) -> Agent:
    @tool(effect="keyed")
    async def charge(amount: int, context: ToolContext) -> str:
        """Charge the card."""
        simulation.ledger.record("charge", key=context.idempotency_key)
        return f"charged {amount}"

    return Agent("shop", model=buy(), tools=[charge])


def careless_shop(simulation: Simulation) -> Agent:
    """Its tool promises to be keyed, and does not pass the key on."""

    @tool(effect="keyed")
    async def charge(amount: int) -> str:
        """Charge the card."""
        simulation.ledger.record("charge")
        return f"charged {amount}"

    return Agent("shop", model=buy(), tools=[charge])


def test_effect_of_a_keyed_tool_happens_once_whatever_happens(fault_simulator: FaultSimulator) -> None:  # noqa: F811
    report = fault_simulator.run(shop, "Buy it", seeds=8)
    report.raise_if_failed(allow_unknown=False)
    assert report.ok and len(report.cases) == 1 + report.points + 8
    crashed = [case for case in report.cases if case.case.startswith("crash@")]
    assert all(case.processes == 2 for case in crashed)
    assert all(len(case.effects) == 1 for case in crashed)


def test_store_in_a_file_is_waited_for_after_other_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_REAL_WAIT", 0.0)  # as if it were used up by a thread that never does anything
    FaultSimulator().run(shop, "Buy it", seeds=0, store="sqlite").raise_if_failed(allow_unknown=False)


def test_tool_that_ignores_its_idempotency_key_is_reported() -> None:
    report = FaultSimulator().run(careless_shop, "Buy it", seeds=0)
    assert report.by_subject()["charge"]["repeated"] > 0
    case = report.failures[0].case
    with pytest.raises(AssertionError, match=r"repeated: charge: .*happened 2 times") as failure:
        report.raise_if_failed()
    assert f"only='{case}'" in str(failure.value) and "-> crash" in str(failure.value)


def test_failing_seed_replays_exactly() -> None:
    report = FaultSimulator(seed=100).run(careless_shop, "Buy it", seeds=40, crash_everywhere=False)
    failed = report.failures[0]
    assert failed.case.startswith("seed=")
    again = FaultSimulator().run(careless_shop, "Buy it", only=failed.case)
    assert again.cases[1:] and again.failures[0].trace == failed.trace
    assert again.failures[0].findings == failed.findings


def two_looks(simulation: Simulation) -> Agent:
    async def look(name: str) -> str:
        """Look something up."""
        await simulation.clock.sleep(len(name))
        return name

    model = Scripted(calls("look", name="a") + calls("look", name="bcd"), says("Seen."), says("Again."))
    return Agent("shop", model=model, tools=[tool(look, effect="pure")])


def test_same_seed_gives_the_same_schedule() -> None:
    first, second = [FaultSimulator().run(two_looks, ["One", "Two"], seeds=8) for _ in range(2)]
    assert [case.trace for case in first.cases] == [case.trace for case in second.cases]
    assert len({case.trace for case in first.cases}) > first.points
    first.raise_if_failed()


class ForgetfulStore(MemoryStore):
    """Acknowledges the commit of an outcome and does not store it."""

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        if any(isinstance(write, AddJournal) and write.kind == "outcome" for write in writes):
            return [None] * len(writes)
        return await super().commit(tenant, writes)


def test_store_that_loses_an_acknowledged_write_is_reported() -> None:
    def forgetful(clock: Clock) -> MemoryStore:
        return ForgetfulStore(clock=clock)

    with pytest.raises(ConfigError, match="lost: journal: the store acknowledged a step of kind 'outcome'"):
        FaultSimulator().run(shop, "Buy it", store=forgetful)


class StoreWithoutSync(MemoryStore):
    """Loses the newest commit in a crash: the ledger survives, the store's last write does not."""

    _late: tuple[str, Sequence[Write]] | None = None

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        kinds = [write.kind for write in writes if isinstance(write, AddJournal)]
        if "resumed" in kinds:
            self._late = None
        if self._late is not None:
            late, self._late = self._late, None
            await super().commit(*late)
        if kinds == ["outcome"]:
            self._late = tenant, writes
            return [None] * len(writes)
        return await super().commit(tenant, writes)


def test_store_that_loses_the_last_write_in_a_crash_is_reported() -> None:
    report = FaultSimulator().run(shop, "Buy it", store=lambda clock: StoreWithoutSync(clock=clock), seeds=0)
    assert report.by_subject()["journal"]["lost"] > 0


@pytest.mark.parametrize("text", ["hello", "Write to ana@example.org"])
def test_message_that_a_model_repeats_or_a_guardrail_changes_is_neither_repeated_nor_lost(text: str) -> None:
    def parrot(simulation: Simulation) -> Agent:
        return Agent("parrot", model=Scripted(says(text), says("Write to [email]")))

    messages = [text, "Write to cy@example.org"]
    report = FaultSimulator().run(parrot, messages, interceptors=[personal_data()], seeds=5)
    report.raise_if_failed(allow_unknown=False)


class RepeatingStore(MemoryStore):
    """Stores each message of a user twice."""

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        results = await super().commit(tenant, writes)
        sent = [write for write in writes if isinstance(write, AddMessage) and b'"user"' in write.body]
        await super().commit(tenant, [msgspec.structs.replace(write, id=f"{write.id}-2") for write in sent])
        return results


class LosingStore(MemoryStore):
    """Acknowledges messages of a user and does not store them."""

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        kept = [write for write in writes if not (isinstance(write, AddMessage) and b'"user"' in write.body)]
        results = iter(await super().commit(tenant, kept))
        return [next(results) if write in kept else None for write in writes]


class KeylessStore(MemoryStore):
    """Ignores idempotency keys."""

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        keyless = [
            msgspec.structs.replace(each, idempotency_key="") if isinstance(each, AcceptRun) else each
            for each in writes
        ]
        return await super().commit(tenant, keyless)


@pytest.mark.parametrize(
    ("store", "finding"),
    [
        (RepeatingStore, "repeated: message: message 1 is stored 2 times: 'Write to [email]'"),
        (LosingStore, "lost: message: message 1 was accepted and is not stored: 'Write to [email]'"),
    ],
)
def test_store_that_repeats_or_loses_a_message_is_reported(store: type[MemoryStore], finding: str) -> None:
    agent = Agent("clerk", model=Scripted(says("Write to [email]")))

    def create(clock: Clock) -> MemoryStore:
        return store(clock=clock)

    with pytest.raises(ConfigError, match=re.escape(finding)):
        FaultSimulator().run(agent, "Write to ana@example.org", store=create, interceptors=[personal_data()])


def test_store_that_ignores_idempotency_keys_is_reported() -> None:
    def clerk(simulation: Simulation) -> Agent:
        return Agent("clerk", model=Scripted(says("Hi."), says("Hi.")))

    report = FaultSimulator().run(clerk, "Hello", seeds=0, store=lambda clock: KeylessStore(clock=clock))
    assert report.by_subject()["message"]["repeated"] > 0


def test_tool_that_reports_success_too_early_is_reported() -> None:
    def hasty(simulation: Simulation) -> Agent:
        started: list[asyncio.Task[None]] = []

        async def send_later() -> None:
            await simulation.clock.sleep(10)
            simulation.ledger.record("mail")

        @tool
        async def mail() -> str:
            """Send a mail."""
            started.append(asyncio.create_task(send_later()))
            return "sent"

        @tool(effect="pure")
        async def wait() -> str:
            """Wait for the mail."""
            await asyncio.gather(*started)
            return "done"

        return Agent("shop", model=Scripted(calls("mail"), calls("wait"), says("Sent.")), tools=[mail, wait])

    report = FaultSimulator().run(hasty, "Send it", seeds=0, check=_sent_once)
    assert report.by_subject()["mail"]["lost"] > 0


def _sent_once(simulation: Simulation) -> None:
    assert simulation.ledger.count("mail") <= 1, "sent twice"


def test_unsafe_call_that_a_crash_interrupts_is_unknown_and_does_not_run_again() -> None:
    def mailing(simulation: Simulation) -> Agent:
        @tool
        def mail(to: str) -> str:
            """Send a mail."""
            return f"sent to {to}"

        return Agent("shop", model=Scripted(calls("mail", to="Ann"), says("Sent.")), tools=[mail])

    report = FaultSimulator().run(mailing, "Write to Ann", seeds=5)
    report.raise_if_failed()
    counts = report.by_subject()["mail"]
    assert counts["unknown"] > 0 and counts["repeated"] == counts["lost"] == 0
    with pytest.raises(AssertionError, match="unknown: mail"):
        report.raise_if_failed(allow_unknown=False)


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_kind_of_fault_is_injected_and_survived(kind: FaultKind) -> None:
    report = FaultSimulator().run(shop, "Buy it", seeds=8, crash_everywhere=False, faults=[kind])
    assert any(f"-> {kind}" in line for case in report.cases for line in case.trace)
    report.raise_if_failed()


def test_hours_of_waiting_take_no_time() -> None:
    def slow(simulation: Simulation) -> Agent:
        @tool(timeout=7200, effect="pure")
        async def wait() -> str:
            """Wait an hour."""
            await simulation.clock.sleep(3600)
            return "done"

        return Agent("shop", model=Scripted(calls("wait"), says("Done.")), tools=[wait])

    started = time.monotonic()
    FaultSimulator().run(slow, "Wait", seeds=5).raise_if_failed()
    assert time.monotonic() - started < TIMEOUT


def test_failed_check_of_the_user_is_reported() -> None:
    def check(simulation: Simulation) -> None:
        assert simulation.ledger.count("charge") == 0, "the card was charged"

    with pytest.raises(ConfigError, match="check: your check: the card was charged"):
        FaultSimulator().run(shop, "Buy it", check=check)


def test_state_of_the_user_survives_a_crash_and_agents_do_not() -> None:
    built: list[int] = []

    def counting(simulation: Simulation) -> Agent:
        simulation.state["starts"] = simulation.state.get("starts", 0) + 1
        built.append(simulation.state["starts"])
        return shop(simulation)

    report = FaultSimulator().run(counting, "Buy it", only="crash@3")
    assert built == [1, 1, 1, 2] and report.cases[1].processes == 2


async def test_simulation_in_a_running_event_loop_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="call it in a sync test"):
        FaultSimulator().run(shop, "Buy it")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "seed=x"}, "unknown case 'seed=x': expected a name from a report"),
        ({"only": "later"}, "unknown case 'later'"),
        ({"faults": ["flood"]}, "unknown fault 'flood': expected some of crash, model_error"),
    ],
)
def test_wrong_argument_is_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FaultSimulator().run(shop, "Buy it", **options)


def test_real_model_is_never_called() -> None:
    agent = Agent("shop", model="openai/gpt-5.2")
    with pytest.raises(ConfigError, match=r"a simulation does not call 'openai/gpt-5\.2': pass model=Scripted"):
        FaultSimulator().run(agent, "Buy it")
    FaultSimulator().run(agent, "Buy it", model=Scripted(says("Hello.")), seeds=3).raise_if_failed()


def test_conversation_that_fails_without_faults_is_an_error() -> None:
    with pytest.raises(ConfigError, match="fails without any fault: the scripted model has 0 replies"):
        FaultSimulator().run(Agent("shop", model=Scripted()), "Buy it")


def test_importing_the_helpers_does_not_import_pytest() -> None:
    code = "import atlas_agents.testing, sys; raise SystemExit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=TIMEOUT, check=False).returncode == 0


class Newsroom:
    """An editor that delegates to a writer, whose tool has an effect. Agents are built again after each crash."""

    def __init__(self, *, careless: bool = False) -> None:
        self.careless = careless

    def __call__(self, simulation: Simulation) -> list[Agent]:
        @tool(effect="keyed")
        async def publish(text: str, context: ToolContext) -> str:
            """Publish a text."""
            simulation.ledger.record("publish", key="" if self.careless else context.idempotency_key)
            return "published"

        task = calls("delegate_task", target_agent="writer", task_description="Write about tea.")
        editor = Agent("editor", model=Scripted(task, says("Delegated."), says("It is out.")), tools=[delegate_task])
        writer = Agent("writer", model=Scripted(calls("publish", text="Tea."), says("Written.")), tools=[publish])
        return [editor, writer]


def test_delegated_task_and_its_effects_survive_crashes_at_every_point() -> None:
    report = FaultSimulator().run(Newsroom(), "Have it written", seeds=3)
    report.raise_if_failed()
    whole = report.cases[0]
    assert [effect.name for effect in whole.effects] == ["delegate_task", "publish"]
    crashed = [case for case in report.cases if case.case.startswith("crash@")]
    assert len(crashed) == report.points > 30
    assert {case.case for case in crashed if [effect.name for effect in case.effects].count("publish") != 1} == set()


def test_repeated_effect_in_a_delegated_task_is_reported() -> None:
    report = FaultSimulator().run(Newsroom(careless=True), "Have it written", seeds=0)
    assert {finding.subject for case in report.failures for finding in case.failures} == {"publish"}
    assert report.count("repeated") > 0 and report.count("lost") == 0


def test_delegated_task_that_fails_without_faults_is_an_error() -> None:
    def build(simulation: Simulation) -> list[Agent]:
        editor, _ = Newsroom()(simulation)
        return [editor, Agent("writer", model=Scripted(*[fails(ProviderError("no credit", "quota"))] * 20))]

    with pytest.raises(ConfigError, match=r"fails without any fault: task of writer: .*no credit"):
        FaultSimulator().run(build, "Have it written", seeds=0)
