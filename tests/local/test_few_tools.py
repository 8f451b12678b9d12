"""A very small model is shown a few tools that fit, not all that an agent has."""

from atlas_agents import ToolSpec, user
from atlas_agents.local.models import Manner
from atlas_agents.local.prompting import fitted
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
TOOLS = tuple(ToolSpec(name, words, {"type": "object", "properties": {}}) for name, words in NAMES.items())
BRIEF = Manner(brief=True)


def shown(text: str, manner: Manner = BRIEF, tools: tuple[ToolSpec, ...] = TOOLS, choice: str = "auto") -> list[str]:
    request = fitted(Request([user(text)], tools=tools, tool_choice=choice), manner)
    return [tool.name for tool in request.tools]


def test_it_is_shown_those_that_share_words_with_what_was_said() -> None:
    assert shown("What time is it?") == ["current_time"]
    assert set(shown("Search the web for cats.")) == {"web_search", "url_fetch"}
    assert shown("Tell me a joke.") in ([], ["current_time"])
    assert len(shown("Read, write, search, run, fetch, and tell the time of the web, the file and the shell.")) == 4


def test_others_are_shown_all() -> None:
    assert len(shown("What time is it?", Manner())) == len(TOOLS)
    assert len(shown("What time is it?", tools=TOOLS[:4])) == 4
    assert len(shown("What time is it?", choice="required")) == len(TOOLS)
