"""Tool: a function, the JSON schema of its arguments, and how it may be run."""

import copy
import inspect
import os
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial, update_wrapper
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from atlas_agents.core.aio import invoke, is_async
from atlas_agents.core.errors import BadTool, DuplicateTool, NotPermitted, ToolFailed, ToolFault
from atlas_agents.core.json import copy_json
from atlas_agents.core.messages import Conversation, ToolSpec
from atlas_agents.core.text import wire_name
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.policy import WHEN_TAINTED, WhenTainted
from atlas_agents.tools.schema import (
    Check,
    Convert,
    compile_check,
    describe_function,
    describe_result,
    is_context,
    read_docstring,
)
from atlas_agents.tools.worker_codec import find_unsendable

Function: TypeAlias = Callable[..., Any]
Effect: TypeAlias = Literal["pure", "keyed", "unsafe"]
Confirm: TypeAlias = bool | Callable[[dict[str, Any]], bool | Awaitable[bool]]
Reconcile: TypeAlias = Callable[..., Any]
Preview: TypeAlias = Callable[[dict[str, Any]], Any]
"""Sync or async; returns the text shown to the person who approves a call with these arguments."""
Choose: TypeAlias = Callable[[Any], Any]
"""Sync or async; chooses tools for the turn's context: a bool for all or none of a toolset, or their names."""
Argv: TypeAlias = Callable[[dict[str, Any]], Any]
"""Sync or async; returns the argument vector of a call that runs exactly one program, else None."""
Binds: TypeAlias = Callable[[dict[str, Any]], Any]
"""Sync or async; returns the facts that a call depends on besides its arguments, as plain JSON."""
Untrusted: TypeAlias = str | Callable[[dict[str, Any]], str | Awaitable[str]]
"""Kind of content by others, such as `web`, or a sync or async function of the arguments that returns its source,
`web: host`."""
Sends: TypeAlias = bool | Callable[[dict[str, Any], Conversation], Any]
"""Whether a call sends data out; a sync or async function decides by the arguments and the conversation."""
Locate: TypeAlias = Callable[[dict[str, Any]], str]
"""Returns the real path of the file that a call concerns; raises ToolFault if the client cannot run the call."""
Around: TypeAlias = Callable[[ToolContext], AbstractAsyncContextManager[None]]
"""A context manager in which each execution of a tool runs."""
_EFFECTS = ("pure", "keyed", "unsafe")
_SINGLE_INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class ClientSide(msgspec.Struct, frozen=True):
    """Changes to a tool if the client runs it in place of the gateway: the client knows the unsaved text of files."""

    locate: Locate
    preview: Preview | None = None
    binds: Binds | None = None


