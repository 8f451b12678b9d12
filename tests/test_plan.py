"""Plan-and-execute: plans are made, shown, approved, executed and revised."""

from typing import Any

import pytest

from atlas_agents import Agent, Approvals, Atlas, Policy, tool
from atlas_agents.agents.plan import MAKE_PLAN
from atlas_agents.core.approvals import Answer, Question
from atlas_agents.core.events import PlanStep, PlanUpdated
from atlas_agents.testing import Reply, Scripted, calls, says


def statuses(event: PlanUpdated) -> str:
    return " ".join(step.status for step in event.steps)


@tool(effect="pure")
async def look(thing: str) -> str:
    """Look at a thing."""
    return f"the {thing} is blue"


def atlas_with(*replies: Reply, **options: Any) -> tuple[Atlas, Scripted]:
    model = Scripted(*replies)
    return Atlas([Agent("a", model=model, mode="plan", tools=[look], max_rounds=3)], **options), model


WHOLE = (
    calls(MAKE_PLAN, steps=["Look at the sky", "Look at the sea"]),
    calls("look", thing="sky"),
    says("The sky is blue."),
    calls("look", thing="sea"),
    says("So is the sea."),
    says("Both are blue."),
)


async def test_plan_is_made_executed_and_answered() -> None:
    atlas, model = atlas_with(*WHOLE)
    stream = atlas.send("What colour are sky and sea?")
    seen = [event async for event in stream if isinstance(event, PlanUpdated)]
    assert (await stream.reply()).text == "Both are blue."
    assert [statuses(event) for event in seen] == [
        "pending pending",
        "running pending",
        "done pending",
        "done running",
        "done done",
    ]
    drawing, first, *_, last = model.requests
    assert [spec.name for spec in drawing.tools] == [MAKE_PLAN]
    assert drawing.messages[-1].text.endswith("The steps can use these tools:\n- look: Look at a thing.")
    assert {spec.name for spec in first.tools} == {"look", MAKE_PLAN}
    assert "Step 1 of 2: Look at the sky" in first.messages[-1].text
    assert last.tool_choice == "none"
    assert len(model.requests) == 6


async def test_result_contains_the_plan() -> None:
    atlas, _ = atlas_with(*WHOLE)
    result = await atlas.run("What colour are sky and sea?")
    assert result.plan == (PlanStep("Look at the sky", "done"), PlanStep("Look at the sea", "done"))
    assert [step.tool for step in result.steps] == [MAKE_PLAN, "look", "look"]


async def test_usage_of_a_turn_includes_the_call_that_makes_the_plan() -> None:
    atlas, model = atlas_with(*WHOLE)
    result = await atlas.run("What colour are sky and sea?")
    assert result.usage.input_tokens == sum(len(request.messages) for request in model.requests)


async def test_question_without_steps_is_answered_at_once() -> None:
    atlas, model = atlas_with(says("Hello!"))
    assert (await atlas.ask("Hi")).text == "Hello!"
    assert len(model.requests) == 1


async def test_step_may_revise_the_plan() -> None:
    atlas, _ = atlas_with(
        calls(MAKE_PLAN, steps=["Look at the sky", "Paint it"]),
        calls(MAKE_PLAN, steps=["Look at the sea"]),
        says("Blue."),
        says("Only the sea counts."),
    )
    result = await atlas.run("Go.")
    assert result.answer == "Only the sea counts."
    assert result.plan == (PlanStep("Look at the sky", "changed"), PlanStep("Look at the sea", "done"))


async def test_stuck_step_leads_to_a_new_plan() -> None:
    stuck = [calls("look", thing=str(number)) for number in range(3)]
    atlas, model = atlas_with(
        calls(MAKE_PLAN, steps=["Look at all", "Count"]),
        *stuck,
        calls(MAKE_PLAN, steps=["Look at one"]),
        says("Blue."),
        says("One is blue."),
    )
    result = await atlas.run("Go.")
    assert result.plan == (PlanStep("Look at all", "failed"), PlanStep("Look at one", "done"))
    assert "was abandoned" in model.requests[4].messages[-1].text
    assert result.answer == "One is blue."


