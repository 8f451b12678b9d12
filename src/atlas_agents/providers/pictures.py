"""Pictures in what a tool gave back: taken out of the text, so that a model sees them or is told of them."""

from typing import Any, cast

from atlas_agents.core.messages import Image

_KINDS = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DEEPEST = 6
_MOST = 12


def parted(result: Any) -> tuple[Any, list[Image]]:
    """The result with a note in the place of each picture, and the pictures: objects of the shape of an `Image`."""
    pictures: list[Image] = []
    return _visit(result, pictures, _DEEPEST), pictures


def _visit(value: Any, pictures: list[Image], levels: int) -> Any:
    if not levels:
        return value
    if isinstance(value, list):
        return [_visit(item, pictures, levels - 1) for item in cast(list[Any], value)]
    match value:
        case {"type": "image", "media_type": str(kind), "data": str(data)} if kind in _KINDS and data:
            seen = len(pictures) < _MOST
            if seen:
                pictures.append(Image(kind, data))
            name = f"{value['name']}, " if isinstance(value.get("name"), str) else ""
            return f"({name}{kind}, {len(data) * 3 // 4:,} bytes)"
        case dict():
            given = cast(dict[str, Any], value)
            return {key: _visit(item, pictures, levels - 1) for key, item in given.items()}
        case _:
            return value
