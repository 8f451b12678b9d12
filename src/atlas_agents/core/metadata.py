"""A small store of named values that looks to its brokers for what it does not have itself."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Listener = Callable[[str, Any], None]
_ABSENT: Any = object()


class Metadata:
    """Local values first, then the brokers in order. Live: a broker's later change is seen at once."""

    __slots__ = ("_brokers", "_listeners", "_values")

    def __init__(self, *brokers: "Metadata", values: Mapping[str, Any] | None = None) -> None:
        self._brokers = brokers
        self._values: dict[str, Any] = dict(values) if values else {}
        self._listeners: list[tuple[Metadata, Listener]] = []

    def get(self, key: str, default: Any = None) -> Any:
        found = self._find(key)
        return default if found is _ABSENT else found

    def has(self, key: str) -> bool:
        return self._find(key) is not _ABSENT

    def set(self, key: str, value: Any) -> "Metadata":
        """Store a value here, over whatever the brokers say; returns self, for chaining."""
        self._values[key] = value
        self._tell(key, value)
        return self

    def delete(self, key: str) -> "Metadata":
        """Forget the local value; a broker's may show again."""
        if self._values.pop(key, _ABSENT) is not _ABSENT:
            self._tell(key, self.get(key))
        return self

    def all(self) -> dict[str, Any]:
        """Every value that `get` would find."""
        found: dict[str, Any] = {}
        for place in reversed(list(self._line())):
            found.update(place._values)
        return found

    def local(self) -> dict[str, Any]:
        """The values stored here, without the brokers'."""
        return dict(self._values)

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Hear of every change that shows here, local or a broker's, as (key, value); the result stops it."""

        def relay(key: str, _: Any) -> None:
            listener(key, self.get(key))

        places = list(self._line())
        for place in places:
            place._listeners.append((self, relay))

        def stop() -> None:
            for place in places:
                place._listeners = [entry for entry in place._listeners if entry[1] is not relay]

        return stop

    def __contains__(self, key: str) -> bool:
        return self.has(key)

    def __getitem__(self, key: str) -> Any:
        found = self._find(key)
        if found is _ABSENT:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __repr__(self) -> str:
        return f"Metadata({self.all()!r})"

    def _find(self, key: str) -> Any:
        if key in self._values:
            return self._values[key]
        for place in self._line() if self._brokers else ():
            if key in place._values:
                return place._values[key]
        return _ABSENT

    def _line(self) -> Iterator["Metadata"]:
        """Itself and all brokers in the order of look-up, each once; not recursive, for a line may be long."""
        seen: set[int] = set()
        stack: list[Metadata] = [self]
        while stack:
            place = stack.pop()
            if id(place) not in seen:
                seen.add(id(place))
                yield place
                stack.extend(reversed(place._brokers))

    def _tell(self, key: str, value: Any) -> None:
        for owner, listener in tuple(self._listeners):
            if owner is self or key not in owner._values:  # a value of its own hides this change
                listener(key, value)
