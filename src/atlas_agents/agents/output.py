"""Structured output: answers that must match a JSON schema or a Python type, checked whatever the provider promises."""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeAlias, cast

from atlas_agents.core.errors import BadArguments, BadOutput, BadTool, ConfigError
from atlas_agents.core.json import encode
from atlas_agents.core.text import wire_name
from atlas_agents.providers.base import OutputSpec
from atlas_agents.tools.schema import backport_typed_dicts, compile_check

ParsePartial: TypeAlias = Callable[[str], Any]
"""Parses the beginning of an answer; returns None if there is no value yet."""
_TRAILING_NUMBER = re.compile(r"([:\[,]\s*)-?[\d.eE+-]+\Z")


class Output:
    """The requested output type. `parse` returns the value of an answer, or raises BadOutput with the mismatch."""

    def __init__(self, wanted: Any) -> None:
        self.spec, self._parse = (
            _from_schema(cast(Mapping[str, Any], wanted)) if isinstance(wanted, Mapping) else _from_type(wanted)
        )
        self._wanted: Any = wanted
        self.instruction = f"Answer only with JSON that matches this schema, without any other text:\n{self.schema}"

    @property
    def schema(self) -> str:
        return encode(self.spec.schema).decode()

    def parse(self, text: str) -> Any:
        return self._parse(_strip_code_fence(text))

    @cached_property
    def parse_partial(self) -> ParsePartial:
        """Parser for an answer that is still being streamed."""
        wanted: object = self._wanted
        return partial_parser(self._wanted if isinstance(wanted, Mapping) else backport_typed_dicts(self._wanted))


def _from_schema(schema: Mapping[str, Any]) -> tuple[OutputSpec, Callable[[str], Any]]:
    import json

    name = wire_name(str(schema.get("title") or "answer"))
    try:
        check = compile_check(name, dict(schema))
    except BadTool as error:
        raise ConfigError(f"invalid output schema: {error.__cause__}") from error

    def parse(text: str) -> Any:
        try:
            value = json.loads(text)
            check(value)
        except (ValueError, RecursionError, BadArguments) as error:
            raise BadOutput(str(error)) from error
        return value

    return OutputSpec(name, dict(schema)), parse


def _from_type(wanted: Any) -> tuple[OutputSpec, Callable[[str], Any]]:
    import pydantic

    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(backport_typed_dicts(wanted))
        schema = adapter.json_schema()
    except (pydantic.errors.PydanticUserError, TypeError, ValueError) as error:
        raise ConfigError(f"output type {wanted!r} has no JSON schema: {str(error).splitlines()[0]}") from error

    def parse(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except pydantic.ValidationError as error:
            problems = [f"{'.'.join(map(str, item['loc'])) or 'answer'}: {item['msg']}" for item in error.errors()]
            raise BadOutput("; ".join(problems[:8])) from error

    return OutputSpec(wire_name(getattr(wanted, "__name__", "answer")), schema), parse


def _strip_code_fence(text: str) -> str:
    """Remove the code fence that models often put around JSON."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") + 1 : -3].strip()
    return text


def partial_parser(wanted: Any) -> ParsePartial:
    """Return a parser for the beginning of an answer.

    For a JSON schema it returns what was received so far. For a type with fields it returns a dict of the fields
    received so far, each as its own type: a string may be incomplete, every other field must be complete and valid.
    """
    import pydantic
    from pydantic_core import from_json

    if isinstance(wanted, Mapping):
        convert: Callable[[Any], Any] = _identity
    elif fields := _list_fields(wanted):
        convert = _convert_fields({name: pydantic.TypeAdapter(kind) for name, kind in fields.items()})
    else:
        convert = _convert_value(pydantic.TypeAdapter(wanted))

    def parse(text: str) -> Any:
        try:
            value = from_json(_parsable_prefix(text), allow_partial="trailing-strings")
        except ValueError:
            return None
        return convert(value)

    return parse


def _identity(value: Any) -> Any:
    return value


def _convert_value(adapter: Any) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        try:
            return adapter.validate_python(value, experimental_allow_partial="trailing-strings")
        except ValueError:
            return None

    return convert


def _convert_fields(adapters: dict[str, Any]) -> Callable[[Any], Any]:
    converters = {name: _convert_value(adapter) for name, adapter in adapters.items()}

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return None
        received = cast(dict[str, Any], value)
        values = {name: converters[name](each) for name, each in received.items() if name in converters}
        return {name: each for name, each in values.items() if each is not None or received[name] is None}

    return convert


def _list_fields(wanted: Any) -> dict[str, Any]:
    """Return the fields of a model, a dataclass or a TypedDict by their JSON names."""
    if hasattr(wanted, "model_fields"):
        return {field.alias or name: field.annotation for name, field in wanted.model_fields.items()}
    if hasattr(wanted, "__dataclass_fields__") or hasattr(wanted, "__required_keys__"):
        from typing import get_type_hints

        return get_type_hints(wanted)
    return {}


def _parsable_prefix(text: str) -> str:
    """Remove a leading code fence, and a trailing number, which may have more digits to come."""
    text = text.lstrip()
    if text.startswith("```"):
        text = text.partition("\n")[2].removesuffix("```")
    return _TRAILING_NUMBER.sub(r"\1", text)
