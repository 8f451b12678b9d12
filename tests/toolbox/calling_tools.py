"""One call of a tool, made as a model makes it and governed as every call is."""

from collections.abc import Callable, Iterable
from typing import Any

from atlas_agents import Policy, Question, Tool, ToolResult
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


class Person:
    """Says one thing to every question, does something first if told to, and keeps the questions."""

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
    """What the model is told of one call."""
    model = Scripted(calls(name, **arguments), says("ok"))
    async with in_memory_atlas(model, tools, approve=person, policy=policy) as atlas:
        await atlas.ask("go")
    (result,) = [part for part in model.requests[-1].messages[-1].parts if isinstance(part, ToolResult)]
    return result
