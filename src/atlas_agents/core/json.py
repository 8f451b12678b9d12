"""JSON at the boundary: one encoder, and one strict parser for JSON written by a model."""

import json
from typing import Any, cast

import msgspec

_encoder = msgspec.json.Encoder()
_MAX_DEPTH = 64


def encode(value: object) -> bytes:
    """Encode a value of structs, dicts, lists and plain values as compact JSON."""
    return _encoder.encode(value)


def parse_object(text: str) -> dict[str, Any]:
    """Parse one JSON object strictly; raise ValueError with the reason if it is invalid.

    Repeated keys, NaN, infinities, integers over 64 bits, lone surrogates and nesting beyond 64 levels are errors,
    because two parsers could read them differently.
    """
    try:
        value = _strict.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {_word(value)}")
    found = cast(dict[str, Any], value)
    if text.count("{") + text.count("[") > _MAX_DEPTH and _depth(found) > _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
    if "\\u" in text and not _is_unicode(found):
        raise ValueError("lone surrogate in a string")
    return found


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"duplicate key {repeated!r}")
    return found


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not valid JSON")


def _integer(digits: str) -> int:
    number = int(digits) if len(digits) <= 20 else 1 << 64
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"integer {digits[:24]} does not fit into 64 bits")
    return number


def _number(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"number {digits[:24]} is too large")
    return number


def _is_unicode(value: object) -> bool:
    try:
        encode(value)
    except UnicodeEncodeError:
        return False
    return True


def _depth(value: object) -> int:
    level, here = 0, [value]
    while here and level <= _MAX_DEPTH:
        below: list[Any] = []
        for item in here:
            if isinstance(item, dict):
                below.extend(cast(dict[str, Any], item).values())
            elif isinstance(item, list):
                below.extend(cast(list[Any], item))
        level, here = level + 1, below
    return level


def _word(value: object) -> str:
    if value is None:
        return "null"
    words: dict[type, str] = {bool: "a boolean", str: "a string", list: "an array"}
    return words.get(type(value), "a number")


_strict = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_int=_integer, parse_float=_number)
