"""Context: metadata, rules, tools and messages, inherited from parent contexts; and `Rule`, a line of the prompt."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, cast

import msgspec

from atlas_agents.core.aio import invoke
from atlas_agents.core.errors import ConfigError, ContextCycle, DuplicateTool, PromptFailed
from atlas_agents.core.messages import Conversation, Message
from atlas_agents.core.metadata import Metadata
from atlas_agents.tools.context import Deps, SessionMetadata
from atlas_agents.tools.tool import Choose, Tool, ToolChoice, ToolLike, expand_tools

Condition: TypeAlias = Callable[[Any], bool | Awaitable[bool]]
"""A sync or async function of the turn's context (`TurnContext`)."""
DynamicText: TypeAlias = Callable[[Any], str | Awaitable[str | None] | None]
"""A sync or async function that writes a text for the turn's context (`TurnContext`), or returns None for no text."""
DepsFactory: TypeAlias = Callable[[Any], Any]
"""A sync or async function of the turn's context (`TurnContext`) that makes its `deps`."""
FUNCTION_TIMEOUT = 10.0
"""Seconds that a condition or a dynamic text may take."""


class Rule:
    """A rule of the system prompt.

    Args:
        text: The rule, or a function of the turn's context that returns it; an empty text leaves the rule out.
        when: A function of the turn's context; the rule applies only while it returns True.
    """

    __slots__ = ("text", "when")

    def __init__(self, text: str | DynamicText, *, when: Condition | None = None) -> None:
        if not callable(text) and (not isinstance(text, str) or not text.strip()):
            raise ConfigError(f"invalid rule {text!r}: expected a text that is not blank, or a function of the context")
        if when is not None and not callable(when):
            raise ConfigError(f"invalid rule condition {when!r}: `when` must be a function of the context")
        self.text = text
        self.when = when

    @property
    def is_dynamic(self) -> bool:
        """Whether the rule may change from one request to the next."""
        return self.when is not None or callable(self.text)

    @property
    def label(self) -> str:
        """The text, or the name of the function that writes it."""
        return self.text if isinstance(self.text, str) else describe_function(self.text)

    async def applies(self, context: "Context") -> bool:
        """Return whether the condition holds."""
        if self.when is None:
            return True
        return bool(await call_with_context(self.when, context, f"the condition of rule {self.label!r}"))

    async def render(self, context: "Context") -> str:
        """Return the text for this context."""
        if isinstance(self.text, str):
            return self.text
        return await render_text(self.text, context, f"rule {self.label!r}")

    def __repr__(self) -> str:
        return f"Rule({self.label!r}{', when=…' if self.when else ''})"