async def test_remaining_steps_are_dropped_if_nothing_can_be_done() -> None:
    stuck = [calls("look", thing=str(number)) for number in range(3)]
    atlas, _ = atlas_with(
        calls(MAKE_PLAN, steps=["Look at all", "Count"]), *stuck, says("I cannot."), says("It did not work.")
    )
    result = await atlas.run("Go.")
    assert result.plan == (PlanStep("Look at all", "failed"), PlanStep("Count", "dropped"))
    assert result.answer == "It did not work."


async def test_number_of_plans_is_limited() -> None:
    plans = [calls(MAKE_PLAN, steps=[f"Plan {number}"]) for number in range(4)]
    atlas, model = atlas_with(*plans, says("Done."), says("That was it."))
    result = await atlas.run("Go.")
    assert result.answer == "That was it."
    assert MAKE_PLAN not in {spec.name for spec in model.requests[4].tools}


async def test_plan_written_as_a_list_counts() -> None:
    atlas, _ = atlas_with(
        says("Plan:\n1. Look at the sky\n2) Say it\n"), says("Blue."), says("Reported."), says("Blue it is.")
    )
    result = await atlas.run("Go.")
    assert [step.text for step in result.plan] == ["Look at the sky", "Say it"]
    assert result.steps[0].tool == MAKE_PLAN


async def test_list_in_an_answer_is_not_a_plan() -> None:
    atlas, _ = atlas_with(says("The best three:\n1. Rome\n2. Oslo\n3. Lima"))
    assert (await atlas.run("Which cities?")).plan == ()


@pytest.mark.parametrize("steps", [[], [""], ["x"] * 21, "look", [1]])
async def test_invalid_plan_is_refused_and_may_be_corrected(steps: Any) -> None:
    atlas, _ = atlas_with(
        calls(MAKE_PLAN, steps=steps), calls(MAKE_PLAN, steps=["Look"]), says("Blue."), says("It is blue.")
    )
    result = await atlas.run("Go.")
    assert [step.status for step in result.steps] == ["error", "ok"]
    assert result.answer == "It is blue."


ASK = Policy(tools={MAKE_PLAN: {"*": "ask"}, "look": {"*": "yes"}})


async def test_plan_can_require_approval_and_be_edited() -> None:
    asked: list[Question] = []

    async def agree(question: Question) -> Answer:
        asked.append(question)
        return Answer("once", arguments={"steps": ["Look at the sea"]})

    atlas, _ = atlas_with(
        calls(MAKE_PLAN, steps=["Look at the sky"]),
        says("Blue."),
        says("The sea is blue."),
        policy=ASK,
        approve=Approvals(agree),
    )
    result = await atlas.run("Go.")
    assert result.plan == (PlanStep("Look at the sea", "done"),)
    assert asked[0].arguments == {"steps": ["Look at the sky"]}


async def test_declined_plan_is_not_executed() -> None:
    async def refuse(question: Question) -> Answer:
        return Answer("no")

    atlas, model = atlas_with(
        calls(MAKE_PLAN, steps=["Look at the sky"]),
        says("You did not agree. What should be different?"),
        policy=ASK,
        approve=Approvals(refuse),
    )
    result = await atlas.run("Go.")
    assert result.plan == ()
    assert "not approved" in model.requests[1].messages[-1].text and model.requests[1].tool_choice == "none"


async def test_only_the_final_answer_has_the_output_schema() -> None:
    atlas, model = atlas_with(calls(MAKE_PLAN, steps=["Look"]), says("Blue."), says('{"colour": "blue"}'))
    schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
    result = await atlas.run("Go.", output=schema)
    assert result.output == {"colour": "blue"}
    assert [request.output is not None or "colour" in request.system for request in model.requests] == [
        False,
        False,
        True,
    ]


async def test_turn_can_override_the_mode() -> None:
    model = Scripted(calls(MAKE_PLAN, steps=["Look"]), says("Blue."), says("It is blue."), says("Final Answer: Blue."))
    atlas = Atlas([Agent("a", model=model, tools=[look])])
    assert (await atlas.ask("Go.", mode="plan")).text == "It is blue."
    assert (await atlas.ask("Go.", mode="react")).text == "Blue."
