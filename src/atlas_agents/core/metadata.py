"""Metadata: named values with inheritance from other metadata objects (brokers)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Listener = Callable[[str, Any], None]
_ABSENT: Any = object()


class Metadata:
    """Key-value store: local values first, then the brokers in order. Later changes of a broker are visible at once."""

    __slots__ = ("_brokers", "_values", "_watches")

    def __init__(self, *brokers: "Metadata", values: Mapping[str, Any] | None = None) -> None:
        self._brokers = brokers
        self._values: dict[str, Any] = dict(values) if values else {}
        self._watches: list[_Watch] = []

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, looked up here and then in the brokers, or the default."""
        place = self._place(key)
        return default if place is None else place._values[key]

    def has(self, key: str) -> bool:
        """Return whether a key has a value, here or in a broker."""
        return self._place(key) is not None

    def set(self, key: str, value: Any) -> "Metadata":
        """Set a local value, which overrides the brokers; returns self for chaining."""
        self._values[key] = value
        for watch in self._who_sees(key):
            watch.listener(key, value)
        return self

    def delete(self, key: str) -> "Metadata":
        """Delete the local value; a broker's value may become visible again."""
        if key in self._values:
            watches = self._who_sees(key)
            del self._values[key]
            for watch in watches:
                watch.listener(key, watch.owner.get(key))
        return self

    def all(self) -> dict[str, Any]:
        """Return every value that `get` can find."""
        found: dict[str, Any] = {}
        for place in reversed(list(self._line())):
            found.update(place._values)
        return found

    def local(self) -> dict[str, Any]:
        """Return the local values, without those of the brokers."""
        return dict(self._values)

    def rebase(self, *brokers: "Metadata", values: Mapping[str, Any] | None = None) -> None:
        """Replace the brokers and the local values in place; listeners are notified of what changes."""
        before = [(watch, watch.owner.all()) for watch in self._watches]
        self._brokers, self._values = brokers, dict(values) if values else {}
        for watch, old in before:
            watch.owner._post(watch)
            new = watch.owner.all()
            for key in old | new:
                if old.get(key, _ABSENT) is not new.get(key, _ABSENT):
                    watch.listener(key, new.get(key))

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Call a function with (key, value) on every visible change, local or inherited; the result unsubscribes it."""
        watch = _Watch(self, listener)
        self._post(watch)
        return lambda: self._lift(watch)

    def __contains__(self, key: str) -> bool:
        return self.has(key)

    def __getitem__(self, key: str) -> Any:
        place = self._place(key)
        if place is None:
            raise KeyError(key)
        return place._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __repr__(self) -> str:
        return f"Metadata({self.all()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a plain copy of all visible values."""
        return _copied, (self.all(),)

    def _place(self, key: str) -> "Metadata | None":
        """Return the metadata object that holds the value: this one or a broker."""
        if key in self._values:
            return self
        for place in self._line() if self._brokers else ():
            if key in place._values:
                return place
        return None

    def _line(self) -> Iterator["Metadata"]:
        """Yield this object and all brokers in lookup order, each once; iterative, since chains can be long."""
        seen: set[int] = set()
        stack: list[Metadata] = [self]
        while stack:
            place = stack.pop()
            if id(place) not in seen:
                seen.add(id(place))
                yield place
                stack.extend(reversed(place._brokers))

    def _post(self, watch: "_Watch") -> None:
        self._lift(watch)
        watch.posts = list(self._line())
        for place in watch.posts:
            place._watches.append(watch)

    def _lift(self, watch: "_Watch") -> None:
        for place in watch.posts:
            place._watches.remove(watch)
        watch.posts = []

    def _who_sees(self, key: str) -> list["_Watch"]:
        """Return the listeners that see the value stored here under this key."""
        return [watch for watch in self._watches if watch.owner._place(key) is self]


class _Watch:
    """A listener, registered with every metadata object that its owner inherits from."""

    __slots__ = ("listener", "owner", "posts")

    def __init__(self, owner: Metadata, listener: Listener) -> None:
        self.owner = owner
        self.listener = listener
        self.posts: list[Metadata] = []


def _copied(values: dict[str, Any]) -> Metadata:
    return Metadata(values=values)
