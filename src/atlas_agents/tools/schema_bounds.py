"""What a schema may not be: too large, too deep, pointing outside, or small to read and endless to check."""

from typing import Any, cast

from atlas_agents.core.errors import BadTool
from atlas_agents.core.json import encode

MAX_BYTES = 64 * 1024
MAX_DEPTH = 40
MAX_WORK = 20_000


def check_bounds(name: str, schema: dict[str, Any]) -> None:
    """Refuse a schema that could hang or burst whoever checks arguments against it; BadTool says why."""
    where = f"the parameters of the tool {name!r}"
    try:
        size = len(encode(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadTool(f"{where} are no plain JSON: {error}") from error
    if size > MAX_BYTES:
        raise BadTool(f"{where} are {size:,} bytes long; at most {MAX_BYTES:,} are taken")
    if _depth(schema) > MAX_DEPTH:
        raise BadTool(f"{where} are nested deeper than {MAX_DEPTH} levels")
    if _Work(schema, where).of(schema) > MAX_WORK:
        raise BadTool(f"{where} refer to themselves so often that checking them would not end")


def _depth(schema: Any) -> int:
    level, here = 0, [schema]
    while here and level <= MAX_DEPTH:
        level, here = level + 1, [child for node in here for child in _children(node)]
    return level


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(cast(dict[str, Any], node).values())
    return cast(list[Any], node) if isinstance(node, list) else []


class _Work:
    """How many nodes a check visits once every reference is followed; a reference to something open counts as one."""

    def __init__(self, root: dict[str, Any], where: str) -> None:
        self._root = root
        self._where = where
        self._known: dict[str, int] = {}
        self._open: set[str] = set()

    def of(self, node: Any) -> int:
        work = 1
        if isinstance(node, dict):
            for key in ("$ref", "$dynamicRef"):
                target = cast(dict[str, Any], node).get(key)
                if isinstance(target, str):
                    work += self._behind(target)
        for child in _children(node):
            work += self.of(child)
            if work > MAX_WORK:
                break
        return work

    def _behind(self, pointer: str) -> int:
        if not pointer.startswith("#"):
            raise BadTool(f"{self._where} refer to {pointer!r}; only references inside the schema are followed")
        if pointer in self._open:
            return 1
        if pointer not in self._known:
            self._open.add(pointer)
            self._known[pointer] = self.of(self._target(pointer))
            self._open.discard(pointer)
        return self._known[pointer]

    def _target(self, pointer: str) -> Any:
        node: Any = self._root
        for step in pointer.removeprefix("#").split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and step.isdigit() and int(step) < len(cast(list[Any], node)):
                node = cast(list[Any], node)[int(step)]
            else:
                node = cast(dict[str, Any], node).get(step) if isinstance(node, dict) else None
        return node
