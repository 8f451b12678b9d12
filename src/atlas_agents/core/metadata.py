"""Metadata: named values with inheritance from other metadata objects (brokers)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from atlas_agents.core.errors import BadTool, ConfigError
from atlas_agents.core.json import encode

Listener = Callable[[str, Any], None]
_ABSENT: Any = object()


class Metadata:
    """Key-value store: local values first, then the brokers in order. Later changes of a broker are visible at once."""

    __slots__ = ("_brokers", "_subscriptions", "_values")

    def __init__(self, *brokers: "Metadata", values: Mapping[str, Any] | None = None) -> None:
        for broker in brokers:
            if not isinstance(broker, Metadata):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(
                    f"Metadata() takes other Metadata to inherit from, got {type(broker).__name__}; "
                    "pass values as Metadata(values={…})"
                )
        self._brokers = brokers
        self._values: dict[str, Any] = dict(values) if values else {}
        self._subscriptions: list[_Subscription] = []

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, looked up here and then in the brokers, or the default."""
        holder = self._find_holder(key)
        return default if holder is None else holder._values[key]

    def has(self, key: str) -> bool:
        """Return whether a key has a value, here or in a broker."""
        return self._find_holder(key) is not None

    def set(self, key: str, value: Any) -> "Metadata":
        """Set a local value, which overrides the brokers; returns self for chaining."""
        self._values[key] = value
        for subscription in self._subscriptions_for(key):
            subscription.listener(key, value)
        return self

    def delete(self, key: str) -> "Metadata":
        """Delete the local value; a broker's value may become visible again."""
        if key in self._values:
            subscriptions = self._subscriptions_for(key)
            del self._values[key]
            for subscription in subscriptions:
                subscription.listener(key, subscription.owner.get(key))
        return self

    def all(self) -> dict[str, Any]:
        """Return every value that `get` can find."""
        found: dict[str, Any] = {}
        for holder in reversed(list(self._lookup_chain())):
            found.update(holder._values)
        return found

    def local(self) -> dict[str, Any]:
        """Return the local values, without those of the brokers."""
        return dict(self._values)

    def rebase(self, *brokers: "Metadata", values: Mapping[str, Any] | None = None) -> None:
        """Replace the brokers and the local values in place; listeners are notified of what changes."""
        before = [(subscription, subscription.owner.all()) for subscription in self._subscriptions]
        self._brokers, self._values = brokers, dict(values) if values else {}
        for subscription, old in before:
            subscription.owner._register(subscription)
            new = subscription.owner.all()
            for key in old | new:
                if old.get(key, _ABSENT) is not new.get(key, _ABSENT):
                    subscription.listener(key, new.get(key))

    def on_change(self, listener: Listener) -> Callable[[], None]:
        """Call a function with (key, value) on every visible change, local or inherited; the result unsubscribes it."""
        subscription = _Subscription(self, listener)
        self._register(subscription)
        return lambda: self._unregister(subscription)

    def __contains__(self, key: str) -> bool:
        return self.has(key)

    def __getitem__(self, key: str) -> Any:
        holder = self._find_holder(key)
        if holder is None:
            raise KeyError(key)
        return holder._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __repr__(self) -> str:
        return f"Metadata({self.all()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a plain copy of all visible values."""
        return _from_values, (self.all(),)

    def _find_holder(self, key: str) -> "Metadata | None":
        """Return the metadata object that holds the value: this one or a broker."""
        if key in self._values:
            return self
        for holder in self._lookup_chain() if self._brokers else ():
            if key in holder._values:
                return holder
        return None

    def _lookup_chain(self) -> Iterator["Metadata"]:
        """Yield this object and all brokers in lookup order, each once; iterative, since chains can be long."""
        seen: set[int] = set()
        stack: list[Metadata] = [self]
        while stack:
            holder = stack.pop()
            if id(holder) not in seen:
                seen.add(id(holder))
                yield holder
                stack.extend(reversed(holder._brokers))

    def _register(self, subscription: "_Subscription") -> None:
        self._unregister(subscription)
        subscription.registered_with = list(self._lookup_chain())
        for holder in subscription.registered_with:
            holder._subscriptions.append(subscription)

    def _unregister(self, subscription: "_Subscription") -> None:
        for holder in subscription.registered_with:
            holder._subscriptions.remove(subscription)
        subscription.registered_with = []

    def _subscriptions_for(self, key: str) -> list["_Subscription"]:
        """Return the listeners that see the value stored here under this key."""
        return [subscription for subscription in self._subscriptions if subscription.owner._find_holder(key) is self]


