"""Rules: unconditional or conditional; those that apply are in the system prompt."""

import asyncio
import threading
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, ConfigError, Context, PromptFailed, Rule
from atlas_agents.testing import Scripted, in_memory_atlas, says
from checks import TIMEOUT, monitor_loop


async def system_prompt_with(*rules: Rule | str, metadata: dict[str, Any] | None = None) -> str:
    """Return the system prompt that the model received."""
    model = Scripted(says("ok"))
    async with in_memory_atlas(model, agent={"rules": rules, "metadata": metadata}) as atlas, asyncio.timeout(TIMEOUT):
        await atlas.ask("hi")
    return model.requests[0].system


async def is_night(context: Context) -> bool:
    await asyncio.sleep(0)
    return bool(context.metadata.get("night"))


def is_day(context: Context) -> bool:
    return not context.metadata.get("night")


class Strict:
    async def __call__(self, context: Context) -> bool:
        return True


async def test_rule_without_condition_always_applies() -> None:
    assert await system_prompt_with(Rule("Be brief."), "Be kind.") == "Rules:\n- Be brief.\n- Be kind."


@pytest.mark.parametrize(("night", "rule"), [(True, "Whisper."), (False, "Speak up.")])
async def test_conditional_rule_applies_while_its_condition_holds(night: bool, rule: str) -> None:
    rules = [Rule("Whisper.", when=is_night), Rule("Speak up.", when=is_day)]
    assert await system_prompt_with(*rules, metadata={"night": night}) == f"Rules:\n- {rule}"


async def test_condition_may_be_any_callable() -> None:
    rules = [
        Rule("Lambda.", when=lambda context: True),
        Rule("Promise.", when=lambda context: is_day(context) and is_night(Context(metadata={"night": 1}))),
        Rule("Object.", when=Strict()),
        Rule("Never.", when=lambda context: False),
    ]
    assert await system_prompt_with(*rules) == "Rules:\n- Lambda.\n- Promise.\n- Object."


async def test_condition_is_evaluated_for_every_request() -> None:
    model = Scripted(says("1"), says("2"), says("3"))
    agent = Agent("a", model=model, rules=[Rule("Whisper.", when=is_night)])
    async with Atlas([agent]) as atlas:
        for night in (False, True, False):
            agent.metadata.set("night", night)
            await atlas.ask("hi")
    assert [request.system for request in model.requests] == ["", "Rules:\n- Whisper.", ""]


async def test_condition_gets_the_context_of_the_turn() -> None:
    parent = Context(rules=[Rule("Whisper.", when=is_night)])
    day, night = Context(parent), Context(parent, metadata={"night": True})
    assert [rule.text for rule in await day.applied_rules()] == []
    assert [rule.text for rule in await night.applied_rules()] == ["Whisper."]


async def test_sync_condition_does_not_block_the_event_loop() -> None:
    async with monitor_loop() as monitor:
        assert (
            await system_prompt_with(Rule("Alive.", when=lambda context: monitor.keeps_running())) == "Rules:\n- Alive."
        )


async def test_turn_can_be_cancelled_while_a_sync_condition_hangs() -> None:
    model, release = Scripted(says("never")), threading.Event()
    async with in_memory_atlas(
        model, agent={"rules": [Rule("x", when=lambda context: release.wait(TIMEOUT))]}
    ) as atlas:
        stream = atlas.send("hi")
        stream.cancel()
        async with asyncio.timeout(TIMEOUT / 2):
            ends = [event async for event in stream if event.type == "stream:end"]
        release.set()
    assert [end.cancelled for end in ends] == [True]
    assert model.requests == []


async def test_failing_condition_stops_the_turn() -> None:
    def broken(context: Context) -> bool:
        raise LookupError("no calendar")

    with pytest.raises(PromptFailed, match="the condition of rule 'x' failed: LookupError: no calendar"):
        await system_prompt_with(Rule("x", when=broken))


@pytest.mark.parametrize(("text", "when"), [("", None), ("  \n", None), ("x", True), ("x", "night")])
def test_invalid_rule_is_rejected(text: str, when: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected a text that is not blank|must be a function of the context"):
        Rule(text, when=when)


def test_rule_repr_shows_text_and_condition() -> None:
    assert [repr(Rule("a")), repr(Rule("b", when=is_day))] == ["Rule('a')", "Rule('b', when=…)"]
