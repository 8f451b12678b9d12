"""What installed packages offer by their entry points: one door for every kind, behind which nothing can go wrong.

A plugin that cannot be loaded, or not in time, is disabled, and says why; the rest goes on without it.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, NamedTuple, TypeAlias

logger = logging.getLogger(__name__)
Kind: TypeAlias = Literal["tools", "providers", "interceptors", "stores", "commands"]
KINDS: tuple[Kind, ...] = ("tools", "providers", "interceptors", "stores", "commands")
PATIENCE = 5.0
"""Seconds that a plugin may take to load."""


class Plugin(NamedTuple):
    """One entry point: what it is called, where it comes from, and why it is disabled, if it is."""

    kind: Kind
    name: str
    package: str = ""
    version: str = ""
    trouble: str = ""


class Plugins:
    """Loads what is installed, a kind at a time, and remembers what came of it. `off` names some to leave alone."""

    def __init__(
        self, off: Iterable[str] = (), *, found: Iterable[EntryPoint] | None = None, patience: float = PATIENCE
    ) -> None:
        self._off = frozenset(off)
        self._found = None if found is None else list(found)
        self._patience = patience
        self._known: dict[tuple[Kind, str], Plugin] = {}

    def load(self, kind: Kind, take: Callable[[str, Any], None]) -> None:
        """Hand each plugin of a kind to `take`, by its name; if that raises, the plugin is disabled."""
        for entry in self._entries(kind):
            trouble = "it is turned off in the settings" if entry.name in self._off else self._trouble(entry, take)
            self._remember(kind, entry, trouble)

    def names(self, kind: Kind) -> list[str]:
        """Those of a kind, without loading them."""
        return [entry.name for entry in self._entries(kind) if entry.name not in self._off]

    @property
    def known(self) -> list[Plugin]:
        """All that were looked at, in their order."""
        return list(self._known.values())

    @property
    def disabled(self) -> dict[str, str]:
        """Those that could not be used, and why."""
        return {plugin.name: plugin.trouble for plugin in self.known if plugin.trouble}

    def _entries(self, kind: Kind) -> list[EntryPoint]:
        group = f"atlas_agents.{kind}"
        if self._found is None:
            return list(entry_points(group=group))
        return [entry for entry in self._found if entry.group == group]

    def _trouble(self, entry: EntryPoint, take: Callable[[str, Any], None]) -> str:
        """What stands in the way of using it; it is used if nothing does."""
        try:
            take(entry.name, _loaded(entry, self._patience))
        except Exception as error:  # a plugin's own code
            logger.warning("the plugin %r is disabled: %s: %s", entry.name, type(error).__name__, error)
            logger.debug("the plugin %r failed so", entry.name, exc_info=True)
            return f"{type(error).__name__}: {error}"
        return ""

    def _remember(self, kind: Kind, entry: EntryPoint, trouble: str) -> None:
        package, version = (entry.dist.name, entry.dist.version) if entry.dist is not None else ("", "")
        self._known[kind, entry.name] = Plugin(kind, entry.name, package, version, trouble)


def _loaded(entry: EntryPoint, patience: float) -> Any:
    """Import it in a thread: one that never comes to an end holds up nobody."""
    found: list[Any] = []
    raised: list[BaseException] = []

    def load() -> None:
        try:
            found.append(entry.load())
        except BaseException as error:  # noqa: BLE001 - SystemExit at import, too
            raised.append(error)

    thread = threading.Thread(target=load, name=f"plugin {entry.name}", daemon=True)
    thread.start()
    thread.join(patience)
    if raised:
        raise _bounded(raised[0])
    if not found:
        raise TimeoutError(f"it took longer than {patience:g} seconds to load")
    return found[0]


def _bounded(error: BaseException) -> Exception:
    """What it raised, but nothing that ends the program."""
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"it wanted to end the program: {type(error).__name__}: {error}")
