"""Tool schemas: the JSON schema of a typed function's parameters, and conversion of JSON to its Python values.

pydantic, griffe and jsonschema-rs are imported with the first tool, not with the package.
"""

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from types import FunctionType, UnionType
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
from atlas_agents.core.messages import File, Image
from atlas_agents.tools.context import ToolContext

MAX_BYTES = 64 * 1024
MAX_DEPTH = 40
MAX_NODES = 20_000
Convert = Callable[[dict[str, Any]], dict[str, Any]]
Check = Callable[[dict[str, Any]], None]
_MAX_PROBLEMS = 8
_LONG_ARGUMENTS = 100_000
_PLAIN_TYPES = (str, int, float, bool, type(None))
_MAX_MODELS = 256
_models: dict[tuple[Any, ...], tuple[Any, dict[str, Any]]] = {}


def check_bounds(name: str, schema: dict[str, Any]) -> None:
    """Raise BadTool for a schema whose validation could take too long or use too much memory."""
    where = f"the parameters of tool {name!r}"
    try:
        size = len(encode(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadTool(f"{where} are not plain JSON: {error}") from error
    if size > MAX_BYTES:
        raise BadTool(f"{where} are {size:,} bytes long; the maximum is {MAX_BYTES:,}")
    if _depth(schema) > MAX_DEPTH:
        raise BadTool(f"{where} are nested more than {MAX_DEPTH} levels deep")
    if _NodeCount(schema, where).count(schema) > MAX_NODES:
        raise BadTool(f"{where} contain too many nested references to be validated")


def _depth(schema: Any) -> int:
    level, nodes = 0, [schema]
    while nodes and level <= MAX_DEPTH:
        level, nodes = level + 1, [child for node in nodes for child in _children(node)]
    return level


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(cast(dict[str, Any], node).values())
    return cast(list[Any], node) if isinstance(node, list) else []


class _NodeCount:
    """Counts the nodes that validation visits when it follows every reference; a recursive reference counts as one."""

    def __init__(self, root: dict[str, Any], where: str) -> None:
        self._root = root
        self._where = where
        self._counts: dict[str, int] = {}
        self._open: set[str] = set()

    def count(self, node: Any) -> int:
        nodes = 1
        if isinstance(node, dict):
            for key in ("$ref", "$dynamicRef"):
                target = cast(dict[str, Any], node).get(key)
                if isinstance(target, str):
                    nodes += self._count_reference(target)
        for child in _children(node):
            nodes += self.count(child)
            if nodes > MAX_NODES:
                break
        return nodes

    def _count_reference(self, pointer: str) -> int:
        if not pointer.startswith("#"):
            raise BadTool(f"{self._where} refer to {pointer!r}; only references inside the schema are supported")
        if pointer in self._open:
            return 1
        if pointer not in self._counts:
            self._open.add(pointer)
            self._counts[pointer] = self.count(self._target(pointer))
            self._open.discard(pointer)
        return self._counts[pointer]

    def _target(self, pointer: str) -> Any:
        node: Any = self._root
        for step in pointer.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and step.isdigit() and int(step) < len(cast(list[Any], node)):
                node = cast(list[Any], node)[int(step)]
            else:
                node = cast(dict[str, Any], node).get(step) if isinstance(node, dict) else None
        return node


def backport_typed_dicts(annotation: Any) -> Any:
    """Return the same type with each TypedDict in the form that pydantic requires before Python 3.12."""
    return annotation if sys.version_info >= (3, 12) else _backport(annotation)


def _backport(annotation: Any) -> Any:
    if is_typeddict(annotation) and type(annotation).__module__ == "typing":
        return _rebuild(annotation)
    inner = get_args(annotation)
    newer = tuple([_backport(each) for each in inner])
    if newer == inner:
        return annotation
    origin: object = get_origin(annotation)
    if origin is Annotated:
        return Annotated[(newer[0], *annotation.__metadata__)]
    form: Any = Union if origin is UnionType else origin
    return form[newer]


def _rebuild(old: Any) -> Any:
    import typing_extensions

    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(old, include_extras=True).items():
        bare = get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
        form: Any = Required if name in old.__required_keys__ else NotRequired
        fields[name] = form[_backport(bare)]
    make: Any = typing_extensions.TypedDict
    return make(old.__name__, fields)


class FunctionDescription(msgspec.Struct, frozen=True):
    """The tool definition that a function's signature and docstring give."""

    text: str
    parameters: dict[str, Any]
    convert: Convert
    context: str | None
    """The parameter that receives the ToolContext, if there is one."""
    is_method: bool
    """Whether the function is a method in a class, which takes `self` or `cls` before these parameters."""


def describe_function(name: str, function: Callable[..., Any]) -> FunctionDescription:
    """Read a function's signature and docstring; raises BadTool that names an unsuitable parameter."""
    context, typed = None, dict[str, inspect.Parameter]()
    bound = _bound_arguments(function)
    given = [*_signature(name, function).parameters.values()]
    is_method = isinstance(function, FunctionType) and bool(given) and _is_receiver(given[0])
    for parameter in given[is_method:]:
        if is_context(parameter.annotation):
            context = parameter.name
        elif parameter.name not in bound:
            _check_parameter(name, parameter)
            typed[parameter.name] = parameter
    text, descriptions = read_docstring(function)
    parameters, convert = _argument_model(name, typed)
    for field, schema in parameters.get("properties", {}).items():
        if description := _annotated_description(typed[field].annotation) or descriptions.get(field):
            schema.setdefault("description", description)
    return FunctionDescription(text, parameters, convert, context, is_method)


def describe_result(function: Callable[..., Any]) -> dict[str, Any] | None:
    """Return the JSON schema of a function's results if its return type is a class with typed fields; else None.

    Such a class is a TypedDict, a dataclass, a pydantic model or a msgspec struct. Images and files have none.
    """
    import pydantic

    try:
        kind: Any = inspect.signature(function, eval_str=True).return_annotation
        if kind in (Image, File):
            return None
        if isinstance(kind, type) and issubclass(cast(type[Any], kind), msgspec.Struct):
            schema = msgspec.json.schema(kind)
        elif is_typeddict(kind) or hasattr(kind, "__dataclass_fields__") or hasattr(kind, "model_fields"):
            adapter = pydantic.TypeAdapter[Any](backport_typed_dicts(kind))
            schema = adapter.json_schema(by_alias=False, mode="serialization")
        else:
            return None
        check_bounds(getattr(function, "__name__", ""), schema)
    except (pydantic.errors.PydanticUserError, BadTool, NameError, TypeError, ValueError, RecursionError):
        return None
    if reference := schema.get("$ref"):
        schema = {**schema["$defs"][reference.rpartition("/")[2]], "$defs": schema["$defs"]}
    return schema if schema.get("type") == "object" and schema.get("properties") else None


def compile_check(name: str, schema: dict[str, Any], *, formats: bool = False) -> Check:
    """Return a function that raises BadArguments listing the invalid fields; with `formats`, also check string
    formats."""
    import jsonschema_rs

    check_bounds(name, schema)
    try:
        validator = jsonschema_rs.validator_for(
            schema, offline=True, pattern_options=jsonschema_rs.RegexOptions(), validate_formats=formats
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise BadTool(f"the parameters of tool {name!r} are not a valid JSON schema: {error}") from error

    def find_problems(arguments: dict[str, Any]) -> list[Any]:
        """Return the errors, but only the first for long arguments: all of them could take too long to collect."""
        if len(repr(arguments)) < _LONG_ARGUMENTS:
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
            problems = [text for error in find_problems(arguments) for text in _describe_problem(error)]
        except (ValueError, RecursionError) as error:
            raise BadArguments(f"the arguments are not plain JSON: {error}") from error
        if any("unexpected" in problem for problem in problems):
            problems.append(f"the parameters are {', '.join(schema.get('properties') or ()) or 'none'}")
        raise BadArguments("; ".join(problems[:_MAX_PROBLEMS]))

    return check


def _distance(branch: list[Any]) -> tuple[int, int]:
    """Return how far a value is from a type of a union: by the number of problems, then by how deep they are."""
    return len(branch), -max(len(each.instance_path) for each in branch)


def _describe_problem(error: Any) -> list[str]:
    """Describe a problem, with the path of the field; for a union, the problem with the closest type."""
    branches: Any = getattr(error.kind, "context", None) or ()
    meant: list[list[Any]] = [branch for branch in branches if not any(_is_other_type(each, error) for each in branch)]
    if meant:
        nearest = min(meant, key=_distance)
        return [text for each in nearest for text in _describe_problem(each)]
    return [f"{_path(error.instance_path)}{error.message}"]


def _is_other_type(error: Any, union: Any) -> bool:
    return error.kind.name == "type" and error.instance_path == union.instance_path


def read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description and those of the parameters, from a docstring in Google, NumPy or Sphinx style."""
    text = inspect.getdoc(_docstring_owner(function)) or ""
    if "\n" not in text:
        return text, {}
    import griffe

    found, descriptions = list[str](), dict[str, str]()
    for section in griffe.parse_auto(griffe.Docstring(text, lineno=1), per_style_options=_parser_options()):
        if section.kind is griffe.DocstringSectionKind.text:
            found.append(str(section.value).strip())
        elif section.kind is griffe.DocstringSectionKind.parameters:
            descriptions.update(
                {item.name: " ".join(str(item.description).split()) for item in cast(list[Any], section.value)}
            )
    return "\n\n".join(found), descriptions


def _parser_options() -> Any:
    """Silence the parser's warnings about the missing signature."""
    return {style: {"warnings": False} for style in ("google", "numpy", "sphinx")}


def _signature(name: str, function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, TypeError, ValueError, AttributeError, SyntaxError) as error:
        raise BadTool(f"cannot read the parameters of tool {name!r}: {error}") from error


def _is_receiver(parameter: inspect.Parameter) -> bool:
    return parameter.name in ("self", "cls") and parameter.annotation is parameter.empty


def _bound_arguments(function: Any) -> Mapping[str, Any]:
    """Return the named arguments that a partial already binds; the model does not see these."""
    return cast(Any, function).keywords if isinstance(function, partial) else {}


def _docstring_owner(function: Any) -> Any:
    """Return the object whose docstring applies: the function of a partial, or `__call__` of a callable object."""
    while isinstance(function, partial):
        function = cast(Any, function).func
    if inspect.isroutine(function):
        return function
    return type(function).__call__ if type(function).__call__.__doc__ else function


def is_context(annotation: Any) -> bool:
    """Return whether a parameter receives the ToolContext; `ToolContext | None` counts."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType, Annotated) else (annotation,)
    classes: list[object] = [get_origin(kind) or kind for kind in kinds]
    return any(isinstance(each, type) and issubclass(each, ToolContext) for each in classes)


def _annotated_description(annotation: Any) -> str | None:
    """Return the text in `Annotated[str, "text"]`, or in a `Doc`."""
    metadata = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    texts = [item if isinstance(item, str) else getattr(item, "documentation", None) for item in metadata]
    return next((text for text in texts if isinstance(text, str)), None)


def _check_parameter(name: str, parameter: inspect.Parameter) -> None:
    where = f"parameter {parameter.name!r} of tool {name!r}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise BadTool(f"{where} must be a named parameter: a model can only pass arguments by name")
    if parameter.annotation is parameter.empty:
        raise BadTool(f"{where} has no type annotation: expected for example {parameter.name}: str")


def _argument_model(name: str, parameters: Mapping[str, inspect.Parameter]) -> tuple[dict[str, Any], Convert]:
    import pydantic

    problems = (pydantic.errors.PydanticUserError, TypeError, ValueError, RecursionError)
    try:
        model, schema = _find_model([*parameters.values()])
    except problems:
        for parameter in parameters.values():
            try:
                _build_model([parameter])
            except problems as error:
                reason = str(error).splitlines()[0].partition(". Set `")[0]
                where = f"parameter {parameter.name!r} of tool {name!r}"
                raise BadTool(f"{where} has no JSON schema: {reason}") from error
        raise
    aliases = {f"p{index}": field for index, field in enumerate(parameters)}

    def convert(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            values = model.model_validate(arguments).__dict__
        except pydantic.ValidationError as error:
            problems = [f"{_path(item['loc'])}{item['msg']}" for item in error.errors(include_url=False)]
            raise BadArguments("; ".join(problems[:_MAX_PROBLEMS])) from error
        return {aliases[field]: value for field, value in values.items()}

    return schema, convert


def _field(parameter: inspect.Parameter) -> Any:
    from pydantic import Field
    from pydantic.fields import FieldInfo

    annotation, default = backport_typed_dicts(parameter.annotation), parameter.default
    if isinstance(default, FieldInfo):  # as in `count: int = Field(5, ge=1)`
        annotation = Annotated[annotation, default]
        default = parameter.empty if default.is_required() else default.get_default(call_default_factory=True)
    return annotation, Field(... if default is parameter.empty else default, alias=parameter.name)


def _find_model(parameters: Sequence[inspect.Parameter]) -> tuple[Any, dict[str, Any]]:
    """Build the model, or return that of an earlier function with the same parameters, and a new copy of its schema.

    Applications that define their tools anew for each request do so often, and to build a model takes milliseconds.
    """
    if not all(each.default is each.empty or type(each.default) in _PLAIN_TYPES for each in parameters):
        return _build_model(parameters)
    # equal unions and defaults may differ: `int | str == str | int`, and `1 == True`
    key = tuple([(each.name, each.annotation, str(each.annotation), repr(each.default)) for each in parameters])
    try:
        known = _models.get(key)
    except TypeError:  # an annotation that cannot be hashed, such as one with a `Field`
        return _build_model(parameters)
    if known is None:
        if len(_models) >= _MAX_MODELS:
            _models.clear()
        known = _models[key] = _build_model(parameters)
    return known[0], deepcopy(known[1])


def _build_model(parameters: Iterable[inspect.Parameter]) -> tuple[Any, dict[str, Any]]:
    import pydantic
    from pydantic.json_schema import PydanticJsonSchemaWarning

    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    # pydantic reserves some names; with an alias every parameter name can be used
    fields: dict[str, Any] = {f"p{index}": _field(parameter) for index, parameter in enumerate(parameters)}
    model = pydantic.create_model("Arguments", __config__=config, **fields)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PydanticJsonSchemaWarning)  # a default that JSON cannot encode is omitted
        return model, _strip_titles(model.model_json_schema())


def _strip_titles(schema: Any) -> Any:
    """Remove the titles that pydantic adds, which only cost tokens. A property named title stays."""
    if isinstance(schema, list):
        return [_strip_titles(item) for item in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    stripped: dict[str, Any] = {}
    for key, value in cast(dict[str, Any], schema).items():
        if key in ("properties", "$defs") and isinstance(value, dict):
            stripped[key] = {name: _strip_titles(inner) for name, inner in cast(dict[str, Any], value).items()}
        elif not (key == "title" and isinstance(value, str)):
            stripped[key] = value if key in ("default", "const", "enum", "examples") else _strip_titles(value)
    return stripped


def _path(steps: Any) -> str:
    path = ".".join(str(step) for step in steps)
    return f"{path}: " if path else ""
