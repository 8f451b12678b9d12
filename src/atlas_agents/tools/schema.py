"""From a typed function to the JSON schema of its parameters, and from JSON back to its Python values.

pydantic, griffe and jsonschema-rs are imported with the first tool, not with the package.
"""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import UnionType
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec

from atlas_agents.core.errors import BadArguments, BadTool
from atlas_agents.core.json import encode
from atlas_agents.tools.context import ToolContext

MAX_BYTES = 64 * 1024
MAX_DEPTH = 40
MAX_WORK = 20_000


def check_bounds(name: str, schema: dict[str, Any]) -> None:
    """Refuse a schema that could hang or burst whoever checks arguments against it; BadTool says why."""
    where = f"the parameters of the tool {name!r}"
    try:
        size = len(encode(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadTool(f"{where} are no plain JSON: {error}") from error
    if size > MAX_BYTES:
        raise BadTool(f"{where} are {size:,} bytes long; at most {MAX_BYTES:,} are taken")
    if _depth(schema) > MAX_DEPTH:
        raise BadTool(f"{where} are nested deeper than {MAX_DEPTH} levels")
    if _NodeCount(schema, where).of(schema) > MAX_WORK:
        raise BadTool(f"{where} refer to themselves so often that checking them would not end")


def _depth(schema: Any) -> int:
    level, here = 0, [schema]
    while here and level <= MAX_DEPTH:
        level, here = level + 1, [child for node in here for child in _children(node)]
    return level


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(cast(dict[str, Any], node).values())
    return cast(list[Any], node) if isinstance(node, list) else []


class _NodeCount:
    """How many nodes a check visits once every reference is followed; a reference to something open counts as one."""

    def __init__(self, root: dict[str, Any], where: str) -> None:
        self._root = root
        self._where = where
        self._known: dict[str, int] = {}
        self._open: set[str] = set()

    def of(self, node: Any) -> int:
        work = 1
        if isinstance(node, dict):
            for key in ("$ref", "$dynamicRef"):
                target = cast(dict[str, Any], node).get(key)
                if isinstance(target, str):
                    work += self._behind(target)
        for child in _children(node):
            work += self.of(child)
            if work > MAX_WORK:
                break
        return work

    def _behind(self, pointer: str) -> int:
        if not pointer.startswith("#"):
            raise BadTool(f"{self._where} refer to {pointer!r}; only references inside the schema are followed")
        if pointer in self._open:
            return 1
        if pointer not in self._known:
            self._open.add(pointer)
            self._known[pointer] = self.of(self._target(pointer))
            self._open.discard(pointer)
        return self._known[pointer]

    def _target(self, pointer: str) -> Any:
        node: Any = self._root
        for step in pointer.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and step.isdigit() and int(step) < len(cast(list[Any], node)):
                node = cast(list[Any], node)[int(step)]
            else:
                node = cast(dict[str, Any], node).get(step) if isinstance(node, dict) else None
        return node


def readable(annotation: Any) -> Any:
    """The same type, with each TypedDict in it in the form that pydantic reads."""
    return annotation if sys.version_info >= (3, 12) else _backported(annotation)


def _backported(annotation: Any) -> Any:
    if is_typeddict(annotation) and type(annotation).__module__ == "typing":
        return _rebuilt(annotation)
    inner = get_args(annotation)
    newer = tuple([_backported(each) for each in inner])
    if newer == inner:
        return annotation
    origin: Any = get_origin(annotation)
    if origin is Annotated:
        return Annotated[(newer[0], *annotation.__metadata__)]
    return Union[newer] if origin is UnionType else origin[newer]  # noqa: UP007 - a tuple of types


def _rebuilt(old: Any) -> Any:
    import typing_extensions

    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(old, include_extras=True).items():
        bare = get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
        fields[name] = (Required if name in old.__required_keys__ else NotRequired)[_backported(bare)]
    make: Any = typing_extensions.TypedDict
    return make(old.__name__, fields)


Convert = Callable[[dict[str, Any]], dict[str, Any]]
Check = Callable[[dict[str, Any]], None]
_MOST_PROBLEMS = 8
_LONG = 100_000


class Description(msgspec.Struct, frozen=True):
    """What can be read off a function."""

    text: str
    parameters: dict[str, Any]
    convert: Convert
    context: str | None
    """The parameter that takes the ToolContext, if there is one."""


def describe(name: str, function: Callable[..., Any]) -> Description:
    """Read a function's signature and docstring, or raise BadTool saying which parameter is at fault."""
    context, typed = None, dict[str, inspect.Parameter]()
    given = _given(function)
    for parameter in _signature(name, function).parameters.values():
        if is_context(parameter.annotation):
            context = parameter.name
        elif parameter.name not in given:
            _check_parameter(name, parameter)
            typed[parameter.name] = parameter
    text, words = read_docstring(function)
    parameters, convert = _model(name, typed)
    for field, schema in parameters.get("properties", {}).items():
        if said := _annotated(typed[field].annotation) or words.get(field):
            schema.setdefault("description", said)
    return Description(text, parameters, convert, context)


def compile_check(name: str, schema: dict[str, Any], *, formats: bool = False) -> Check:
    """A function that raises BadArguments naming every field that does not fit; with `formats`, a text that is no
    address or date, too."""
    import jsonschema_rs

    check_bounds(name, schema)
    try:
        validator = jsonschema_rs.validator_for(
            schema, offline=True, pattern_options=jsonschema_rs.RegexOptions(), validate_formats=formats
        )
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise BadTool(f"the parameters of the tool {name!r} are no valid JSON schema: {error}") from error

    def problems_of(arguments: dict[str, Any]) -> list[Any]:
        """Of long arguments the first alone: there could be thousands, and all are looked for before any is given."""
        if len(repr(arguments)) < _LONG:
            return list(validator.iter_errors(arguments))
        try:
            validator.validate(arguments)
        except jsonschema_rs.ValidationError as error:
            return [error]
        return []

    def check(arguments: dict[str, Any]) -> None:
        try:
            if validator.is_valid(arguments):
                return
            problems = [f"{_path(error.instance_path)}{error.message}" for error in problems_of(arguments)]
        except (ValueError, RecursionError) as error:
            raise BadArguments(f"the arguments are no plain JSON: {error}") from error
        if any("unexpected" in problem for problem in problems):
            problems.append(f"the parameters are {', '.join(schema.get('properties') or ()) or 'none'}")
        raise BadArguments("; ".join(problems[:_MOST_PROBLEMS]))

    return check


def read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """(the description, what it says of each parameter); Google, NumPy and Sphinx styles are known."""
    text = inspect.getdoc(_documented(function)) or ""
    if "\n" not in text:
        return text, {}
    import griffe

    found, words = list[str](), dict[str, str]()
    for section in griffe.parse_auto(griffe.Docstring(text, lineno=1), per_style_options=_quiet()):
        if section.kind is griffe.DocstringSectionKind.text:
            found.append(str(section.value).strip())
        elif section.kind is griffe.DocstringSectionKind.parameters:
            words.update(
                {item.name: " ".join(str(item.description).split()) for item in cast(list[Any], section.value)}
            )
    return "\n\n".join(found), words


def _quiet() -> Any:
    """The parser is given no signature to compare with, so it must not complain that there is none."""
    return {style: {"warnings": False} for style in ("google", "numpy", "sphinx")}


def _signature(name: str, function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, TypeError, ValueError, AttributeError, SyntaxError) as error:
        raise BadTool(f"the parameters of the tool {name!r} cannot be read: {error}") from error


def _given(function: Any) -> Mapping[str, Any]:
    """What a partial already has by name: the model has no say in it, and does not see it."""
    return cast(Any, function).keywords if isinstance(function, partial) else {}


def _documented(function: Any) -> Any:
    """Whose docstring speaks for it: what a partial wraps, and an object's `__call__` before its class."""
    while isinstance(function, partial):
        function = cast(Any, function).func
    if inspect.isroutine(function):
        return function
    return type(function).__call__ if type(function).__call__.__doc__ else function


def is_context(annotation: Any) -> bool:
    """Whether a parameter is to be given the ToolContext; `ToolContext | None` counts."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType, Annotated) else (annotation,)
    return any(isinstance(kind, type) and issubclass(kind, ToolContext) for kind in kinds)


def _annotated(annotation: Any) -> str | None:
    """The words in `Annotated[str, "the words"]`, or in a `Doc`."""
    notes = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    said = [note if isinstance(note, str) else getattr(note, "documentation", None) for note in notes]
    return next((words for words in said if isinstance(words, str)), None)


def _check_parameter(name: str, parameter: inspect.Parameter) -> None:
    where = f"parameter {parameter.name!r} of the tool {name!r}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise BadTool(f"{where} has no fixed name: a model can only give named arguments")
    if parameter.annotation is parameter.empty:
        raise BadTool(f"{where} has no type: write for example {parameter.name}: str")


def _model(name: str, parameters: Mapping[str, inspect.Parameter]) -> tuple[dict[str, Any], Convert]:
    import pydantic

    problems = (pydantic.errors.PydanticUserError, TypeError, ValueError, RecursionError)
    try:
        model, schema = _described(parameters.values())
    except problems:
        for parameter in parameters.values():
            try:
                _described([parameter])
            except problems as error:
                reason = str(error).splitlines()[0].partition(". Set `")[0]
                where = f"parameter {parameter.name!r} of the tool {name!r}"
                raise BadTool(f"{where} cannot be described as JSON: {reason}") from error
        raise
    aliases = {f"p{place}": field for place, field in enumerate(parameters)}

    def convert(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            values = model.model_validate(arguments).__dict__
        except pydantic.ValidationError as error:
            misfits = [f"{_path(item['loc'])}{item['msg']}" for item in error.errors(include_url=False)]
            raise BadArguments("; ".join(misfits[:_MOST_PROBLEMS])) from error
        return {aliases[field]: value for field, value in values.items()}

    return schema, convert


def _field(parameter: inspect.Parameter) -> Any:
    from pydantic import Field
    from pydantic.fields import FieldInfo

    annotation, default = readable(parameter.annotation), parameter.default
    if isinstance(default, FieldInfo):  # as in `count: int = Field(5, ge=1)`
        annotation = Annotated[annotation, default]
        default = parameter.empty if default.is_required() else default.get_default(call_default_factory=True)
    return annotation, Field(... if default is parameter.empty else default, alias=parameter.name)


def _described(parameters: Iterable[inspect.Parameter]) -> tuple[Any, dict[str, Any]]:
    import pydantic
    from pydantic.json_schema import PydanticJsonSchemaWarning

    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    # pydantic keeps some names for itself; under an alias every parameter name is free
    fields: dict[str, Any] = {f"p{place}": _field(parameter) for place, parameter in enumerate(parameters)}
    model = pydantic.create_model("Arguments", __config__=config, **fields)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PydanticJsonSchemaWarning)  # a default that has no JSON is not told to a model
        return model, _tidy(model.model_json_schema())


def _tidy(schema: Any) -> Any:
    """Without the titles that pydantic adds: they cost tokens and say nothing. A property named title stays."""
    if isinstance(schema, list):
        return [_tidy(item) for item in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    tidy: dict[str, Any] = {}
    for key, value in cast(dict[str, Any], schema).items():
        if key in ("properties", "$defs") and isinstance(value, dict):
            tidy[key] = {name: _tidy(inner) for name, inner in cast(dict[str, Any], value).items()}
        elif not (key == "title" and isinstance(value, str)):
            tidy[key] = value if key in ("default", "const", "enum", "examples") else _tidy(value)
    return tidy


def _path(steps: Any) -> str:
    words = ".".join(str(step) for step in steps)
    return f"{words}: " if words else ""
