"""Plan-and-execute mode: a plan is made, its steps run one after another, and the model answers at the end.

The plan is a tool call. It is therefore validated, subject to policy and approval (which may edit it), audited, and
restored after a crash like any other call. Which steps are done follows from the replies in the journal.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import msgspec

from atlas_agents.agents.loop import RoundsExhausted, run_rounds
from atlas_agents.agents.run import Run, TurnPhase
from atlas_agents.core.events import PlanStep, PlanUpdated, StepStatus
from atlas_agents.core.messages import Message, ToolCall, assistant, user
from atlas_agents.tools.tool import Tool

MAKE_PLAN = "make_plan"
_MAX_STEPS = 20
_MAX_PLANS = 4
_MAX_LISTED_TOOLS = 50
_MAKE_PLAN_PROMPT = (
    f"Before you do anything, call {MAKE_PLAN} with the steps that lead to what I asked for: one short sentence each, "
    "in order, as few as possible. If no steps are needed, just answer."
)
_STEP_PROMPT = (
    "Step {number} of {count}: {text}\nDo only this step, and report the result briefly. If it shows that the rest "
    f"of the plan no longer fits, or this step cannot be done, call {MAKE_PLAN} with all remaining steps."
)
_STUCK_PROMPT = (
    "Step {number} was abandoned because it took too many rounds. Call {tool} with the remaining steps, using a "
    "different approach; or, if nothing more can be done, say so."
)
_ANSWER_PROMPT = "The steps are done. Now answer my request from their results."
_REFUSED_PROMPT = (
    "The plan was not approved. No part of it has been carried out. Say so briefly, and ask what should change."
)
_HEADING = re.compile(r"^\W*(?:the |my )?plan\b[^\n]*$", re.IGNORECASE | re.MULTILINE)
_NUMBERED = re.compile(r"^\s*\d+[.)]\s*(\S.*)$", re.MULTILINE)


async def make_plan(steps: list[str]) -> dict[str, list[str]]:
    """Record the remaining steps. They are then carried out one by one."""
    return {"steps": [step.strip() for step in steps]}


_STEPS_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": 500, "pattern": r"\S"},
    "minItems": 1,
    "maxItems": _MAX_STEPS,
}


@cache
def plan_tool() -> Tool:
    """Return the `make_plan` tool, which every agent in plan mode has."""
    schema = {
        "type": "object",
        "properties": {"steps": _STEPS_SCHEMA},
        "required": ["steps"],
        "additionalProperties": False,
    }
    return Tool(MAKE_PLAN, make_plan, effect="pure", parameters=schema)


async def run_plan(run: Run) -> Message:
    """Make a plan, run its steps, make a new plan where a step asks for it or gets stuck, then answer."""
    plan = _PlanExecution(run)
    reply = await plan.make(_MAKE_PLAN_PROMPT + _list_tools(list(run.scope.tools.values())))
    if reply is not None:
        return reply
    while (number := plan.next_step()) is not None:
        await plan.run_step(number)
    return await plan.answer(_REFUSED_PROMPT if plan.refused else _ANSWER_PROMPT)


class _PlanExecution:
    """The plan of one turn and its progress."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen = len(run.added)
        self._steps: list[PlanStep] = []
        self._plans = 0
        self.refused = False

    async def make(self, prompt: str) -> Message | None:
        """Have the model make a plan; return its reply if it answered at once, None if a plan was made or refused."""
        self._enter_phase(TurnPhase((MAKE_PLAN,), is_complete=self._plan_changed), prompt)
        reply = await self._run_rounds()
        if self._plans or self.refused:
            return None
        if reply is not None and (steps := _parse_plan(reply.text)):
            await self._propose(steps)
            return None if self._plan_changed() or self.refused else reply
        return reply

    async def run_step(self, number: int) -> None:
        """Run one step. If the model makes a new plan meanwhile, the step ends."""
        step = self._steps[number]
        self._set_status(number, "running")
        prompt = _STEP_PROMPT.format(number=number + 1, count=len(self._steps), text=step.text)
        self._enter_phase(TurnPhase(is_complete=self._plan_changed), prompt)
        plans = self._plans
        reply = await self._run_rounds()
        if self._plans != plans:
            return
        self._set_status(number, "failed" if reply is None else "done")
        if reply is None and self._may_plan():
            await self.make(_STUCK_PROMPT.format(number=number + 1, tool=MAKE_PLAN))
            if self._plans == plans:
                self._drop_pending()

    async def answer(self, prompt: str) -> Message:
        """Have the model write the final answer, without tools."""
        self._enter_phase(TurnPhase(tool_choice="none", final=True), prompt)
        return await run_rounds(self._run)

    def next_step(self) -> int | None:
        """Return the index of the first pending step."""
        return next((index for index, step in enumerate(self._steps) if step.status == "pending"), None)

    async def _run_rounds(self) -> Message | None:
        """Run the rounds of a phase; return its last reply, or None if the rounds are exhausted."""
        try:
            return await run_rounds(self._run)
        except RoundsExhausted:
            return None

    def _enter_phase(self, phase: TurnPhase, prompt: str) -> None:
        if not self._may_plan():
            others = [tool.name for tool in self._run.scope.tools.values() if tool.name != MAKE_PLAN]
            phase = msgspec.structs.replace(phase, only=tuple(others))
        self._run.phase = phase
        self._run.add_own(user(prompt, synthetic=True, plan=msgspec.to_builtins(self._steps)))

    async def _propose(self, steps: list[str]) -> None:
        """Turn a plan that the model wrote as a list into the tool call that it should have been."""
        call = ToolCall(self._run.unique_call_id(""), MAKE_PLAN, {"steps": steps[:_MAX_STEPS]})
        self._run.add_own(assistant(call))
        await self._run.run_tool_calls([call])

    def _may_plan(self) -> bool:
        return self._plans < _MAX_PLANS

    def _plan_changed(self) -> bool:
        """Check the messages added since the last check for a new plan, or for a refused one."""
        added, self._seen = self._run.added[self._seen :], len(self._run.added)
        names = {call.id: call.name for message in added for call in message.tool_calls}
        changed = False
        for result in [result for message in added for result in message.tool_results]:
            if names.get(result.call_id) != MAKE_PLAN:
                continue
            if result.status == "ok" and _read_steps(result.result):
                self._adopt(_read_steps(result.result))
                changed = True
            elif self._plans == 0 and _is_refusal(result.result):
                self.refused = changed = True
        return changed

    def _adopt(self, texts: list[str]) -> None:
        self._plans += 1
        finished = [step for step in self._steps if step.status in ("done", "failed")]
        running = [PlanStep(step.text, "changed") for step in self._steps if step.status == "running"]
        self._steps = [*finished, *running, *[PlanStep(text) for text in texts]]
        self._emit_plan()

    def _set_status(self, number: int, status: StepStatus) -> None:
        self._steps[number] = PlanStep(self._steps[number].text, status)
        self._emit_plan()

    def _drop_pending(self) -> None:
        self._steps = [PlanStep(each.text, "dropped") if each.status == "pending" else each for each in self._steps]
        self._emit_plan()

    def _emit_plan(self) -> None:
        self._run.plan = tuple(self._steps)
        self._run.emit(PlanUpdated(self._run.id, self._run.plan))


def _list_tools(tools: Sequence[Tool]) -> str:
    """Describe the tools that steps can use, one per line: while it plans, the model is not offered them."""
    others = [tool for tool in tools if tool.name != MAKE_PLAN][:_MAX_LISTED_TOOLS]
    lines = [f"- {tool.name}: {tool.description.strip().partition(chr(10))[0]}" for tool in others]
    return "\nThe steps can use these tools:\n" + "\n".join(lines) if lines else ""


def _parse_plan(text: str) -> list[str]:
    """Return the numbered steps after a heading `Plan:`; a list without such a heading is not a plan."""
    heading = _HEADING.search(text)
    return _NUMBERED.findall(text, heading.end()) if heading else []


def _read_steps(result: Any) -> list[str]:
    """Return the steps of a plan; of one that a person edited, the edited steps."""
    if not isinstance(result, dict):
        return []
    found = cast(dict[str, Any], result)
    steps: Any = cast(dict[str, Any], found.get("result", found)).get("steps")
    return cast(list[str], steps) if isinstance(steps, list) else []


def _is_refusal(result: Any) -> bool:
    return isinstance(result, dict) and bool(cast(dict[str, Any], result).get("cancelled"))
