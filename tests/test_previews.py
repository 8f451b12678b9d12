"""What a tool tells of a call to the person who is asked about it, and what else than its arguments a yes holds for."""

from typing import Any

import pytest

from atlas_agents import Answer, Approvals, BadTool, Question, Tool, ToolContext, ToolFailed, ToolResult, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools.tool import Preview


class Board:
    """A notice that may be replaced."""

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

    def as_it_is(self, arguments: dict[str, Any]) -> dict[str, str]:
        return {"notice": self.notice}


def broken(arguments: dict[str, Any]) -> str:
    raise RuntimeError("a bug")


def lengthy(arguments: dict[str, Any]) -> str:
    return "x" * 30_000


def willing(question: Question) -> bool:
    return True


def _last(model: Scripted) -> ToolResult:
    return [part for part in model.requests[-1].messages[-1].parts if isinstance(part, ToolResult)][-1]


async def test_a_question_shows_what_the_tool_says_would_change() -> None:
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


async def test_a_tool_that_nobody_was_asked_about_knows_so() -> None:
    board = Board(confirm=False)
    async with in_memory_atlas(Scripted(calls("put", notice="open"), says("ok")), [board.put]) as atlas:
        await atlas.ask("open")
    assert board.approved == [False]


async def test_a_preview_that_finds_a_fault_ends_the_call_and_nobody_is_asked() -> None:
    async def refuse(arguments: dict[str, Any]) -> str:
        raise ToolFailed("there is no such board")

    board, asked = Board(preview=refuse), list[Question]()
    model = Scripted(calls("put", notice="open"), says("ok"))
    async with in_memory_atlas(model, [board.put], approve=asked.append) as atlas:
        await atlas.ask("open")
    assert (_last(model).error, _last(model).result) == ("failed", "there is no such board")
    assert asked == [] and board.notice == "closed on Monday"


async def test_a_preview_that_breaks_is_a_no() -> None:
    board = Board(preview=broken)
    model = Scripted(calls("put", notice="open"), says("ok"))
    async with in_memory_atlas(model, [board.put], approve=willing) as atlas:
        await atlas.ask("open")
    assert _last(model).error == "declined" and board.notice == "closed on Monday"


async def test_a_long_preview_says_how_much_is_missing() -> None:
    board, seen = Board(preview=lengthy), list[str]()

    def approve(question: Question) -> bool:
        seen.append(question.preview)
        return False

    async with in_memory_atlas(
        Scripted(calls("put", notice="open"), says("ok")), [board.put], approve=approve
    ) as atlas:
        await atlas.ask("open")
    assert seen[0].endswith("… 10,000 more characters are not shown")


async def test_a_yes_does_not_hold_when_what_it_was_bound_to_has_changed() -> None:
    board = Board()
    board.put.binds = board.as_it_is

    def approve(question: Question) -> bool:
        board.notice = "closed for good"
        return True

    model = Scripted(calls("put", notice="open"), says("ok"))
    async with in_memory_atlas(model, [board.put], approve=approve) as atlas:
        await atlas.ask("open")
    assert _last(model).error == "declined" and board.notice == "closed for good"


async def test_a_yes_for_good_is_for_the_same_facts_too() -> None:
    board, asked = Board(), list[Any]()
    board.put.binds = board.as_it_is

    def approve(question: Question) -> str:
        asked.append(question.facts)
        return "always"

    reply = calls("put", notice="open")
    model = Scripted(*[each for _ in range(3) for each in (reply, says("ok"))])
    async with in_memory_atlas(model, [board.put], approve=approve) as atlas:
        for _ in range(3):  # closed to open, open to open, and that again
            await atlas.ask("open")
    assert asked == [{"notice": "closed on Monday"}, {"notice": "open"}]


async def test_edited_arguments_are_bound_to_their_own_facts_and_only_once() -> None:
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
def test_terms_that_are_no_functions_are_told_at_once(term: str) -> None:
    with pytest.raises(BadTool, match=f"{term} of tool 'put' must be a function"):
        Tool("put", print, **{term: "text"})  # pyright: ignore[reportArgumentType]
