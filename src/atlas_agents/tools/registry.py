"""Tool registry and tool search: all tools of an application, and a search for agents with many tools."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from atlas_agents.core.errors import BadTool, DuplicateTool, ToolNotFound
from atlas_agents.core.messages import Message
from atlas_agents.core.metadata import Metadata
from atlas_agents.core.plugins import Plugins
from atlas_agents.core.text import one_line
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Function, Tool, as_tool

Source: TypeAlias = Literal["builtin", "plugin", "mcp", "custom"]


class ToolRegistry:
    """Tools by name. Tools of plugins and MCP servers are named `namespace/name`."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._sources: dict[str, Source] = {}
        self.disabled: dict[str, str] = {}
        """Plugins that could not be loaded, with the reason."""

    def add(self, item: Tool | Function | Mapping[str, Any], *, source: Source = "custom", namespace: str = "") -> Tool:
        """Register a tool; raises DuplicateTool if its name, or a name that is the same to a model, is taken."""
        tool = as_tool(item)
        if source in ("plugin", "mcp"):
            if not namespace or "/" in namespace:
                raise BadTool(f"tool {tool.name!r} of a {source} requires the name of the {source} as its namespace")
            tool = tool.named(f"{namespace}/{tool.name}")
        elif namespace or "/" in tool.name:
            raise BadTool(f"{tool.name!r}: only tools of plugins and MCP servers may have a namespace")
        if tool.wire_name in self._tools:
            taken = self._sources[tool.wire_name]
            raise DuplicateTool(f"tool name {self._tools[tool.wire_name].name!r} is already used by a {taken} tool")
        self._tools[tool.wire_name] = tool
        self._sources[tool.wire_name] = source
        return tool

    def get(self, name: str) -> Tool:
        """Return the tool with this name; raises ToolNotFound."""
        for tool in self._tools.values():
            if tool.name == name:
                return tool
        known = ", ".join(sorted(tool.name for tool in self)) or "none"
        raise ToolNotFound(f"Unknown tool {name!r}. Known tools: {known}.")

    def pick(self, *names: str) -> list[Tool]:
        """Return several tools by name, for example to give them to an agent."""
        return [self.get(name) for name in names]

    def source(self, name: str) -> Source:
        """Return the source of a tool."""
        return self._sources[self.get(name).wire_name]

    def drop(self, source: Source) -> None:
        """Remove all tools of a source."""
        for wire_name in [name for name, found in self._sources.items() if found == source]:
            del self._tools[wire_name], self._sources[wire_name]

    def load_plugins(self, plugins: Plugins | None = None) -> None:
        """Add the tools of installed plugins. A plugin that fails is disabled as a whole; the others are loaded."""
        plugins = plugins or Plugins()
        plugins.load("tools", self._add_plugin)
        self.disabled |= plugins.disabled

    def _add_plugin(self, name: str, provided: Any) -> None:
        before = dict(self._tools)
        try:
            for item in _plugin_tools(provided):
                self.add(item, source="plugin", namespace=name)
        except Exception:
            self._tools = before
            raise

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)


def _plugin_tools(provided: Any) -> list[Tool | Function]:
    """Return the tools of a plugin: it provides a tool, a list of tools, or a function that returns either."""
    if isinstance(provided, Tool):
        return [provided]
    if callable(provided):
        return _plugin_tools(provided())
    if isinstance(provided, (list, tuple)):
        return list(cast(list[Tool | Function], provided))
    raise BadTool(f"a plugin must provide tools, got {provided!r}")


SEARCH_TOOLS = "search_tools"
FOUND_TOOLS = "found_tools"
"""Metadata of the session: the names of the tools that were found, in order."""
_MAX_FOUND, _MAX_DESCRIPTION, _MAX_NAMES = 5, 300, 2000
_NAME_WEIGHT, _CUTOFF = 3, 0.5
_ENDING = re.compile(r"(?<=\w{3})(?:ing|ed|(?<!s)s)$")
_COMMON = frozenset(re.findall(r"\w+", "a an the of for to in on at by and or with from is are it this that my me can"))
_WORD = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])|\d+")


