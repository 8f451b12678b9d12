"""Metadata: named values with inheritance from other metadata objects (brokers)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from atlas_agents.core.errors import ConfigError

Listener = Callable[[str, Any], None]
_ABSENT: Any = object()


class Metadata:
    """Key-value store: local values first, then the brokers in order. Later changes of a broker are visible at once.

    Args:
        brokers: Other metadata to inherit from.
        values: Local values.
    """

    __slots__ = ("_brokers", "_subscriptions", "_values")

    def __init__(self, *brokers: "Metadata", values: Mapping[str, Any] | None = None) -> None:
        for broker in brokers:
            if not isinstance(broker, Metadata):
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
        return default if holder is None else holder._values.get(key, default)  # a thread may have deleted it

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
            self._values.pop(key, None)
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
        """Internal: replace the brokers and the local values in place; listeners are notified of the changes."""
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


class _Subscription:
    """A listener, registered with every metadata object that its owner inherits from."""

    __slots__ = ("listener", "owner", "registered_with")

    def __init__(self, owner: Metadata, listener: Listener) -> None:
        self.owner = owner
        self.listener = listener
        self.registered_with: list[Metadata] = []


def _from_values(values: dict[str, Any]) -> Metadata:
    return Metadata(values=values)
