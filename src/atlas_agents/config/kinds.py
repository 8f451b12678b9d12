"""What a setting takes, in words: for its page, and for who wrote something else."""

from pathlib import Path
from typing import Any

from msgspec import inspect


def words_for(info: Any) -> str:
    """`a whole number from 0 to 65535`, for a type as msgspec describes it."""
    match info:
        case inspect.Metadata(type=inner):
            return words_for(inner)
        case inspect.UnionType(types=types):
            return " or ".join(words_for(each) for each in types if not isinstance(each, inspect.NoneType))
        case inspect.IntType(ge=least, le=most):
            return f"a whole number{_bounds(least, most)}"
        case inspect.FloatType(ge=least, le=most):
            return f"a number{_bounds(least, most)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return " or ".join(str(value) for value in values)
        case inspect.VarTupleType():
            return "a list of texts"
        case inspect.CustomType(cls=kind) if kind is Path:
            return "a path"
        case _:
            return "a text"


def _bounds(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f" of at least {least}" if most is None else f" from {least} to {most}"
