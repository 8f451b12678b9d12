"""Previews shown for approval, and facts that an approval is bound to besides the arguments."""

from typing import Any

import pytest

from atlas_agents import Answer, Approvals, BadTool, Question, Tool, ToolContext, ToolFailed, ToolResult, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools.tool import Preview


class Board:
    """A notice that a tool replaces."""

    def __init__(self, preview: Preview | None = None, *, confirm: bool = True) -> None:
        self.notice = "closed on Monday"
        self.approved: list[bool] = []

        async def put(notice: str, context: ToolContext) -> str:
            """Replace the notice."""
            self.notice = notice
            self.approved.append(context.approved)
            return "done"

        self.put = tool(confirm=confirm, preview=preview)(put)

    def change(self, arguments: dict[str, Any]) -> str:
        return f"-{self.notice}\n+{arguments['notice']}"

    def facts(self, arguments: dict[str, Any]) -> dict[str, str]:
        return {"notice": self.notice}


def broken(arguments: dict[str, Any]) -> str:
    raise RuntimeError("a bug")


def long_preview(arguments: dict[str, Any]) -> str:
    return "x" * 30_000


def approve_once(question: Question) -> bool:
    return True


def _last(model: Scripted) -> ToolResult:
    return [part for part in model.requests[-1].messages[-1].parts if isinstance(part, ToolResult)][-1]


async def test_question_shows_the_preview_of_the_tool() -> None:
    board, seen = Board(), list[Question]()
    board.put.preview = board.change

    def approve(question: Question) -> bool:
        seen.append(question)
        return True

    async with in_memory_atlas(
        Scripted(calls("put", notice="open"), says("ok")), [board.put], approve=approve
    ) as atlas:
        await atlas.ask("open")
    assert [question.preview for question in seen] == ["-closed on Monday\n+open"]
    assert board.notice == "open" and board.approved == [True]


async def test_context_says_whether_a_person_approved_the_call() -> None:
    board = Board(confirm=False)
    async with in_memory_atlas(Scripted(calls("put", notice="open"), says("ok")), [board.put]) as atlas:
        await atlas.ask("open")
    assert board.approved == [False]


async def test_fault_in_a_preview_ends_the_call_without_asking() -> None:
    async def refuse(arguments: dict[str, Any]) -> str:
        raise ToolFailed("there is no such board")

    board, asked = Board(preview=refuse), list[Question]()
    model = Scripted(calls("put", notice="open"), says("ok"))
    async with in_memory_atlas(model, [board.put], approve=asked.append) as atlas:
        await atlas.ask("open")
    assert (_last(model).error, _last(model).result) == ("failed", "there is no such board")
    assert asked == [] and board.notice == "closed on Monday"


async def test_failing_preview_denies_the_call() -> None:
    board = Board(preview=broken)
    model = Scripted(calls("put", notice="open"), says("ok"))
    async with in_memory_atlas(model, [board.put], approve=approve_once) as atlas:
        await atlas.ask("open")
    assert _last(model).error == "declined" and board.notice == "closed on Monday"


async def test_long_preview_is_cut_and_says_how_much_is_missing() -> None:
    board, seen = Board(preview=long_preview), list[str]()

    def approve(question: Question) -> bool:
        seen.append(question.preview)
        return False

    async with in_memory_atlas(
        Scripted(calls("put", notice="open"), says("ok")), [board.put], approve=approve
    ) as atlas:
        await atlas.ask("open")
    assert seen[0].endswith("… 10,000 more characters are not shown")


async def test_approval_is_invalid_after_its_facts_changed() -> None:
    board = Board()
    board.put.binds = board.facts

    def approve(question: Question) -> bool:
        board.notice = "closed for good"
        return True

    model = Scripted(calls("put", notice="open"), says("ok"))
    async with in_memory_atlas(model, [board.put], approve=approve) as atlas:
        await atlas.ask("open")
    assert _last(model).error == "declined" and board.notice == "closed for good"


async def test_standing_approval_covers_only_the_same_facts() -> None:
    board, asked = Board(), list[Any]()
    board.put.binds = board.facts

    def approve(question: Question) -> str:
        asked.append(question.facts)
        return "always"

    reply = calls("put", notice="open")
    model = Scripted(*[each for _ in range(3) for each in (reply, says("ok"))])
    async with in_memory_atlas(model, [board.put], approve=approve) as atlas:
        for _ in range(3):  # closed to open, then twice open to open
            await atlas.ask("open")
    assert asked == [{"notice": "closed on Monday"}, {"notice": "open"}]


async def test_edited_arguments_are_bound_to_their_own_facts_for_one_call() -> None:
    board, asked = Board(), list[Any]()
    board.put.binds = dict

    async def approve(question: Question) -> Answer:
        asked.append(question.arguments)
        return Answer("always", arguments={"notice": "open till six"})

    same = calls("put", notice="open till six")
    model = Scripted(calls("put", notice="open"), says("ok"), same, says("ok"))
    async with in_memory_atlas(model, [board.put], approve=Approvals(approve)) as atlas:
        await atlas.ask("open")
        assert board.notice == "open till six"
        await atlas.ask("again")
    assert asked == [{"notice": "open"}, {"notice": "open till six"}]


@pytest.mark.parametrize("term", ["preview", "binds", "reconcile"])
def test_option_that_is_not_callable_is_rejected(term: str) -> None:
    with pytest.raises(BadTool, match=f"{term} of tool 'put' must be a function"):
        Tool("put", print, **{term: "text"})  # pyrefly: ignore[bad-argument-type] - wrong on purpose
