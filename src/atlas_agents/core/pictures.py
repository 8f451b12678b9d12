"""Pictures in what a tool gave back: found wherever they stand in it, so that nobody has to read them as text."""

from typing import Any, cast

from atlas_agents.core.messages import Image

_DEEPEST = 6
_MOST = 12
_NAMES = ("media_type", "mimeType", "mediaType")


def parted(result: Any) -> tuple[Any, list[Image]]:
    """The result with a note in the place of each picture, and the pictures, in order."""
    found: list[Image] = []
    rest = _without(result, found, 0)
    return rest if found else result, found


def _without(value: Any, found: list[Image], depth: int) -> Any:
    if depth > _DEEPEST:
        return value
    if isinstance(value, list):
        return [_without(item, found, depth + 1) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    fields = cast(dict[str, Any], value)
    picture = _picture(fields)
    if picture is None:
        return {key: _without(item, found, depth + 1) for key, item in fields.items()}
    if len(found) < _MOST:
        found.append(picture)
    name = f"{fields['name']}, " if isinstance(fields.get("name"), str) else ""
    return f"({name}{picture.media_type}, {len(picture.data) * 3 // 4:,} bytes)"


def _picture(fields: dict[str, Any]) -> Image | None:
    """As our own tools give it, and as tools of the Model Context Protocol do."""
    kind = next((fields[name] for name in _NAMES if isinstance(fields.get(name), str)), None)
    data = fields.get("data")
    if (
        fields.get("type") != "image"
        or kind is None
        or not kind.startswith("image/")
        or not isinstance(data, str)
        or not data
    ):
        return None
    return Image(kind, data)
