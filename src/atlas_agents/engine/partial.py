"""An answer of a wanted shape while it is still being written."""

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

_NUMBER = re.compile(r"([:\[,]\s*)-?[\d.eE+-]+\Z")
Partly = Callable[[str], Any]
"""Gives the value of the beginning of an answer, or None where there is none yet."""


def partly(wanted: Any) -> Partly:
    """For a JSON schema, what was written so far. For a type with fields, a dict of those that are there, each as its
    own type; a text under way is there as far as it goes, everything else only when it is whole and fits."""
    import pydantic
    from pydantic_core import from_json

    if isinstance(wanted, Mapping):
        convert: Callable[[Any], Any] = _as_it_is
    elif fields := _fields(wanted):
        convert = _by_field({name: pydantic.TypeAdapter(kind) for name, kind in fields.items()})
    else:
        convert = _whole(pydantic.TypeAdapter(wanted))

    def value(text: str) -> Any:
        try:
            found = from_json(_opened(text), allow_partial="trailing-strings")
        except ValueError:
            return None
        return convert(found)

    return value


def _as_it_is(found: Any) -> Any:
    return found


def _whole(adapter: Any) -> Callable[[Any], Any]:
    def convert(found: Any) -> Any:
        try:
            return adapter.validate_python(found, experimental_allow_partial="trailing-strings")
        except ValueError:
            return None

    return convert


def _by_field(adapters: dict[str, Any]) -> Callable[[Any], Any]:
    converters = {name: _whole(adapter) for name, adapter in adapters.items()}

    def convert(found: Any) -> Any:
        if not isinstance(found, dict):
            return None
        given = cast(dict[str, Any], found)
        values = {name: converters[name](value) for name, value in given.items() if name in converters}
        return {name: value for name, value in values.items() if value is not None or given[name] is None}

    return convert


def _fields(wanted: Any) -> dict[str, Any]:
    """The fields of a model, a dataclass or a TypedDict, by the name that they have in JSON."""
    if hasattr(wanted, "model_fields"):
        return {field.alias or name: field.annotation for name, field in wanted.model_fields.items()}
    if hasattr(wanted, "__dataclass_fields__") or hasattr(wanted, "__required_keys__"):
        from typing import get_type_hints

        return get_type_hints(wanted)
    return {}


def _opened(text: str) -> str:
    """Without the code fence that it may begin with, and without a number at its end: it may have more digits."""
    text = text.lstrip()
    if text.startswith("```"):
        text = text.partition("\n")[2].removesuffix("```")
    return _NUMBER.sub(r"\1", text)
