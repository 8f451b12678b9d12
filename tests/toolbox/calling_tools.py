"""Make one tool call through a scripted model, with policy and approvals."""

from collections.abc import Callable, Iterable
from typing import Any

from atlas_agents import Policy, Question, Tool, ToolResult
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


class Person:
    """Approver that gives the same answer to every question, after calling `before`, and records the questions."""

    def __init__(self, answer: Any = True, before: Callable[[], object] | None = None) -> None:
        self.answer = answer
        self.before = before
        self.questions: list[Question] = []

    def __call__(self, question: Question) -> Any:
        self.questions.append(question)
        if self.before is not None:
            self.before()
        return self.answer


async def call(
    tools: Iterable[Tool], name: str, person: Person | None = None, policy: Policy | None = None, **arguments: Any
) -> ToolResult:
    """Return the tool result that the model receives."""
    model = Scripted(calls(name, **arguments), says("ok"))
    async with in_memory_atlas(model, tools, approve=person, policy=policy) as atlas:
        await atlas.ask("go")
    (result,) = [part for part in model.requests[-1].messages[-1].parts if isinstance(part, ToolResult)]
    return result
