"""A very small model is offered only the few tools that fit the message."""

from atlas_agents import ToolSpec, user
from atlas_agents.local.models import PromptStyle
from atlas_agents.local.prompting import select_tools
from atlas_agents.providers.base import Request

NAMES = {
    "current_time": "Tell the date and the time of this machine.",
    "file_read": "Read a file of the workspace.",
    "file_write": "Write a file into the workspace.",
    "web_search": "Search the web.",
    "bash": "Run a shell command.",
    "url_fetch": "Fetch a page of the web.",
    "remember": "Keep something for later.",
}
TOOLS = tuple(ToolSpec(name, text, {"type": "object", "properties": {}}) for name, text in NAMES.items())
BRIEF = PromptStyle(brief=True)


def selected(
    text: str, style: PromptStyle = BRIEF, tools: tuple[ToolSpec, ...] = TOOLS, choice: str = "auto"
) -> list[str]:
    request = select_tools(Request([user(text)], tools=tools, tool_choice=choice), style)
    return [tool.name for tool in request.tools]


def test_tools_that_share_words_with_the_message_are_selected() -> None:
    assert selected("What time is it?") == ["current_time"]
    assert set(selected("Search the web for cats.")) == {"web_search", "url_fetch"}
    assert selected("Tell me a joke.") in ([], ["current_time"])
    assert len(selected("Read, write, search, run, fetch, and tell the time of the web, the file and the shell.")) == 4


def test_other_requests_keep_all_tools() -> None:
    assert len(selected("What time is it?", PromptStyle())) == len(TOOLS)
    assert len(selected("What time is it?", tools=TOOLS[:4])) == 4
    assert len(selected("What time is it?", choice="required")) == len(TOOLS)
