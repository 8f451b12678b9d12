"""A context: metadata, rules, tools and messages, with whatever its parents have."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from atlas_agents.core.calling import call
from atlas_agents.core.conversation import Conversation
from atlas_agents.core.errors import ContextCycle, DuplicateTool
from atlas_agents.core.messages import Message
from atlas_agents.core.metadata import Metadata
from atlas_agents.core.rules import Rule
from atlas_agents.engine.explain import Explanation, RuleOrigin, origins
from atlas_agents.tools.tool import Function, Tool, as_tool


class Context:
    """Making one copies nothing: what parents have is looked up when it is read, so their later changes are seen.

    Metadata: the child's value wins, then the first parent's that has one. Rules and messages: parents' first, then
    the child's. Tools: by name, the child's replaces a parent's. An ancestor reached twice counts once.
    """

    __slots__ = ("__weakref__", "_given", "_messages", "_metadata", "_parents", "_rules", "_tools", "name")

    def __init__(
        self,
        *parents: "Context",
        name: str = "",
        metadata: Metadata | Mapping[str, Any] | None = None,
        rules: Iterable[Rule | str] = (),
        tools: Iterable[Tool | Function] = (),
        messages: Iterable[Message] = (),
    ) -> None:
        self.name = name
        self._parents = parents
        self._given: tuple[Metadata, ...] = ()
        self._metadata = Metadata(*[parent._metadata for parent in parents])
        self._rules: tuple[Rule, ...] = ()
        self._tools: dict[str, Tool] = {}
        self._messages: list[Message] = []
        if metadata:
            self.metadata = metadata
        if rules:
            self.rules = rules
        if tools:
            self.tools = tools
        if messages:
            self.messages = messages

    @property
    def parents(self) -> tuple["Context", ...]:
        return self._parents

    def inherit(self, *parents: "Context") -> "Context":
        """Add parents; ContextCycle if one of them already inherits from this one. Returns self."""
        for parent in parents:
            if any(ancestor is self for ancestor in parent.lineage()):
                raise ContextCycle(f"{self!r} cannot inherit from {parent!r}, which inherits from it")
        self._parents += parents
        self._metadata.rebase(*self._brokers(), values=self._metadata.local())
        return self

    def lineage(self) -> Iterator["Context"]:
        """All ancestors, each once, parents before children, and last the context itself."""
        seen: set[int] = set()
        stack: list[tuple[Context, bool]] = [(self, False)]
        while stack:  # not recursive: a line of ancestors may be longer than Python's stack
            context, ready = stack.pop()
            if ready:
                yield context
            elif id(context) not in seen:
                seen.add(id(context))
                stack.append((context, True))
                stack.extend((parent, False) for parent in reversed(context._parents))

    @property
    def metadata(self) -> Metadata:
        """One store for the context's whole life. Assigned plain values become its own; a Metadata stays live below."""
        return self._metadata

    @metadata.setter
    def metadata(self, values: Metadata | Mapping[str, Any]) -> None:
        if values is self._metadata:  # as in `context.metadata = context.metadata.set(…)`
            return
        self._given = (values,) if isinstance(values, Metadata) else ()
        self._metadata.rebase(*self._brokers(), values=None if isinstance(values, Metadata) else values)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The parents' rules and then its own, conditions not yet asked."""
        if not self._parents:
            return self._rules
        return tuple(rule for context in self.lineage() for rule in context._rules)

    @rules.setter
    def rules(self, rules: Iterable[Rule | str]) -> None:
        self._rules = tuple(Rule(rule) if isinstance(rule, str) else rule for rule in rules)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All tools, one per name."""
        return tuple(self.tool_map().values())

    @tools.setter
    def tools(self, tools: Iterable[Tool | Function]) -> None:
        found: dict[str, Tool] = {}
        for item in tools:
            tool = as_tool(item)
            if tool.wire_name in found:
                raise DuplicateTool(f"two tools are named {tool.name!r}; a model could not tell them apart")
            found[tool.wire_name] = tool
        self._tools = found

    def tool_map(self) -> Mapping[str, Tool]:
        """All tools by the name under which a model knows them."""
        if not self._parents:
            return self._tools
        found: dict[str, Tool] = {}
        for context in reversed(self._by_precedence()):
            found.update(context._tools)
        return found

    @property
    def messages(self) -> list[Message]:
        """The parents' messages and then its own."""
        if not self._parents:
            return self._messages
        return [message for context in self.lineage() for message in context._messages]

    @messages.setter
    def messages(self, messages: Iterable[Message]) -> None:
        self._messages = list(messages)

    def as_conversation(self) -> tuple[Conversation, list[Message]]:
        """Its own messages as a conversation that grows with them, and the parents' messages before it."""
        conversation = Conversation()
        conversation.messages = self._messages
        inherited = [message for context in self.lineage() if context is not self for message in context._messages]
        return conversation, inherited

    async def applied_rules(self) -> list[Rule]:
        """The rules whose condition holds for this context now."""
        return [rule for rule in self.rules if rule.when is None or await call(rule.when, self)]

    async def explain(self) -> Explanation:
        """Which context gave each rule, tool and value, which it hides, and which rule's `when` is false now."""
        line = list(self.lineage())
        names = {id(context): self._label(context, place) for place, context in enumerate(line)}
        rules = [
            RuleOrigin(
                text=rule.text,
                source=names[id(context)],
                applies=rule.when is None or bool(await call(rule.when, self)),
                conditional=rule.when is not None,
            )
            for context in line
            for rule in context._rules
        ]
        order = self._by_precedence()
        sources = [names[id(context)] for context in order]
        return Explanation(
            tuple(rules),
            origins(sources, [context._tools for context in order]),
            origins(sources, [context._own_values() for context in order]),
        )

    def __repr__(self) -> str:
        return f"Context({self.name!r})" if self.name else "Context()"

    def _label(self, context: "Context", place: int) -> str:
        return context.name or ("this context" if context is self else f"context {place + 1}")

    def _by_precedence(self) -> list["Context"]:
        """The order in which a name is looked up: itself, then each parent's whole line in turn."""
        seen: dict[int, Context] = {}
        stack: list[Context] = [self]
        while stack:
            context = stack.pop()
            if id(context) not in seen:
                seen[id(context)] = context
                stack.extend(reversed(context._parents))
        return list(seen.values())

    def _brokers(self) -> list[Metadata]:
        return [*self._given, *[parent._metadata for parent in self._parents]]

    def _own_values(self) -> dict[str, Any]:
        return {name: value for given in self._given for name, value in given.all().items()} | self._metadata.local()