class Tool:
    """A function that agents can call.

    `Tool(name, function)` takes one string. With `parameters` (a JSON schema, or names with their schemas) the
    function takes those by name. `@tool` derives everything from a typed function.

    Args:
        name: Name of the tool; a prefix such as `shop/` names its source.
        function: The function to call, sync or async.
        func: The same as `function`.
        description: Description for the model; the docstring by default.
        parameters: JSON Schema of the arguments, or names with their schemas; one string by default.
        timeout: Seconds after which a call is stopped.
        permissions: Permissions that a policy must grant, such as `file:read`.
        confirm: Whether a person must approve a call: a bool, or a function of the arguments.
        effect: `"pure"`, `"keyed"` or `"unsafe"`: the effect of a second execution.
        in_process: Where a sync function runs: True for a thread of this process, False for a worker process. By
            default a worker process, or a thread for a method, a function that takes a `ToolContext`, and one that
            cannot be pickled.
        reconcile: Finds out whether an interrupted call took effect, by its idempotency key.
        preview: Describes the changes of a call for the person who approves it.
        binds: Facts besides the arguments that an approval is bound to.
        argv: The argument vector of a call that runs exactly one program, for command rules.
        untrusted: Kind of content by others that results contain, such as `web` or `mail`, or a function that returns
            its source. It marks the session.
        sends: Whether calls send data out of this machine to a place that the arguments choose: a bool, or a function.
        when_tainted: `allow`, `ask` or `deny` once the session contains untrusted content, unless the policy decides;
            by default `ask` for calls that send data out, and `allow` for others.
        described: Schema, converter and context parameter that `@tool` has derived already.
    """

    when_tainted: WhenTainted | None
    choices: tuple["ToolChoice", ...] = ()
    """Internal: the choices of the toolsets that the tool comes from, which decide in each turn whether the agent
    has it.
    """
    _is_sendable = True
    _build: Callable[[str], "Tool"] | None = None
    """Returns the tool that a call of a user executes, if it differs between users."""
    runs_at_client = False
    """Internal: the caller of the turn runs it, and posts the result."""
    of_client = False
    """Internal: the caller of the turn brought it, and consents to a call by running it."""
    client_side: ClientSide | None = None
    """Internal: how the caller of a turn can run this tool instead of the gateway; None if it cannot."""
    _client_folder = ""
    around: Around | None = None
    """Internal: returns a context manager that each execution of the function runs in."""

    def __init__(
        self,
        name: str,
        function: Function | None = None,
        *,
        func: Function | None = None,
        description: str = "",
        parameters: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
        permissions: Iterable[str] = (),
        confirm: Confirm = False,
        effect: Effect = "unsafe",
        in_process: bool | None = None,
        reconcile: Reconcile | None = None,
        preview: Preview | None = None,
        binds: Binds | None = None,
        argv: Argv | None = None,
        untrusted: Untrusted = "",
        sends: Sends = False,
        when_tainted: WhenTainted | None = None,
        described: tuple[dict[str, Any], Convert, str | None] | None = None,
    ) -> None:
        chosen = function or func
        if chosen is None or not callable(chosen):
            raise BadTool(f"tool {name!r} requires a function")
        _check_callables(name, reconcile=reconcile, preview=preview, binds=binds, argv=argv)
        self.name = _check_name(name)
        self.function: Function = chosen
        self.description = description or read_docstring(chosen)[0]
        self.timeout = _check_timeout(name, timeout)
        self.permissions = (permissions,) if isinstance(permissions, str) else tuple(permissions)
        self.confirm, self.sends = _check_flag(name, "confirm", confirm), _check_flag(name, "sends", sends)
        self.in_process = _check_in_process(name, in_process, chosen)
        self.effect: Effect = _check_effect(name, effect)
        self.reconcile = reconcile
        """Finds out, by its idempotency key, whether an interrupted call took effect."""
        self.preview = preview
        """Describes the changes of a call for the person who approves it; a ToolFault that it raises ends the call."""
        self.binds = binds
        """Returns facts that an approval is bound to; called when asking and again right before the tool acts."""
        self.argv = argv
        """Returns the argument vector that the command rules of a policy are matched against."""
        self.untrusted, self.when_tainted = _check_untrusted(name, untrusted), _check_tainted(name, when_tainted)
        self.is_async, self._single_input = _runs_on_loop(chosen), parameters is None and described is None
        if described:
            self.parameters: dict[str, Any] = described[0]
            self._convert, self._context = described[1], described[2]
        else:
            self.parameters = _SINGLE_INPUT if parameters is None else _object_schema(name, parameters)
            self._convert, self._context = None, _context_parameter(chosen)
        self.check: Check = compile_check(name, self.parameters)
        """Raises BadArguments unless the arguments match the schema."""

    @cached_property
    def wire_name(self) -> str:
        """The name that the model uses."""
        return wire_name(self.name)

    @cached_property
    def spec(self) -> ToolSpec:
        """The definition that is sent to the model."""
        return ToolSpec(self.wire_name, self.description, self.parameters)

    @cached_property
    def output_schema(self) -> dict[str, Any] | None:
        """JSON schema of the results, if the function's return type is a class with typed fields; else None."""
        return describe_result(self.function)

    @property
    def runs_in_thread(self) -> bool:
        """Whether calls run in a thread of this process, which cannot be stopped."""
        if self.is_async or self.in_process is not None:
            return bool(self.in_process) and not self.is_async
        return self._context is not None or _is_of_object(self.function) or not self._is_sendable

    def move_to_thread(self, reason: str) -> None:
        """Internal: run further calls in a thread, because the function cannot be sent to a worker process."""
        if self.in_process is False:
            raise _not_sendable_error(self.name, reason)
        self._is_sendable = False

    def convert(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Internal: convert valid JSON arguments to the types of the function.

        The result is a copy that the function may modify.
        """
        own = copy_json(arguments)
        return self._convert(own) if self._convert else own

    @property
    def takes_context(self) -> bool:
        """Internal: whether the function takes the context of a call."""
        return self._context is not None or (not self._single_input and self._takes_dict > 1)

    def bind(self, values: dict[str, Any], context: ToolContext | None) -> tuple[list[Any], dict[str, Any]]:
        """Internal: return the positional and named arguments for the function."""
        named = dict(values)
        if self._single_input:
            first: list[Any] = [named.pop("input")]
            if self._context_first:
                return [context, *first], {}
        elif self._takes_dict:
            return [named, context][: self._takes_dict], {}
        else:
            first = []
        if self._context:
            named[self._context] = context
        return first, named

    @cached_property
    def _takes_dict(self) -> int:
        """1 or 2 for a function that takes the arguments as one dict (and the context); 0 for named arguments."""
        if self._convert or self._single_input:
            return 0
        known = inspect.signature(self.function).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        names: set[str] = set(self.parameters.get("properties") or ())
        if takes_any or names & set(known) or not known or (self._context and len(known) == 1):
            return 0
        return min(len(known), 2)

    @cached_property
    def _context_first(self) -> bool:
        return self._context is not None and next(iter(inspect.signature(self.function).parameters)) == self._context

    async def find_source(self, arguments: dict[str, Any]) -> str:
        """Internal: return the source of untrusted content in the result of a call; empty if the result is trusted."""
        if callable(self.untrusted):
            return str(await invoke(self.untrusted, copy_json(arguments)))
        return f"{self.untrusted}: {self.name}" if self.untrusted else ""

    def named(self, name: str) -> "Tool":
        """Return the same tool with another name."""
        copied = copy.copy(self)
        copied.name = _check_name(name)
        for cached in ("wire_name", "spec"):
            copied.__dict__.pop(cached, None)
        return copied

    def chosen_by(self, choice: "ToolChoice") -> "Tool":
        """Internal: return the same tool; an agent has it only in turns in which the choice includes it."""
        copied = copy.copy(self)
        copied.choices = (*self.choices, choice)
        return copied

    def per_user(self, build: Callable[[str], "Tool"]) -> "Tool":
        """Return the same tool; a call executes the one that `build` returns for the user who makes it.

        That one needs the same parameters. It can work in a folder or with an account of the user.
        """
        copied = copy.copy(self)
        copied._build = build
        return copied

    def for_user(self, user: str) -> "Tool":
        """Internal: return the tool that a call of this user executes."""
        if self._build is None:
            return self
        built = self._build(user).named(self.name)
        built.around = self.around
        return built

    def at_client(self, arguments: dict[str, Any], folder: str) -> "Tool":
        """Internal: return the tool for a call that the client runs, if its file is in the folder that the client has
        open; otherwise this tool.
        """
        if self.client_side is None:
            return self
        copied = copy.copy(self)
        copied.runs_at_client, copied._client_folder = True, folder
        copied.effect = "pure" if self.effect == "pure" else "keyed"
        copied.preview, copied.binds, copied.reconcile = self.client_side.preview, self.client_side.binds, None
        try:
            self.check(arguments)
            copied.locate_at_client(arguments)
        except ToolFault:
            return self
        return copied

    def locate_at_client(self, arguments: dict[str, Any]) -> str:
        """Internal: return the path of the file of a call that the client runs; empty if it concerns none."""
        if self.client_side is None:
            return ""
        path = self.client_side.locate(arguments)
        if not PurePath(path).is_relative_to(os.path.realpath(self._client_folder)):
            raise NotPermitted(f"{path} is outside {self._client_folder}, the folder that the client has open.")
        return path

    def within(self, around: Around) -> "Tool":
        """Internal: return the same tool; each execution of its function runs in the context manager that `around`
        returns.
        """
        copied = copy.copy(self)
        copied.around = around
        return copied

    def with_function(self, function: Function) -> "Tool":
        """Internal: return the same tool with another function of the same signature."""
        copied = copy.copy(self)
        copied.function, copied.is_async = function, _runs_on_loop(function)
        if self._convert is None:
            copied._context = _context_parameter(function)
            copied.__dict__.pop("_takes_dict", None)
            copied.__dict__.pop("_context_first", None)
        return copied

    def check_bound(self) -> None:
        """Internal: raise BadTool if the function lacks its object."""

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


class ToolChoice(msgspec.Struct, frozen=True, eq=False):
    """A function of the turn's context that chooses from the `names` of a toolset, and the name of one tool in it."""

    function: Choose
    names: frozenset[str]
    name: str


class Toolset:
    """Tools as one value, for one or several agents. Each method returns a new toolset.

    Pass it as `tools=` or as one of `tools=[…]`. Models, policies and the audit log use the names that the tools have
    in the last toolset.

    Args:
        tools: Tools, typed functions, definitions and other toolsets.
    """

    __slots__ = ("_tools",)

    def __init__(self, tools: "Iterable[ToolLike]" = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in expand_tools(tools):
            if tool.wire_name in self._tools:
                raise DuplicateTool(
                    f"duplicate tool name {tool.name!r} in a toolset: use `prefix` or `rename` before you combine"
                )
            self._tools[tool.wire_name] = tool

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools."""
        return tuple([tool.name for tool in self])

    def filter(self, keep: Callable[[Tool], bool]) -> "Toolset":
        """Keep the tools for which a function returns True."""
        return Toolset([tool for tool in self if keep(tool)])

    def prefix(self, prefix: str) -> "Toolset":
        """Put a text before each name, such as `shop_`; `shop/` names the source."""
        return Toolset([tool.named(f"{prefix}{tool.name}") for tool in self])

    def rename(self, names: Mapping[str, str]) -> "Toolset":
        """Give tools other names: `{"old": "new"}`."""
        self._require(names, "rename")
        return Toolset([tool.named(names.get(tool.name, tool.name)) for tool in self])

    def choose(self, function: Choose) -> "Toolset":
        """Choose tools in each turn.

        Args:
            function: A sync or async function of the turn's context (`TurnContext`), called once in a turn. It returns
                True for all tools, False for none, or the names of those that the agent has in this turn.
        """
        names = frozenset(self.names)
        return Toolset([tool.chosen_by(ToolChoice(function, names, tool.name)) for tool in self])

    def _require(self, names: Iterable[str], method: str) -> None:
        if missing := [name for name in names if name not in self.names]:
            raise BadTool(f"cannot {method} {missing[0]!r}: the toolset has {', '.join(self.names) or 'no tools'}")

    def __add__(self, other: "Iterable[ToolLike]") -> "Toolset":
        """Combine with other tools; their names must differ."""
        return Toolset([*self, *other])

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __repr__(self) -> str:
        return f"Toolset({', '.join(self.names)})"


ToolLike: TypeAlias = Tool | Toolset | Function | Mapping[str, Any]
"""Accepted forms of a tool: a tool, a toolset, a typed function, or a definition as a dict."""


class ToolOptions(TypedDict, total=False):
    """The options of `@tool` and `Tool`; `Tool` describes them."""

    timeout: float
    permissions: Iterable[str]
    confirm: Confirm
    effect: Effect
    in_process: bool | None
    reconcile: Reconcile | None
    preview: Preview | None
    binds: Binds | None
    argv: Argv | None
    untrusted: Untrusted
    sends: Sends
    when_tainted: WhenTainted | None


P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class FunctionTool(Tool, Generic[P, R_co]):
    """The tool that `@tool` makes from a function. It can be called like that function, also as a method.

    Such a call is a plain call: it is neither checked nor limited, and has no audit row.
    """

    __name__: str
    _is_unbound = False

    def __call__(self, *args: P.args, **named: P.kwargs) -> R_co:
        """Call the function itself."""
        return self.function(*args, **named)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> "FunctionTool[P, R_co]": ...
    @overload
    def __get__(
        self: Callable[Concatenate[Any, Q], R_co], instance: object, owner: type | None = None
    ) -> "FunctionTool[Q, R_co]": ...
    def __get__(self, instance: object, owner: type | None = None) -> "FunctionTool[..., R_co]":
        """Return the tool of an object, for a method of its class."""
        if instance is None or not self._is_unbound:
            return self
        bound = self.with_function(MethodType(self.function, instance))
        bound._is_unbound = False
        return bound

    def with_function(self, function: Function) -> "FunctionTool[P, R_co]":
        """Return the same tool with another function of the same signature."""
        copied = cast("FunctionTool[P, R_co]", super().with_function(function))
        update_wrapper(copied, function, updated=())
        return copied

    def check_bound(self) -> None:
        """Raise BadTool for a method that was not accessed through an object."""
        if self._is_unbound:
            where = getattr(self.function, "__qualname__", self.name)
            raise BadTool(f"tool {self.name!r} is a method: pass it from an object, as in {where.replace('.', '().')}")


@overload
def tool(function: Callable[P, R_co], /, **options: Unpack[ToolOptions]) -> FunctionTool[P, R_co]: ...
@overload
def tool(definition: Mapping[str, Any], function: Function, /, **options: Unpack[ToolOptions]) -> Tool: ...
@overload
def tool(definition: Mapping[str, Any], /, **options: Unpack[ToolOptions]) -> Callable[[Function], Tool]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str = "",
    timeout: float = 30.0,
    permissions: Iterable[str] = (),
    confirm: Confirm = False,
    effect: Effect = "unsafe",
    in_process: bool | None = None,
    reconcile: Reconcile | None = None,
    preview: Preview | None = None,
    binds: Binds | None = None,
    argv: Argv | None = None,
    untrusted: Untrusted = "",
    sends: Sends = False,
    when_tainted: WhenTainted | None = None,
) -> Callable[[Callable[P, R_co]], FunctionTool[P, R_co]]: ...
def tool(
    first: Function | Mapping[str, Any] | None = None,
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str = "",
    **options: Any,
) -> Tool | Callable[[Function], Tool]:
    """Create a tool from a typed function: its name, docstring and type hints are the definition.

    The function stays callable. In a class it makes a tool of each object. Also `tool(definition, function)`, with the
    definition as a dict, in the form of OpenAI, Anthropic or MCP.
    """
    if isinstance(first, Mapping):
        definition = first
        if function is None:
            return lambda handler: _defined_tool(definition, handler, options)
        return _defined_tool(definition, function, options)
    if isinstance(first, classmethod):
        raise BadTool("write @classmethod above @tool, not below it")
    if first is not None and not callable(first):
        raise BadTool(f"expected a function, got {first!r}: write @tool, or @tool(name=…)")

    def build(function: Function) -> Tool:
        chosen = name or _function_name(function)
        if not name and chosen == "<lambda>":
            raise BadTool("a lambda has no name: expected Tool(name, function) or @tool(name=…)")
        found = describe_function(chosen, function)
        described = (found.parameters, found.convert, found.context)
        made = FunctionTool[..., Any](
            chosen, function, description=description or found.text, described=described, **options
        )
        made._is_unbound = found.is_method
        update_wrapper(made, function, updated=())
        return made

    return build(first) if first is not None else build


def _defined_tool(given: Mapping[str, Any], function: Function, options: Mapping[str, Any]) -> Tool:
    """Create a tool from a definition: `parameters`, `input_schema` or `inputSchema` is its JSON schema."""
    inner: Any = given.get("function")
    definition = cast(Mapping[str, Any], inner if isinstance(inner, Mapping) else given)
    if not definition.get("name"):
        raise BadTool("a tool definition requires a name")
    keys = ("parameters", "input_schema", "inputSchema")
    schema = next((definition[key] for key in keys if definition.get(key)), dict[str, Any]())
    if not isinstance(schema, Mapping):
        raise BadTool(f"the parameters of tool {definition['name']!r} must be a JSON schema, got {schema!r}")
    is_complete = not schema or "properties" in schema or "$ref" in schema
    parameters: dict[str, Any] = {"type": "object", "properties": {}} if is_complete else {}
    parameters.update(cast(Mapping[str, Any], schema))
    text = str(definition.get("description") or "")
    return Tool(str(definition["name"]), function, description=text, parameters=parameters, **options)


def _tool_of_mapping(item: Mapping[str, Any]) -> Tool:
    """Return the tool of a definition that was passed as a tool, with or without a function under `handler`."""
    handler = item.get("handler") or item.get("function")
    if callable(handler):
        return _defined_tool(item.get("definition") or item, handler, {})
    found = _defined_tool(item.get("definition") or item, _placeholder, {})

    async def reject(**arguments: Any) -> None:
        raise ToolFailed(f"{found.name} has no function in this program: nothing was run")

    return found.with_function(reject)


_templates: weakref.WeakKeyDictionary[Function, Tool] = weakref.WeakKeyDictionary()
"""Tools derived from functions, without the functions: a reference would keep the weak key alive."""


def expand_tools(items: Iterable[ToolLike]) -> Iterator[Tool]:
    """Yield the tool of each item, and all tools of each toolset."""
    if isinstance(items, (Tool, Mapping)) or callable(items):
        raise BadTool(f"tools must be a list of tools or a toolset, got {items!r}: write tools=[…]")
    for item in items:
        if isinstance(item, Toolset):
            yield from item
        else:
            yield as_tool(item)


def as_tool(item: Tool | Function | Mapping[str, Any]) -> Tool:
    """Return a tool unchanged, or the tool that a typed function, another callable or a definition defines."""
    if isinstance(item, FunctionType):
        return _tool_of_function(item)
    if isinstance(item, Tool):
        item.check_bound()
        return item
    decorated: Any = getattr(item, "__func__", None)
    if isinstance(item, MethodType) and isinstance(decorated, FunctionTool):  # `@classmethod` in Python 3.13
        return cast(FunctionTool[..., Any], decorated).__get__(item.__self__)
    if isinstance(item, Mapping):
        return _tool_of_mapping(item)
    if not callable(item):
        raise BadTool(f"{item!r} is neither a tool nor a function")
    return tool(item)


def _tool_of_function(function: FunctionType) -> Tool:
    """Return the tool of a plain function. Properties of the function are derived once and then copied."""
    template = _templates.get(function)
    if template is None:
        made = tool(function)
        made.check_bound()
        _ = made.spec  # cached for all copies
        _templates[function] = _copy_with(made, _placeholder)
        return made
    return _copy_with(template, function)


def _copy_with(template: Tool, function: Function) -> Tool:
    """Copy a tool with the same function, or a placeholder for it."""
    copied = object.__new__(type(template))
    copied.__dict__ = template.__dict__.copy()  # in one piece; `update` would add each of forty attributes
    copied.function = copied.__dict__["__wrapped__"] = function
    return copied


def _is_of_object(function: Function) -> bool:
    """Return whether a call can change an object of this process: a method of an object, or an object to call."""
    if isinstance(function, MethodType):
        return not isinstance(function.__self__, type)
    return not isinstance(function, (FunctionType, BuiltinFunctionType, partial, type))


def _not_sendable_error(name: str, reason: str) -> BadTool:
    return BadTool(
        f"tool {name!r} cannot run in a worker process: {reason}; "
        "set in_process=True to run it in a thread of this process, or make it async"
    )


def _placeholder() -> None:
    """Placeholder for a function that is set later."""


def _runs_on_loop(function: Function) -> bool:
    return is_async(function) or inspect.isasyncgenfunction(function)


def _function_name(function: Any) -> str:
    while isinstance(function, partial):
        function = cast(Any, function).func
    return str(getattr(function, "__name__", type(function).__name__))


def _check_name(name: str) -> str:
    if not name or not name.strip() or len(name) > 200 or not name.isprintable():
        raise BadTool(f"invalid tool name {name!r}: expected 1 to 200 printable characters")
    return name


def _check_callables(name: str, **given: object) -> None:
    for option, value in given.items():
        if value is not None and not callable(value):
            raise BadTool(f"{option} of tool {name!r} must be a function, got {value!r}")


def _check_flag(name: str, option: str, value: T) -> T:
    if not isinstance(value, bool) and not callable(value):
        raise BadTool(f"{option} of tool {name!r} must be True, False or a function, got {value!r}")
    return value


def _check_untrusted(name: str, given: Untrusted) -> Untrusted:
    if not isinstance(given, str) and not callable(given):
        raise BadTool(f"untrusted of tool {name!r} must be a text or a function, got {given!r}")
    return given


def _check_in_process(name: str, in_process: bool | None, function: Function) -> bool | None:
    if in_process is False and not _runs_on_loop(function) and (found := find_unsendable(function)) is not None:
        raise _not_sendable_error(name, f"{found[0]!r} cannot be pickled: {found[1]}")
    return in_process


def _check_timeout(name: str, timeout: float) -> float:
    if not timeout > 0:
        raise BadTool(f"timeout of tool {name!r} must be more than 0 seconds, got {timeout!r}")
    return float(timeout)


def _check_tainted(name: str, given: WhenTainted | None) -> WhenTainted | None:
    if given is not None and given not in WHEN_TAINTED:
        raise BadTool(f"when_tainted of tool {name!r} must be one of {', '.join(WHEN_TAINTED)}, got {given!r}")
    return given


def _check_effect(name: str, effect: Effect) -> Effect:
    if effect not in _EFFECTS:
        raise BadTool(f"effect of tool {name!r} must be one of {', '.join(_EFFECTS)}, got {effect!r}")
    return effect


def _object_schema(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a complete JSON schema unchanged; complete `{"city": {"type": "string"}}` or `{"city": str}`."""
    given = dict(parameters)
    if given.get("type") == "object":
        return given
    types = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
    properties: dict[str, Any] = {}
    for field, value in given.items():
        if isinstance(value, type) and value in types:
            properties[field] = {"type": types[value]}
        elif isinstance(value, Mapping):
            properties[field] = dict(cast(Mapping[str, Any], value))
        else:
            raise BadTool(f"parameter {field!r} of tool {name!r} must be a JSON schema or a plain type, got {value!r}")
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _context_parameter(function: Function) -> str | None:
    try:
        known = inspect.signature(function, eval_str=True).parameters.values()
    except (NameError, TypeError, ValueError):
        return None
    return next((item.name for item in known if is_context(item.annotation)), None)
