"""From a typed function to the JSON schema of its parameters, and from JSON back to its Python values.

pydantic, griffe and jsonschema-rs are imported with the first tool, not with the package.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from atlas_agents.core.errors import BadArguments, BadTool
from atlas_agents.tools.context import ToolContext

Convert = Callable[[dict[str, Any]], dict[str, Any]]
Check = Callable[[dict[str, Any]], None]


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
    for parameter in _signature(name, function).parameters.values():
        if _is_context(parameter.annotation):
            context = parameter.name
        else:
            _check_parameter(name, parameter)
            typed[parameter.name] = parameter
    text, words = read_docstring(function)
    parameters, convert = _model(name, typed)
    for field, schema in parameters.get("properties", {}).items():
        if field in words:
            schema.setdefault("description", words[field])
    return Description(text, parameters, convert, context)


def compile_check(name: str, schema: dict[str, Any]) -> Check:
    """A function that raises BadArguments naming every field that does not fit."""
    import jsonschema_rs

    try:
        validator = jsonschema_rs.validator_for(schema, offline=True)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise BadTool(f"the parameters of the tool {name!r} are no valid JSON schema: {error}") from error

    def check(arguments: dict[str, Any]) -> None:
        if validator.is_valid(arguments):
            return
        problems = [f"{_path(error.instance_path)}{error.message}" for error in validator.iter_errors(arguments)]
        raise BadArguments("; ".join(problems[:8]))

    return check


def read_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """(the description, what it says of each parameter); Google, NumPy and Sphinx styles are known."""
    text = inspect.getdoc(function) or ""
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


def _is_context(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, ToolContext)


def _check_parameter(name: str, parameter: inspect.Parameter) -> None:
    where = f"parameter {parameter.name!r} of the tool {name!r}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise BadTool(f"{where} has no fixed name: a model can only give named arguments")
    if parameter.annotation is parameter.empty:
        raise BadTool(f"{where} has no type: write for example {parameter.name}: str")


def _model(name: str, parameters: Mapping[str, inspect.Parameter]) -> tuple[dict[str, Any], Convert]:
    import pydantic

    fields: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for place, parameter in enumerate(parameters.values()):
        # pydantic keeps some names for itself; under an alias every parameter name is free
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"p{place}"] = (parameter.annotation, pydantic.Field(default, alias=parameter.name))
        aliases[f"p{place}"] = parameter.name
    try:
        config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        model = pydantic.create_model("Arguments", __config__=config, **fields)
        schema = _tidy(model.model_json_schema())
    except (pydantic.errors.PydanticUserError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadTool(f"the parameters of the tool {name!r} cannot be described as JSON: {reason}") from error

    def convert(arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            values = model.model_validate(arguments).__dict__
        except pydantic.ValidationError as error:
            problems = [f"{_path(item['loc'])}{item['msg']}" for item in error.errors(include_url=False)]
            raise BadArguments("; ".join(problems[:8])) from error
        return {aliases[field]: value for field, value in values.items()}

    return schema, convert


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
