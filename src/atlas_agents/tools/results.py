"""What a tool gave back, made into JSON that a model can read and a store can keep."""

import math
from enum import Enum
from typing import Any, cast

import msgspec

from atlas_agents.core.errors import ToolFault
from atlas_agents.core.text import clean

MAX_RESULT = 1024 * 1024
MAX_WORDS = 10_000
_DEEPEST = 100
_BINARY = (bytes, bytearray, memoryview)


class BadResult(ToolFault):
    """The tool gave back something that no model can read."""

    kind = "failed"


def json_value(value: Any) -> Any:
    """The value as plain JSON, or BadResult saying what stands in the way."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return clean(str(_sized(value, len(value))))
    if value is None or type(value) in (bool, int):
        return value
    try:
        plain = msgspec.to_builtins(value, enc_hook=_known, str_keys=True, builtin_types=_BINARY)
        written = msgspec.json.encode(plain)
        _sized(written, len(written))
        _forbid(plain)
    except RecursionError:
        raise BadResult("the result refers to itself or is nested too deeply") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise BadResult(f"the result cannot be written as JSON: {str(error)[:200]}") from None
    return msgspec.json.decode(written)


def fault_words(fault: ToolFault) -> str:
    """What a model reads of a fault: its message, if it has one that can be made, up to a limit."""
    try:
        words = clean(str(fault))
    except BaseException:  # noqa: BLE001 - a tool's own class may do anything in its `__str__`
        return type(fault).__name__
    return words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS]}… ({len(words):,} characters)"


def _sized(value: Any, size: int) -> Any:
    if size > MAX_RESULT:
        raise BadResult(f"the result is {size:,} characters long; at most {MAX_RESULT:,} can be taken")
    return value


def _known(value: Any) -> Any:
    """Objects that know how to become plain values: pydantic's models."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    raise TypeError(f"a {type(value).__name__} is no JSON value")


def _forbid(value: Any, levels: int = _DEEPEST) -> None:
    """Bytes, NaN and infinities have no JSON, and lone surrogates no UTF-8: better refused here than lost later."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not JSON")
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, _BINARY):
        raise TypeError("bytes are no JSON value; decode them to text first")
    elif isinstance(value, dict | list | tuple):
        if not levels:
            raise RecursionError
        inner = cast(dict[Any, Any] | list[Any], value)
        for item in (*inner, *inner.values()) if isinstance(inner, dict) else inner:
            _forbid(item, levels - 1)