class ToolSearch:
    """The tools of one run that an agent must search for, if it may use more than `above` of them.

    `names` are the tools to search among; `visible` returns those of them that the agent may call now. Tools that were
    called in the session are offered, too: a provider may reject a history with calls of unknown tools.
    """

    def __init__(self, above: int, names: Collection[str], visible: Callable[[], Sequence[Tool]]) -> None:
        self._above = above
        self._names = names
        self._visible = visible
        self._called: dict[str, None] = {}
        self._scanned = 0
        self.tool = self._create_tool()

    def restrict(self, names: Collection[str]) -> None:
        """Search only among these tools from now on."""
        self._names = [name for name in self._names if name in names]
        self.tool = self._create_tool()

    def select(
        self, visible: Sequence[Tool], messages: Sequence[Message], metadata: Metadata, forced: str
    ) -> list[Tool]:
        """Return the tools to offer: the others first, so that vendors can cache them, then in the order of finding.

        `forced` is the name of a tool that the model must call.
        """
        own = {tool.wire_name: tool for tool in visible if tool.wire_name in self._names}
        if len(own) <= self._above or self.tool not in visible:
            return [tool for tool in visible if tool is not self.tool]
        for message in messages[self._scanned :]:
            self._called.update(dict.fromkeys([call.name for call in message.tool_calls]))
        self._scanned = len(messages)
        wanted = dict.fromkeys((*_found_tools(metadata), *self._called, forced))
        always = [tool for tool in visible if tool.wire_name not in own]
        return [*always, *[own[name] for name in wanted if name in own]]

    def _candidates(self) -> list[Tool]:
        return [tool for tool in self._visible() if tool.wire_name in self._names]

    def _create_tool(self) -> Tool:
        async def search_tools(query: str, context: ToolContext) -> dict[str, Any]:
            return self._search(query, context.metadata)

        names = [tool.wire_name for tool in self._candidates()]
        description = (
            f"Find tools by what they do. Most of your {len(names)} tools are not shown until you have found them; "
            f"then you can call them. Their names: {one_line(', '.join(names), _MAX_NAMES)}"
        )
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {
                "query": {
                    "type": "string",
                    "maxLength": 500,
                    "description": "Words for what the tool should do, or names of tools.",
                }
            },
            "required": ["query"],
            "additionalProperties": False,
        }
        return Tool(SEARCH_TOOLS, search_tools, description=description, parameters=schema, effect="pure")

    def _search(self, query: str, metadata: Metadata) -> dict[str, Any]:
        found = rank_tools(query, self._candidates())[:_MAX_FOUND]
        if not found:
            return {"tools": [], "hint": "No tool matches. Try other words, or the name of a tool."}
        known = _found_tools(metadata)
        if new := [tool.wire_name for tool in found if tool.wire_name not in known]:
            metadata.set(FOUND_TOOLS, [*known, *new])
        shown = [
            {"name": each.wire_name, "description": one_line(each.description, _MAX_DESCRIPTION)} for each in found
        ]
        return {"tools": shown, "hint": "You can call these tools now."}


def _found_tools(metadata: Metadata) -> list[str]:
    found = metadata.get(FOUND_TOOLS)
    return cast(list[str], found) if isinstance(found, list) else []


def rank_tools(query: str, tools: Sequence[Tool]) -> list[Tool]:
    """Return the tools that share words with the query, best first: rare words and words of the name count most.

    Those that are less than half as good as the best are left out.
    """
    documents = [_words_of(tool) for tool in tools]
    frequency = Counter(word for document in documents for word in document)
    wanted = dict.fromkeys(_split(query))
    scored: list[tuple[float, int]] = []
    for index, document in enumerate(documents):
        exact = 100.0 if tools[index].wire_name.casefold() in query.casefold() else 0.0
        score = exact + sum(
            math.log(1 + len(tools) / frequency[word]) * (count / (count + 1))
            for word in wanted
            if (count := document.get(word, 0))
        )
        if score:
            scored.append((-score, index))
    scored.sort()
    return [tools[index] for score, index in scored if score <= _CUTOFF * scored[0][0]]


def _words_of(tool: Tool) -> Counter[str]:
    """Count the words of a tool's name, description and parameters."""
    words = Counter(_split(tool.description))
    for word in _split(tool.name):
        words[word] += _NAME_WEIGHT
    properties: dict[str, Any] = tool.spec.parameters.get("properties") or {}
    for name, schema in properties.items():
        described = cast(dict[str, Any], schema).get("description", "") if isinstance(schema, dict) else ""
        words.update(_split(f"{name} {described}"))
    return words


def _split(text: str) -> list[str]:
    """Split a text or an identifier into words, in lower case, without common words and common endings."""
    words = [word.casefold() for word in _WORD.findall(text)]
    return [_ENDING.sub("", word) for word in words if word not in _COMMON]