def describe_function(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", "") or type(function).__name__


async def render_text(text: DynamicText, context: "Context", subject: str) -> str:
    """Return a dynamic text for a context; an empty one if the function returns None."""
    found: Any = await call_with_context(text, context, subject)
    if found is not None and not isinstance(found, str):
        raise PromptFailed(f"{subject} returned {type(found).__name__}: expected a text")
    return found or ""


async def call_with_context(function: Callable[[Any], Any], context: "Context", subject: str) -> Any:
    """Call a function that the developer passed, with a time limit; raises PromptFailed, which names the `subject`."""
    limit = asyncio.timeout(FUNCTION_TIMEOUT)
    try:
        async with limit:
            return await invoke(function, context)
    except TimeoutError as error:
        if limit.expired():
            raise PromptFailed(f"{subject} did not return within {FUNCTION_TIMEOUT:g} seconds") from error
        raise PromptFailed(f"{subject} failed: {type(error).__name__}: {error}") from error
    except Exception as error:
        raise PromptFailed(f"{subject} failed: {type(error).__name__}: {error}") from error


async def choose_tools(tools: Mapping[str, Tool], context: "TurnContext[Any]") -> Mapping[str, Tool]:
    """Return the tools that the choices of their toolsets include for this turn; each choice is made once."""
    made: dict[tuple[Choose, frozenset[str]], bool | frozenset[str]] = {}
    left_out: set[str] = set()
    for wire_name, tool in tools.items():
        for choice in tool.choices:
            key = choice.function, choice.names
            if key not in made:
                made[key] = await _make_choice(choice, context)
            chosen = made[key]
            if chosen is False or (chosen is not True and choice.name not in chosen):
                left_out.add(wire_name)
    return {name: tool for name, tool in tools.items() if name not in left_out} if left_out else tools


async def _make_choice(choice: ToolChoice, context: "TurnContext[Any]") -> bool | frozenset[str]:
    subject = f"the choice of tools {describe_function(choice.function)!r}"
    found: Any = await call_with_context(choice.function, context, subject)
    if isinstance(found, bool):
        return found
    try:
        names = frozenset([found] if isinstance(found, str) else found)
    except TypeError:
        raise PromptFailed(f"{subject} returned {found!r}: expected a bool, or names of tools") from None
    if unknown := sorted(str(name) for name in names - choice.names):
        known = ", ".join(sorted(choice.names))
        raise PromptFailed(f"{subject} returned {unknown[0]!r}: expected names of the toolset, which has {known}")
    return names


class RuleOrigin(msgspec.Struct, frozen=True):
    """Origin of a rule: the context that defines it, and whether its condition holds."""

    text: str
    source: str
    applies: bool
    conditional: bool


class Origin(msgspec.Struct, frozen=True):
    """Origin of a tool or a metadata value: the context that defines it, and the contexts whose value it overrides."""

    name: str
    value: Any
    source: str
    hides: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True):
    """The origin of every rule, tool and value of a context; `str()` formats it for reading."""

    rules: tuple[RuleOrigin, ...]
    tools: tuple[Origin, ...]
    metadata: tuple[Origin, ...]

    def __str__(self) -> str:
        lines = ["rules:"]
        for rule in self.rules:
            state = "" if rule.applies else " (not applied: its `when` was false)"
            lines.append(f"  {rule.text!r} from {rule.source}{state}")
        for title, origins in (("tools", self.tools), ("metadata", self.metadata)):
            lines.append(f"{title}:")
            for origin in origins:
                hidden = f", over {', '.join(origin.hides)}" if origin.hides else ""
                shown = "" if title == "tools" else f" = {origin.value!r}"
                lines.append(f"  {origin.name}{shown} from {origin.source}{hidden}")
        return "\n".join(lines)


