"""All tools that a house knows, from four sources; none can take the name of a built-in."""

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, cast

from atlas_agents.core.errors import BadTool, DuplicateTool, ToolNotFound
from atlas_agents.core.plugins import Plugins
from atlas_agents.tools.tool import Function, Tool, as_tool

Source: TypeAlias = Literal["builtin", "plugin", "mcp", "custom"]


class ToolRegistry:
    """Built-in and custom tools go by their own name; a plugin's and an MCP server's as `namespace/name`."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._sources: dict[str, Source] = {}
        self.disabled: dict[str, str] = {}
        """Plugins that could not be loaded, and why."""

    def add(self, item: Tool | Function, *, source: Source = "custom", namespace: str = "") -> Tool:
        """Make a tool known; DuplicateTool if its name, or one that a model could not tell from it, is taken."""
        tool = as_tool(item)
        if source in ("plugin", "mcp"):
            if not namespace or "/" in namespace:
                raise BadTool(f"the tool {tool.name!r} of a {source} needs the name of its {source} as namespace")
            tool = tool.named(f"{namespace}/{tool.name}")
        elif namespace or "/" in tool.name:
            raise BadTool(f"{tool.name!r}: only tools of plugins and MCP servers have a namespace")
        if tool.wire_name in self._tools:
            taken = self._sources[tool.wire_name]
            raise DuplicateTool(f"there is a {taken} tool {self._tools[tool.wire_name].name!r} already")
        self._tools[tool.wire_name] = tool
        self._sources[tool.wire_name] = source
        return tool

    def get(self, name: str) -> Tool:
        """The tool of that name; ToolNotFound lists the known ones."""
        for tool in self._tools.values():
            if tool.name == name:
                return tool
        known = ", ".join(sorted(tool.name for tool in self)) or "none"
        raise ToolNotFound(f"There is no tool {name!r}. There are: {known}.")

    def pick(self, *names: str) -> list[Tool]:
        """Several tools, to be handed to an agent."""
        return [self.get(name) for name in names]

    def source(self, name: str) -> Source:
        """Return where a tool came from."""
        return self._sources[self.get(name).wire_name]

    def drop(self, source: Source) -> None:
        """Know none of a source any more."""
        for wire_name in [name for name, found in self._sources.items() if found == source]:
            del self._tools[wire_name], self._sources[wire_name]

    def load_plugins(self, plugins: Plugins | None = None) -> None:
        """Add the tools of installed plugins; one that fails is disabled as a whole, and the rest goes on."""
        plugins = plugins or Plugins()
        plugins.load("tools", self._take)
        self.disabled |= plugins.disabled

    def _take(self, name: str, thing: Any) -> None:
        before = dict(self._tools)
        try:
            for item in _offered(thing):
                self.add(item, source="plugin", namespace=name)
        except Exception:
            self._tools = before
            raise

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)


def _offered(thing: Any) -> list[Tool | Function]:
    """A plugin gives a tool, a list of them, or a function without parameters that gives such a list."""
    if isinstance(thing, Tool):
        return [thing]
    if callable(thing):
        return _offered(thing())
    if isinstance(thing, list | tuple):
        return list(cast(list[Tool | Function], thing))
    raise BadTool(f"a plugin must give tools, not {thing!r}")
