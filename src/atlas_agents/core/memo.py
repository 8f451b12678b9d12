"""Things worked out once about a frozen value, kept with it and no part of it."""

from typing import Any, cast

import msgspec


def memo(value: msgspec.Struct) -> dict[str, Any]:
    """The scratch pad of a struct that has one (`dict=True`): not compared, not encoded, gone with the value."""
    return cast(dict[str, Any], value.__dict__)