class Context:
    """A set of metadata, rules, tools and messages with live inheritance.

    Creating a context copies nothing: parents are read on access, so their later changes are visible. Metadata: the
    child's value wins, then that of the first parent that has one. Rules and messages: the parents' first, then the
    child's. Tools: by name, the child's replaces a parent's. An ancestor reached twice counts once.

    Args:
        parents: Contexts to inherit from.
        name: Name in explanations.
        metadata: Values for prompts, rules and tools; a mapping, or a `Metadata` that is read live.
        rules: Sentences of the system prompt, always present or under a condition.
        tools: Tools, or typed functions that become tools.
        messages: Messages that precede every conversation.
    """

    __slots__ = ("__weakref__", "_assigned", "_messages", "_metadata", "_parents", "_rules", "_tools", "name")

    def __init__(
        self,
        *parents: "Context",
        name: str = "",
        metadata: Metadata | Mapping[str, Any] | None = None,
        rules: Iterable[Rule | str] = (),
        tools: Iterable[ToolLike] = (),
        messages: Iterable[Message] = (),
    ) -> None:
        self.name = name
        self._parents = parents
        self._assigned: tuple[Metadata, ...] = ()
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
        """Add parents and return self; raises ContextCycle if one of them already inherits from this context."""
        for parent in parents:
            if any(ancestor is self for ancestor in parent.lineage()):
                raise ContextCycle(f"{self!r} cannot inherit from {parent!r}, which inherits from it")
        self._parents += parents
        self._metadata.rebase(*self._brokers(), values=self._metadata.local())
        return self

    def copy(self, copy_value: Callable[[Any], Any] = lambda value: value) -> "Context":
        """Internal: return a context with the same parents, and a copy of its own metadata, rules, tools and messages.

        `copy_value` is called with each value and message.
        """
        messages = [copy_value(message) for message in self._messages]
        copied = Context(*self._parents, name=self.name, rules=self._rules, messages=messages)
        copied._assigned, copied._tools = self._assigned, dict(self._tools)
        values = {name: copy_value(value) for name, value in self._metadata.local().items()}
        copied._metadata.rebase(*copied._brokers(), values=values)
        return copied

    def lineage(self) -> Iterator["Context"]:
        """Yield all ancestors once, parents before children, and finally the context itself."""
        seen: set[int] = set()
        stack: list[tuple[Context, bool]] = [(self, False)]
        while stack:  # iterative, because the chain of ancestors may exceed the recursion limit
            context, ready = stack.pop()
            if ready:
                yield context
            elif id(context) not in seen:
                seen.add(id(context))
                stack.append((context, True))
                stack.extend((parent, False) for parent in reversed(context._parents))

    @property
    def metadata(self) -> Metadata:
        """The metadata object, which never changes. Assigning a mapping sets its values; a Metadata is read live."""
        return self._metadata

    @metadata.setter
    def metadata(self, values: Metadata | Mapping[str, Any]) -> None:
        if values is self._metadata:  # as in `context.metadata = context.metadata.set(…)`
            return
        self._assigned = (values,) if isinstance(values, Metadata) else ()
        self._metadata.rebase(*self._brokers(), values=None if isinstance(values, Metadata) else values)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The parents' rules and then its own, including those whose condition does not hold."""
        if not self._parents:
            return self._rules
        return tuple(rule for context in self.lineage() for rule in context._rules)

    @rules.setter
    def rules(self, rules: Iterable[Rule | str]) -> None:
        if isinstance(rules, str) or not isinstance(cast(object, rules), Iterable):
            raise ConfigError(f"rules=… takes a list of rules, got {rules!r}")
        self._rules = tuple(rule if isinstance(rule, Rule) else Rule(rule) for rule in rules)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All tools, one per name."""
        return tuple(self.tool_map().values())

    @tools.setter
    def tools(self, tools: Iterable[ToolLike]) -> None:
        found: dict[str, Tool] = {}
        for tool in expand_tools(tools):
            if tool.wire_name in found:
                raise DuplicateTool(f"duplicate tool name {tool.name!r}: tool names must be unique in a context")
            found[tool.wire_name] = tool
        self._tools = found

    def tool_map(self) -> Mapping[str, Tool]:
        """Internal: return all tools by the name under which the model knows them."""
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
        """Internal: return its own messages as a conversation that shares the list, and the messages of its
        ancestors.
        """
        conversation = Conversation()
        conversation.messages = self._messages
        inherited = [message for context in self.lineage() if context is not self for message in context._messages]
        return conversation, inherited

    async def applied_rules(self) -> list[Rule]:
        """Return the rules whose condition holds for this context now."""
        return [rule for rule in self.rules if rule.when is None or await rule.applies(self)]

    async def explain(self) -> Explanation:
        """Return which context defines each rule, tool and value, what it overrides, and which rules do not apply."""
        lineage = list(self.lineage())
        names = {id(context): self._label(context, index) for index, context in enumerate(lineage)}
        rules = [
            RuleOrigin(
                text=rule.label,
                source=names[id(context)],
                applies=await rule.applies(self),
                conditional=rule.when is not None,
            )
            for context in lineage
            for rule in context._rules
        ]
        order = self._by_precedence()
        sources = [names[id(context)] for context in order]
        return Explanation(
            tuple(rules),
            _find_origins(sources, [context._tools for context in order]),
            _find_origins(sources, [context._own_values() for context in order]),
        )

    def __repr__(self) -> str:
        return f"Context({self.name!r})" if self.name else "Context()"

    def _label(self, context: "Context", index: int) -> str:
        return context.name or ("this context" if context is self else f"context {index + 1}")

    def _by_precedence(self) -> list["Context"]:
        """Return the contexts in lookup order: itself, then each parent with all of its ancestors."""
        seen: dict[int, Context] = {}
        stack: list[Context] = [self]
        while stack:
            context = stack.pop()
            if id(context) not in seen:
                seen[id(context)] = context
                stack.extend(reversed(context._parents))
        return list(seen.values())

    def _brokers(self) -> list[Metadata]:
        return [*self._assigned, *[parent._metadata for parent in self._parents]]

    def _own_values(self) -> dict[str, Any]:
        return {name: value for each in self._assigned for name, value in each.all().items()} | self._metadata.local()


class TurnContext(Context, Generic[Deps]):
    """The context of one turn, which conditions, dynamic prompts and hooks receive.

    Rules and tools are the agent's. Values set in `metadata` belong to the session.

    Attributes:
        conversation: The conversation; `messages` are those of the agent's context, then its own.
        user: The user for whom the turn runs; empty if none was named.
        agent_id: The agent that answers.
        run_id: The id of the turn.
        deps: The value that the caller passed as `deps=…`.
    """

    __slots__ = ("_base", "_run", "agent_id", "conversation", "deps", "run_id", "user")
    _run: "weakref.ref[Any]"

    def __init__(
        self,
        base: Context,
        conversation: Conversation,
        *,
        metadata: Metadata,
        user: str = "",
        agent_id: str = "",
        run_id: str = "",
        deps: Any = None,
    ) -> None:
        self.name = "the turn"
        self._base = base
        self._parents = (base,)
        self._assigned = ()
        self._metadata = metadata
        self._rules, self._tools, self._messages = (), {}, []
        self.conversation = conversation
        self.user = user
        self.agent_id = agent_id
        self.run_id = run_id
        self.deps: Deps = deps

    def bind(self, run: Any) -> "TurnContext[Deps]":
        """Set the run that `ask_model` belongs to, without keeping it in memory, and return the context."""
        self._run = weakref.ref(run)
        return self

    def switch_agent(self, base: Context, agent_id: str) -> "TurnContext[Deps]":
        """Internal: return the context of the same turn for another agent, which continues it."""
        if isinstance(self._metadata, SessionMetadata):
            self._metadata.switch_agent(base.metadata)
        switched: TurnContext[Deps] = TurnContext(
            base,
            self.conversation,
            metadata=self._metadata,
            user=self.user,
            agent_id=agent_id,
            run_id=self.run_id,
            deps=self.deps,
        )
        switched._run = self._run
        return switched

    async def ask_model(self, prompt: str, *, model: Any, system: str = "") -> str:
        """Have a model, such as `openai/gpt-5-nano`, answer a question of its own, without the conversation.

        The usage counts as usage of the turn.
        """
        run = self._run()
        if run is None:
            raise ConfigError("ask_model counts for a turn, and this one has ended: await it within the turn")
        return await run.ask_model(prompt, model, system)

    @property
    def session(self) -> str:
        """The key of the session."""
        return self.conversation.id

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self._base.rules

    @rules.setter
    def rules(self, rules: Iterable[Rule | str]) -> None:
        raise ConfigError("the rules of a turn cannot be changed: set them on the agent or on a context of its own")

    def tool_map(self) -> Mapping[str, Tool]:
        """Internal: return the agent's tools by the name under which the model knows them."""
        return self._base.tool_map()

    @property
    def messages(self) -> list[Message]:
        own = self.conversation.messages
        return [*self._base.messages, *own] if own is not self._base._messages else self._base.messages

    @messages.setter
    def messages(self, messages: Iterable[Message]) -> None:
        raise ConfigError("the messages of a turn cannot be changed: they belong to its conversation")


def _find_origins(names: Sequence[str], definitions: Sequence[Mapping[str, Any]]) -> tuple[Origin, ...]:
    """For each name, return the definition that wins and those it overrides; both sequences are in lookup order."""
    definers: dict[str, list[int]] = {}
    for index, defined in enumerate(definitions):
        for name in defined:
            definers.setdefault(name, []).append(index)
    return tuple(
        Origin(name, definitions[first][name], names[first], tuple(names[other] for other in rest))
        for name, (first, *rest) in definers.items()
    )
