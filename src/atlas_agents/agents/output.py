"""Structured output: answers that must match a JSON schema or a Python type. They are always validated locally."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Any, TypeAlias, cast

from atlas_agents.core.errors import BadArguments, BadOutput, BadTool, ConfigError
from atlas_agents.core.json import encode
from atlas_agents.core.text import wire_name
from atlas_agents.providers import schemas
from atlas_agents.providers.base import OutputSpec
from atlas_agents.tools.schema import backport_typed_dicts, compile_check

ParsePartial: TypeAlias = Callable[[str], Any]
"""Parses the beginning of an answer; returns None if there is no value yet."""
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_START = re.compile(r"[{\[]")
_MAX_STARTS = 64
_TRAILING_NUMBER = re.compile(r"([:\[,]\s*)-?[\d.eE+-]+\Z")


class Output:
    """The requested output type. `parse` returns the value of an answer, or raises BadOutput with the mismatch."""

    def __init__(self, wanted: Any) -> None:
        self._wanted: Any = wanted
        self.spec, self._check = _read_wanted(wanted)

    @cached_property
    def instruction(self) -> str:
        return schemas.instruction(self.spec.schema)

    @property
    def schema(self) -> str:
        return encode(self.spec.schema).decode()

    def parse(self, text: str) -> Any:
        """Return the value of an answer. The JSON may stand in a code fence, or between other text."""
        text = text.strip()
        failure: BadOutput | None = None
        for candidate in _find_json(text):
            try:
                return self._parse_candidate(candidate)
            except BadOutput as error:
                failure = failure or error
        if failure is None:  # no JSON at all: the error says where reading the text fails
            return self._check(text)
        raise failure

    @cached_property
    def parse_partial(self) -> ParsePartial:
        """Parser for an answer that is still being streamed."""
        wanted: object = self._wanted
        known = self._wanted if isinstance(wanted, Mapping) else backport_typed_dicts(self._wanted)
        return _partial_parser(known, is_wrapped=self._is_wrapped)

    @cached_property
    def _is_wrapped(self) -> bool:
        """Whether the schema is sent wrapped in an object, so that the answer may be wrapped as well."""
        return schemas.is_wrapped(self.spec.schema)

    def _parse_candidate(self, text: str) -> Any:
        """Return the value of a JSON text: in the object around it, as it is, or without the nulls of strict mode."""
        value: Any = json.loads(text)
        if self._is_wrapped and (inner := _unwrap(value)) is not value:
            with suppress(BadOutput):
                return self._check_with_nulls(encode(inner).decode(), inner)
        return self._check_with_nulls(text, value)

    def _check_with_nulls(self, text: str, value: object) -> Any:
        try:
            return self._check(text)
        except BadOutput:
            without = schemas.drop_added_nulls(value, self.spec.schema)
            if without == value:
                raise
            return self._check(encode(without).decode())


def _read_wanted(wanted: Any) -> tuple[OutputSpec, Callable[[str], Any]]:
    """Return the schema and the check of an output type. Those of a type are built once, as that is slow."""
    if isinstance(wanted, Mapping):
        return _from_schema(cast(Mapping[str, Any], wanted))
    try:
        hash(wanted)
    except TypeError:
        return _from_type(wanted)
    return _from_known_type(wanted)


def _from_schema(schema: Mapping[str, Any]) -> tuple[OutputSpec, Callable[[str], Any]]:
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


_from_known_type = lru_cache(maxsize=128)(_from_type)


def _find_json(text: str) -> Iterator[str]:
    """Yield the JSON values of an answer: all of it, the content of code fences, then objects and lists in prose.

    Nested values, and single numbers and words of the prose, are skipped.
    """
    decode = json.JSONDecoder().raw_decode
    for whole in (text, *[match[1].strip() for match in _FENCE.finditer(text)]):
        with suppress(ValueError, RecursionError):
            _, end = decode(whole)
            if end == len(whole):
                yield whole
    position = 0
    for _ in range(_MAX_STARTS):
        start = _START.search(text, position)
        if start is None:
            return
        try:
            _, position = decode(text, start.start())
        except (ValueError, RecursionError):
            position = start.end()
        else:
            yield text[start.start() : position]


def _partial_parser(wanted: Any, *, is_wrapped: bool) -> ParsePartial:
    """Return a parser for the beginning of an answer.

    For a JSON schema it returns the value received so far. For a type with fields it returns a dict of the fields
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
        for start in (text, text[found.start() :] if (found := _START.search(text)) else ""):
            with suppress(ValueError):
                value = from_json(_parsable_prefix(start), allow_partial="trailing-strings")
                return convert(_unwrap(value) if is_wrapped else value)
        return None

    return parse


def _unwrap(value: Any) -> Any:
    """Return the value in the object that stands around a root that is not one; None before it begins."""
    if not isinstance(value, dict):
        return value
    outer = cast(dict[str, Any], value)
    return outer.get(schemas.WRAPPED) if outer.keys() <= {schemas.WRAPPED} else outer


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
