"""A tool is a function, the schema of its arguments, and the terms under which it may run."""

import copy
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from types import FunctionType
from typing import Any, Literal, TypeAlias, cast, overload

from atlas_agents.core.aio import is_async
from atlas_agents.core.errors import BadTool
from atlas_agents.core.messages import ToolSpec
from atlas_agents.core.text import wire_name
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.schema import Check, Convert, compile_check, describe, is_context, read_docstring

Function: TypeAlias = Callable[..., Any]
Effect: TypeAlias = Literal["pure", "keyed", "unsafe"]
Confirm: TypeAlias = bool | Callable[[dict[str, Any]], bool]
Reconcile: TypeAlias = Callable[..., Any]
Preview: TypeAlias = Callable[[dict[str, Any]], Any]
"""Sync or async; gives the text that a person is shown who is asked about a call with these arguments."""
Argv: TypeAlias = Callable[[dict[str, Any]], Any]
"""Sync or async; gives the words of the one program that a call would run, or None if it would do more than that."""
Binds: TypeAlias = Callable[[dict[str, Any]], Any]
"""Sync or async; gives what else than its arguments a call depends on, as plain JSON."""
_EFFECTS = ("pure", "keyed", "unsafe")
_ONE_TEXT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class Tool:
    """Something an agent can do.

    `Tool(name, function)` takes one string. With `parameters` (a JSON schema, or names with their schemas) the
    function takes those by name. `@tool` reads all of it off a typed function.

    Args:
        name: Name of the tool; a prefix such as `shop/` names its source.
        function: The function to call, sync or async. A sync function runs in a worker process.
        func: The same as `function`.
        description: What the model reads; the docstring by default.
        parameters: JSON Schema of the arguments, or names with their schemas; one string by default.
        timeout: Seconds after which a call is stopped.
        permissions: Permissions that a policy must grant, such as `file:read`.
        confirm: Whether a person must approve a call: a bool, or a function of the arguments.
        effect: `"pure"`, `"keyed"` or `"unsafe"`: what a second execution would do.
        in_process: Run a sync function in a thread of this process instead of a worker process.
        reconcile: Finds out whether an interrupted call took effect, by its idempotency key.
        preview: Describes what a call would change, for the person who approves it.
        binds: Facts besides the arguments that an approval is bound to.
        argv: The argument vector of a call that runs exactly one program, for command rules.
        described: Schema, converter and context parameter that `@tool` has read already.
    """

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
        in_process: bool = False,
        reconcile: Reconcile | None = None,
        preview: Preview | None = None,
        binds: Binds | None = None,
        argv: Argv | None = None,
        described: tuple[dict[str, Any], Convert, str | None] | None = None,
    ) -> None:
        chosen = function or func
        if chosen is None or not callable(chosen):
            raise BadTool(f"the tool {name!r} needs a function")
        _functions(name, reconcile=reconcile, preview=preview, binds=binds, argv=argv)
        self.name = _checked_name(name)
        self.function: Function = chosen
        self.description = description or read_docstring(chosen)[0]
        self.timeout = _positive(name, timeout)
        self.permissions = (permissions,) if isinstance(permissions, str) else tuple(permissions)
        self.confirm = confirm
        self.effect: Effect = _one_of(name, effect)
        self.in_process = in_process
        self.reconcile = reconcile
        """Finds out what became of a call that was cut short, by its idempotency key."""
        self.preview = preview
        """Says what a call would change, to a person who is asked about it; a fault that it raises ends the call."""
        self.binds = binds
        """Looks up what a yes holds for besides the arguments, when it is asked for and again before the tool acts."""
        self.argv = argv
        """Lets the command rules of a policy spare a question, for calls that run exactly one program."""
        self.is_async = is_async(chosen)
        self._one_text = parameters is None and described is None
        if described:
            self.parameters: dict[str, Any] = described[0]
            self._convert, self._context = described[1], described[2]
        else:
            self.parameters = _ONE_TEXT if parameters is None else _object_schema(name, parameters)
            self._convert, self._context = None, _context_parameter(chosen)
        self.check: Check = compile_check(name, self.parameters)
        """Raises BadArguments unless the arguments fit the schema."""

    @cached_property
    def wire_name(self) -> str:
        """The name under which a model knows it."""
        return wire_name(self.name)

    @cached_property
    def spec(self) -> ToolSpec:
        """What a model is told of it."""
        return ToolSpec(self.wire_name, self.description, self.parameters)

    def convert(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Checked JSON as the values that the function's types ask for; its own, so that it may change them."""
        own = {
            name: copy.deepcopy(value) if type(value) in (list, dict) else value for name, value in arguments.items()
        }
        return self._convert(own) if self._convert else own

    def bind(self, values: dict[str, Any], context: ToolContext) -> tuple[list[Any], dict[str, Any]]:
        """The positional and named arguments to call the function with."""
        named = dict(values)
        if self._one_text:
            first: list[Any] = [named.pop("input")]
            if self._context_leads:
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
        """1 or 2 for a function that wants the arguments as one dict (and the context); 0 for one that wants names."""
        if self._convert or self._one_text:
            return 0
        known = inspect.signature(self.function).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
        names: set[str] = set(self.parameters.get("properties") or ())
        if takes_any or names & set(known) or not known or (self._context and len(known) == 1):
            return 0
        return min(len(known), 2)

    @cached_property
    def _context_leads(self) -> bool:
        return self._context is not None and next(iter(inspect.signature(self.function).parameters)) == self._context

    def named(self, name: str) -> "Tool":
        """The same tool under another name."""
        twin = copy.copy(self)
        twin.name = _checked_name(name)
        for worked_out in ("wire_name", "spec"):
            twin.__dict__.pop(worked_out, None)
        return twin

    def around(self, function: Function) -> "Tool":
        """The same tool around another function of the same signature."""
        twin = copy.copy(self)
        twin.function = function
        return twin

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


@overload
def tool(function: Function, /) -> Tool: ...
@overload
def tool(definition: Mapping[str, Any], function: Function, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str = "",
    timeout: float = 30.0,
    permissions: Iterable[str] = (),
    confirm: Confirm = False,
    effect: Effect = "unsafe",
    in_process: bool = False,
    reconcile: Reconcile | None = None,
    preview: Preview | None = None,
    binds: Binds | None = None,
    argv: Argv | None = None,
) -> Callable[[Function], Tool]: ...
def tool(
    first: Function | Mapping[str, Any] | None = None,
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str = "",
    **terms: Any,
) -> Tool | Callable[[Function], Tool]:
    """Make a tool of a typed function: its name, docstring and type hints are the definition.

    Also `tool(definition, function)`, with the definition as a dict of name, description and parameters.
    """
    if isinstance(first, Mapping):
        definition = dict(cast(Mapping[str, Any], first))
        if "name" not in definition or function is None:
            raise BadTool("tool(definition, function) needs a name in the definition, and a function")
        parameters: dict[str, Any] = definition.get("parameters") or {"type": "object", "properties": {}}
        words = str(definition.get("description") or "")
        return Tool(str(definition["name"]), function, description=words, parameters=parameters, **terms)

    def build(function: Function) -> Tool:
        chosen = name or _name_of(function)
        if not name and chosen == "<lambda>":
            raise BadTool("a lambda has no name: use Tool(name, function) or @tool(name=…)")
        found = describe(chosen, function)
        described = (found.parameters, found.convert, found.context)
        return Tool(chosen, function, description=description or found.text, described=described, **terms)

    return build(first) if first is not None else build


_moulds: weakref.WeakKeyDictionary[Function, Tool] = weakref.WeakKeyDictionary()
"""What was read off a function, without the function: it would keep itself alive here for ever."""


def as_tool(item: Tool | Function) -> Tool:
    """A tool as it is; of a typed function, or anything else that can be called, the tool it describes."""
    if isinstance(item, Tool):
        return item
    if not callable(item):
        raise BadTool(f"{item!r} is neither a tool nor a function")
    if not isinstance(item, FunctionType):
        return tool(item)
    mould = _moulds.get(item)
    if mould is None:
        mould = _moulds[item] = tool(item).around(_nothing)
        _ = mould.spec  # worked out once for all
    return mould.around(item)


def _nothing() -> None:
    """Stands where a function will be."""


def _name_of(function: Any) -> str:
    while isinstance(function, partial):
        function = cast(Any, function).func
    return str(getattr(function, "__name__", type(function).__name__))


def _checked_name(name: str) -> str:
    if not name or not name.strip() or len(name) > 200 or not name.isprintable():
        raise BadTool(f"{name!r} is no name for a tool")
    return name


def _functions(name: str, **given: object) -> None:
    for term, value in given.items():
        if value is not None and not callable(value):
            raise BadTool(f"{term} of the tool {name!r} must be a function, not {value!r}")


def _positive(name: str, timeout: float) -> float:
    if not timeout > 0:
        raise BadTool(f"the timeout of the tool {name!r} must be more than 0 seconds, not {timeout!r}")
    return float(timeout)


def _one_of(name: str, effect: Effect) -> Effect:
    if effect not in _EFFECTS:
        raise BadTool(f"the effect of the tool {name!r} is one of {', '.join(_EFFECTS)}, not {effect!r}")
    return effect


def _object_schema(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A whole JSON schema as it is; `{"city": {"type": "string"}}` or `{"city": str}` completed to one."""
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
            raise BadTool(
                f"parameter {field!r} of the tool {name!r} is neither a JSON schema nor a plain type: {value!r}"
            )
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _context_parameter(function: Function) -> str | None:
    try:
        known = inspect.signature(function, eval_str=True).parameters.values()
    except (NameError, TypeError, ValueError):
        return None
    return next((item.name for item in known if is_context(item.annotation)), None)
