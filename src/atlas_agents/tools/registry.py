"""Tool registry: all tools of an application, from four sources. Names are unique."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, cast

from atlas_agents.core.errors import BadTool, DuplicateTool, ToolNotFound
from atlas_agents.core.plugins import Plugins
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
    if isinstance(provided, list | tuple):
        return list(cast(list[Tool | Function], provided))
    raise BadTool(f"a plugin must provide tools, got {provided!r}")
