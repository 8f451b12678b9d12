"""Approvals: answers, deadlines, edited arguments, and the binding to exactly what was shown."""

import asyncio
from collections import OrderedDict
from typing import Any

import pytest

from atlas_agents import Answer, Approvals, Conversation, Policy, Question, ToolResult, tool
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says
from checks import TIMEOUT


class Shop:
    """Counts what was bought."""

    def __init__(self) -> None:
        self.bought: list[tuple[str, int]] = []

        async def buy(item: str, count: int = 1) -> str:
            """Buy something."""
            self.bought.append((item, count))
            return f"bought {count} {item}"

        self.buy = tool(confirm=True)(buy)


class Person:
    """Gives its answers in turn, and records the questions."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.questions: list[Question] = []

    async def __call__(self, question: Question) -> object:
        self.questions.append(question)
        return self.answers.pop(0)


def _results(model: Scripted) -> list[ToolResult]:
    return [part for message in model.requests[-1].messages for part in message.parts if isinstance(part, ToolResult)]


async def test_question_shows_the_tool_and_the_exact_arguments() -> None:
    shop, person = Shop(), Person(True)
    model = Scripted(calls("buy", item="tea", count=2), says("Done."))
    async with in_memory_atlas(model, [shop.buy], approve=person) as atlas:
        await atlas.ask("buy tea", user="ana")
    (question,) = person.questions
    assert (question.title, question.message) == ("Confirm execution of buy", "About to execute:")
    assert (question.tool, question.arguments) == ("buy", {"item": "tea", "count": 2})
    assert (question.agent_id, question.asked_by, question.session) == ("assistant", "ana", "default")
    assert shop.bought == [("tea", 2)]


@pytest.mark.parametrize("answer", [False, None, "no", "yes please", 1, Answer("no"), "ONCE"])
async def test_any_answer_but_an_approval_denies_the_call(answer: object) -> None:
    shop = Shop()
    model = Scripted(calls("buy", item="tea"), says("Not bought."))
    async with in_memory_atlas(model, [shop.buy], approve=Person(answer)) as atlas:
        await atlas.ask("buy tea")
    assert shop.bought == []
    assert [(result.error, result.result) for result in _results(model)] == [("declined", {"cancelled": True})]


async def test_call_is_denied_if_no_one_can_be_asked() -> None:
    shop = Shop()
    async with in_memory_atlas(Scripted(calls("buy", item="tea"), says("Not bought.")), [shop.buy]) as atlas:
        await atlas.ask("buy tea")
    assert shop.bought == []


async def test_call_is_denied_after_the_deadline() -> None:
    shop, clock = Shop(), VirtualClock()

    async def silent(question: Question) -> bool:
        await asyncio.Event().wait()
        return True

    model = Scripted(calls("buy", item="tea"), says("Not bought."))
    async with in_memory_atlas(model, [shop.buy], clock=clock, approve=Approvals(silent, deadline=60)) as atlas:
        stream = atlas.send("buy tea")
        await clock.advance(59)
        assert len(model.requests) == 1
        await clock.advance(2)
        async with asyncio.timeout(TIMEOUT):
            await stream.reply()
    assert shop.bought == []


async def test_approval_once_is_valid_for_one_call() -> None:
    shop, person = Shop(), Person("once", "no")
    model = Scripted(calls("buy", item="tea"), calls("buy", item="tea"), says("One."))
    async with in_memory_atlas(model, [shop.buy], approve=person) as atlas:
        await atlas.ask("buy tea twice")
    assert shop.bought == [("tea", 1)]
    assert len(person.questions) == 2


async def test_approval_for_a_session_covers_only_that_call_and_session() -> None:
    shop, person = Shop(), Person("session", "no", "no")
    same, other = calls("buy", item="tea"), calls("buy", item="tea", count=2)
    model = Scripted(same, same, other, says("ok"), same, says("ok"))
    async with in_memory_atlas(model, [shop.buy], approve=person) as atlas:
        await atlas.ask("buy", session="one")
        await atlas.ask("buy", session="two")
    assert shop.bought == [("tea", 1), ("tea", 1)]
    assert [(question.session, question.arguments) for question in person.questions] == [
        ("one", {"item": "tea"}),
        ("one", {"item": "tea", "count": 2}),
        ("two", {"item": "tea"}),
    ]


async def test_approval_for_always_is_valid_until_the_policy_changes() -> None:
    shop, person = Shop(), Person("always", "no")
    same = calls("buy", item="tea")
    model = Scripted(same, says("ok"), same, says("ok"), same, says("ok"))
    policy = Policy(tools={"buy": {"*": "yes"}})
    async with in_memory_atlas(model, [shop.buy], approve=person, policy=policy) as atlas:
        await atlas.ask("buy", session="one")
        await atlas.ask("buy", session="two")
        atlas.policy = Policy(tools={"buy": {"*": "yes"}, "other": {"*": "no"}})
        await atlas.ask("buy", session="three")
    assert len(shop.bought) == 2
    assert len(person.questions) == 2


async def test_edited_arguments_are_validated_run_and_shown_to_the_model() -> None:
    shop = Shop()
    model = Scripted(calls("buy", item="tea", count=100), says("ok"))
    async with in_memory_atlas(
        model, [shop.buy], approve=Person(Answer("once", arguments={"item": "tea", "count": 1}))
    ) as atlas:
        await atlas.ask("buy")
        (row,) = await atlas.audit.records("default")
    assert shop.bought == [("tea", 1)]
    assert _results(model)[0].result == {"edited_arguments": {"item": "tea", "count": 1}, "result": "bought 1 tea"}
    assert (row.entry.meta["arguments"], row.entry.meta["edited"]) == ({"item": "tea", "count": 1}, True)


@pytest.mark.parametrize("kind", [dict, OrderedDict])
async def test_arguments_that_change_after_they_were_edited_change_nothing(kind: type[dict[str, Any]]) -> None:
    edited = kind(lines=[kind(item="tea")])
    ordered: list[Any] = []

    async def order(lines: list[dict[str, Any]]) -> str:
        """Order."""
        edited["lines"][0]["item"] = "gold"
        ordered.extend(lines)
        return "ordered"

    model = Scripted(calls("order", lines=[]), says("ok"))
    person = Person(Answer("once", arguments=edited))
    async with in_memory_atlas(model, [tool(confirm=True)(order)], approve=person) as atlas:
        await atlas.ask("order")
        (row,) = await atlas.audit.records("default")
    assert ordered == [{"item": "tea"}]
    assert row.entry.meta["arguments"] == {"lines": [{"item": "tea"}]}


async def test_invalid_edited_arguments_are_rejected() -> None:
    shop = Shop()
    model = Scripted(calls("buy", item="tea"), says("ok"))
    async with in_memory_atlas(model, [shop.buy], approve=Person(Answer("once", arguments={"item": 7}))) as atlas:
        await atlas.ask("buy")
    assert shop.bought == []
    assert _results(model)[0].error == "bad_arguments"


@pytest.mark.parametrize(("by", "bought"), [("ben", 1), ("ana", 0), ("", 0)])
async def test_two_person_rule_rejects_the_approval_of_the_asker(by: str, bought: int) -> None:
    shop = Shop()
    approvals = Approvals(Person(Answer("once", by=by)), two_person=True)
    async with in_memory_atlas(Scripted(calls("buy", item="tea"), says("ok")), [shop.buy], approve=approvals) as atlas:
        await atlas.ask("buy", user="ana")
    assert len(shop.bought) == bought


async def test_policy_cell_may_require_approval() -> None:
    bought: list[str] = []

    @tool
    async def order(item: str) -> str:
        """Order something."""
        bought.append(item)
        return "ordered"

    person = Person(True)
    policy = Policy(tools={"order": {"*": "ask"}})
    async with in_memory_atlas(
        Scripted(calls("order", item="tea"), says("ok")), [order], policy=policy, approve=person
    ) as atlas:
        await atlas.ask("order")
    assert bought == ["tea"]
    assert person.questions[0].reason == "policy: tools.order, ask for *"


async def test_confirm_predicate_decides_by_the_arguments() -> None:
    bought: list[int] = []

    async def pay(amount: int) -> str:
        """Pay."""
        bought.append(amount)
        return "paid"

    guarded = tool(confirm=lambda arguments: arguments["amount"] > 10)(pay)
    model = Scripted(calls("pay", amount=5) + calls("pay", amount=50), says("ok"))
    async with in_memory_atlas(model, [guarded], approve=Person(False)) as atlas:
        await atlas.ask("pay")
    assert bought == [5]


async def test_policy_change_during_an_approval_stops_the_call() -> None:
    shop = Shop()
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(question: Question) -> bool:
        asked.set()
        await go.wait()
        return True

    model = Scripted(calls("buy", item="tea"), says("ok"))
    async with in_memory_atlas(model, [shop.buy], approve=slow, policy=Policy(tools={"buy": {"*": "yes"}})) as atlas:
        stream = atlas.send("buy")
        async with asyncio.timeout(TIMEOUT):
            await asked.wait()
            atlas.policy = Policy(tools={"buy": {"*": "no"}})
            go.set()
            await stream.reply()
    assert shop.bought == []
    assert _results(model)[0].error == "not_permitted"


async def test_turn_cancelled_during_an_approval_runs_nothing_and_keeps_history_valid() -> None:
    shop, asked = Shop(), asyncio.Event()

    async def slow(question: Question) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    model = Scripted(calls("buy", item="tea") + calls("buy", item="milk"), says("Going on."))
    talk = Conversation()
    async with in_memory_atlas(model, [shop.buy], approve=slow) as atlas:
        stream = atlas.send("buy", session=talk)
        async with asyncio.timeout(TIMEOUT):
            await asked.wait()
            stream.cancel()
            types = [event.type async for event in stream]
            rows = await atlas.audit.records("default")
            reply = await atlas.ask("and now?", session=talk)
    assert types[-1] == "stream:end"
    assert types.count("tool:result") == 2
    assert len(rows) == 2
    assert (shop.bought, reply.text) == ([], "Going on.")
