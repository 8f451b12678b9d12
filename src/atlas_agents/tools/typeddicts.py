"""The standard library's TypedDict, made readable for pydantic, which before Python 3.12 knows only the backport."""

import sys
from types import UnionType
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict


def readable(annotation: Any) -> Any:
    """The same type, with each TypedDict in it in the form that pydantic reads."""
    return annotation if sys.version_info >= (3, 12) else _backported(annotation)


def _backported(annotation: Any) -> Any:
    if is_typeddict(annotation) and type(annotation).__module__ == "typing":
        return _rebuilt(annotation)
    inner = get_args(annotation)
    newer = tuple([_backported(each) for each in inner])
    if newer == inner:
        return annotation
    origin: Any = get_origin(annotation)
    if origin is Annotated:
        return Annotated[(newer[0], *annotation.__metadata__)]
    return Union[newer] if origin is UnionType else origin[newer]  # noqa: UP007 - a tuple of types


def _rebuilt(old: Any) -> Any:
    import typing_extensions

    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(old, include_extras=True).items():
        bare = get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
        fields[name] = (Required if name in old.__required_keys__ else NotRequired)[_backported(bare)]
    make: Any = typing_extensions.TypedDict
    return make(old.__name__, fields)
