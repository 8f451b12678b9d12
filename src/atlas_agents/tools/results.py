"""What a tool gave back, made into JSON that a model can read and a store can keep."""

import math
from typing import Any, cast

import msgspec

from atlas_agents.core.errors import ToolFault
from atlas_agents.core.text import clean

MAX_RESULT = 1024 * 1024


class BadResult(ToolFault):
    """The tool gave back something that no model can read."""

    kind = "failed"


def json_value(value: Any) -> Any:
    """The value as plain JSON, or BadResult saying what stands in the way."""
    if isinstance(value, str):
        return _sized(clean(value), len(value))
    if value is None or isinstance(value, bool | int):
        return value
    try:
        plain = msgspec.to_builtins(value, enc_hook=_known, str_keys=True)
        _forbid(plain)
        size = len(msgspec.json.encode(plain))
    except RecursionError:
        raise BadResult("the result refers to itself or is nested too deeply") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise BadResult(f"the result cannot be written as JSON: {str(error)[:200]}") from None
    return _sized(plain, size)


def _sized(value: Any, size: int) -> Any:
    if size > MAX_RESULT:
        raise BadResult(f"the result is {size:,} characters long; at most {MAX_RESULT:,} can be taken")
    return value


def _known(value: Any) -> Any:
    """Objects that know how to become plain values: pydantic's models."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    raise TypeError(f"a {type(value).__name__} is no JSON value")


def _forbid(value: Any) -> None:
    """NaN and infinities have no JSON, and lone surrogates no UTF-8: better refused here than lost later."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not JSON")
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, dict):
        for key, item in cast(dict[Any, Any], value).items():
            _forbid(key)
            _forbid(item)
    elif isinstance(value, list | tuple):
        for item in cast(list[Any], value):
            _forbid(item)
