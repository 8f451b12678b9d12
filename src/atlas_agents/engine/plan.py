"""Plan-and-execute: stretches of the same rounds, one after another.

The plan is a tool call. So it is typed and checked, a policy may have a person look at it before it starts, the yes may
change it, it stands in the audit, and after a sudden end it is there again, all in the way of any other call. Which
steps are done follows from the replies that the journal has.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import msgspec

from atlas_agents.core.events import PlanStep, PlanUpdated, StepStatus
from atlas_agents.core.messages import Message, ToolCall, assistant, user
from atlas_agents.engine.loop import RoundsSpent, rounds
from atlas_agents.engine.run import Run
from atlas_agents.engine.stage import Stage
from atlas_agents.tools.tool import Tool

MAKE_PLAN = "make_plan"
_MOST_STEPS = 20
_MOST_PLANS = 4
_MOST_NAMED = 50
_DRAW_UP = (
    f"Before you do anything, call {MAKE_PLAN} with the steps that lead to what I asked for: one short sentence each, "
    "in order, as few as possible. If no steps are needed, just answer."
)
_STEP = (
    "Step {number} of {count}: {text}\nDo only this step, and say briefly what came of it. If it shows that the rest "
    f"of the plan no longer fits, or this step cannot be done, call {MAKE_PLAN} with all steps still to be done."
)
_STUCK = (
    "Step {number} was given up: it took too many rounds. Call {tool} with the steps that are still to be done, in "
    "another way; or, if nothing more can be done, say so."
)
_ANSWER = "The steps are done. Now answer what I asked for, from what they showed."
_REFUSED = "The plan was not agreed to. Nothing of it has been done. Say so briefly, and ask what should be different."
_HEADING = re.compile(r"^\W*(?:the |my )?plan\b[^\n]*$", re.IGNORECASE | re.MULTILINE)
_NUMBERED = re.compile(r"^\s*\d+[.)]\s*(\S.*)$", re.MULTILINE)


async def make_plan(steps: list[str]) -> dict[str, list[str]]:
    """Write down the steps that are still to be done. They are then carried out one by one."""
    return {"steps": [step.strip() for step in steps]}


_STEPS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": 500, "pattern": r"\S"},
    "minItems": 1,
    "maxItems": _MOST_STEPS,
}


@cache
def plan_tool() -> Tool:
    """What every agent with the mode `plan` has; made when there is one."""
    schema = {"type": "object", "properties": {"steps": _STEPS}, "required": ["steps"], "additionalProperties": False}
    return Tool(MAKE_PLAN, make_plan, effect="pure", parameters=schema)


async def planned(run: Run) -> Message:
    """Draw up a plan, carry out its steps, plan again where a step asks for it or gets stuck, then answer."""
    work = _Work(run)
    reply = await work.draw_up(_DRAW_UP + _at_hand(list(run.desk.tools.values())))
    if reply is not None:
        return reply
    while (number := work.next_step()) is not None:
        await work.carry_out(number)
    return await work.say(_REFUSED if work.refused else _ANSWER)


class _Work:
    """One turn's plan and how far it is."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen = len(run.added)
        self._steps: list[PlanStep] = []
        self._plans = 0
        self.refused = False

    async def draw_up(self, task: str) -> Message | None:
        """A plan stands when it returns, or none was agreed to; where the model answered at once, its answer."""
        self._enter(Stage((MAKE_PLAN,), enough=self._replanned), task)
        reply = await self._rounds()
        if self._plans or self.refused:
            return None
        if reply is not None and (steps := _listed(reply.text)):
            await self._propose(steps)
            return None if self._replanned() or self.refused else reply
        return reply

    async def carry_out(self, number: int) -> None:
        """One step. The model may make a new plan meanwhile: then this step is over."""
        step = self._steps[number]
        self._mark(number, "running")
        task = _STEP.format(number=number + 1, count=len(self._steps), text=step.text)
        self._enter(Stage(enough=self._replanned), task)
        plans = self._plans
        reply = await self._rounds()
        if self._plans != plans:
            return
        self._mark(number, "failed" if reply is None else "done")
        if reply is None and self._may_plan():
            await self.draw_up(_STUCK.format(number=number + 1, tool=MAKE_PLAN))
            if self._plans == plans:
                self._drop_the_rest()

    async def say(self, task: str) -> Message:
        """The last word."""
        self._enter(Stage(tool_choice="none", last=True), task)
        return await rounds(self._run)

    def next_step(self) -> int | None:
        """The first that is still to be done."""
        return next((place for place, step in enumerate(self._steps) if step.status == "pending"), None)

    async def _rounds(self) -> Message | None:
        """The model's last word in this stretch, or None when its rounds were used up."""
        try:
            return await rounds(self._run)
        except RoundsSpent:
            return None

    def _enter(self, stage: Stage, task: str) -> None:
        if not self._may_plan():
            others = [tool.name for tool in self._run.desk.tools.values() if tool.name != MAKE_PLAN]
            stage = msgspec.structs.replace(stage, only=tuple(others))
        self._run.stage = stage
        self._run.add_own(user(task, synthetic=True, plan=msgspec.to_builtins(self._steps)))

    async def _propose(self, steps: list[str]) -> None:
        """A plan that the model wrote as a list, put as the call that it should have been."""
        call = ToolCall(self._run.unique_id(""), MAKE_PLAN, {"steps": steps[:_MOST_STEPS]})
        self._run.add_own(assistant(call))
        await self._run.answer([call])

    def _may_plan(self) -> bool:
        return self._plans < _MOST_PLANS

    def _replanned(self) -> bool:
        """Look through what was added since: is there a new plan, or a no to one?"""
        added, self._seen = self._run.added[self._seen :], len(self._run.added)
        names = {call.id: call.name for message in added for call in message.tool_calls}
        changed = False
        for result in [result for message in added for result in message.tool_results]:
            if names.get(result.call_id) != MAKE_PLAN:
                continue
            if result.status == "ok" and _steps_of(result.result):
                self._take(_steps_of(result.result))
                changed = True
            elif self._plans == 0 and _is_no(result.result):
                self.refused = changed = True
        return changed

    def _take(self, texts: list[str]) -> None:
        self._plans += 1
        done = [step for step in self._steps if step.status in ("done", "failed")]
        under_way = [PlanStep(step.text, "changed") for step in self._steps if step.status == "running"]
        self._steps = [*done, *under_way, *[PlanStep(text) for text in texts]]
        self._tell()

    def _mark(self, number: int, status: StepStatus) -> None:
        self._steps[number] = PlanStep(self._steps[number].text, status)
        self._tell()

    def _drop_the_rest(self) -> None:
        self._steps = [PlanStep(each.text, "dropped") if each.status == "pending" else each for each in self._steps]
        self._tell()

    def _tell(self) -> None:
        self._run.plan = tuple(self._steps)
        self._run.emit(PlanUpdated(self._run.id, self._run.plan))


def _at_hand(tools: Sequence[Tool]) -> str:
    """What steps can be done with, in a line each: while it plans, the model is offered none of them."""
    others = [tool for tool in tools if tool.name != MAKE_PLAN][:_MOST_NAMED]
    lines = [f"- {tool.name}: {tool.description.strip().partition(chr(10))[0]}" for tool in others]
    return "\nThe steps can use these tools:\n" + "\n".join(lines) if lines else ""


def _listed(text: str) -> list[str]:
    """The steps of a reply that says `Plan:` and then numbers them; other lists are no plan."""
    heading = _HEADING.search(text)
    return _NUMBERED.findall(text, heading.end()) if heading else []


def _steps_of(result: Any) -> list[str]:
    """Of a plan that a person changed, the changed one's."""
    if not isinstance(result, dict):
        return []
    found = cast(dict[str, Any], result)
    steps: Any = cast(dict[str, Any], found.get("result", found)).get("steps")
    return cast(list[str], steps) if isinstance(steps, list) else []


def _is_no(result: Any) -> bool:
    return isinstance(result, dict) and bool(cast(dict[str, Any], result).get("cancelled"))