class SessionMetadata(Metadata):
    """The metadata of a session during a turn: its own values, then those of the agent.

    What is set here belongs to the session alone. `values` is the dict of the conversation, which is changed in place.
    `turn` are values of this turn only; they come first. With `stored`, a value must be JSON, because it is stored with
    the session.
    """

    __slots__ = ("_changed", "_stored", "_turn")

    def __init__(
        self, agent: Metadata, values: dict[str, Any], *, stored: bool, turn: Mapping[str, Any] | None = None
    ) -> None:
        self._brokers = (agent,)
        self._values = values
        self._subscriptions = []
        self._turn = Metadata(values=turn) if turn else None
        self._stored = stored
        self._changed: set[str] = set()

    def set(self, key: str, value: Any) -> "Metadata":
        if self._stored:
            try:
                encode(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise ConfigError(
                    f"metadata {key!r} cannot be stored with the session: {error}; "
                    "set a JSON value, or pass objects with deps=…"
                ) from error
        self._changed.add(key)
        if self._turn is not None:
            self._turn.delete(key)
        return super().set(key, value)

    def delete(self, key: str) -> "Metadata":
        self._changed.add(key)
        if self._turn is not None:
            self._turn.delete(key)
        return super().delete(key)

    def all(self) -> dict[str, Any]:
        return super().all() | (self._turn.all() if self._turn is not None else {})

    def switch_agent(self, agent: Metadata) -> None:
        """Inherit from another agent, which continues the turn."""
        values = self._values
        self.rebase(agent, values=values)
        self._values = values

    def take_changes(self) -> tuple[dict[str, Any], tuple[str, ...]] | None:
        """Return the values that were set and the keys that were deleted since the last call; None if none were."""
        if not self._changed:
            return None
        changed, self._changed = self._changed, set()
        values = {key: self._values[key] for key in sorted(changed) if key in self._values}
        return values, tuple(sorted(changed - values.keys()))

    def _find_holder(self, key: str) -> Metadata | None:
        return self._turn if self._turn is not None and self._turn.has(key) else super()._find_holder(key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _ReadOnlyMetadata.copy, (self.all(),)

    def put_back(self, changes: tuple[dict[str, Any], tuple[str, ...]]) -> None:
        """Return changes that could not be stored."""
        self._changed.update(changes[0], changes[1])


class _ReadOnlyMetadata(Metadata):
    """The metadata of a session in a worker process: changes there would be lost."""

    __slots__ = ()

    @classmethod
    def copy(cls, values: dict[str, Any]) -> "_ReadOnlyMetadata":
        return cls(values=values)

    def set(self, key: str, value: Any) -> Metadata:
        raise BadTool(f"cannot set metadata {key!r} from a worker process: make the tool async, or set in_process=True")

    def delete(self, key: str) -> Metadata:
        raise BadTool(
            f"cannot delete metadata {key!r} in a worker process: make the tool async, or set in_process=True"
        )


class _Subscription:
    """A listener, registered with every metadata object that its owner inherits from."""

    __slots__ = ("listener", "owner", "registered_with")

    def __init__(self, owner: Metadata, listener: Listener) -> None:
        self.owner = owner
        self.listener = listener
        self.registered_with: list[Metadata] = []


def _from_values(values: dict[str, Any]) -> Metadata:
    return Metadata(values=values)
