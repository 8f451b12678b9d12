"""Plugins: loads what installed packages offer through entry points, isolated from their failures.

A plugin that fails to load, or takes too long, is disabled with a reason; everything else continues without it.
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
"""Timeout in seconds for loading one plugin."""


class Plugin(NamedTuple):
    """One entry point: its name, its package, and the reason if it is disabled."""

    kind: Kind
    name: str
    package: str = ""
    version: str = ""
    trouble: str = ""


class Plugins:
    """Loads installed plugins by kind and records the outcome. `off` names plugins to skip."""

    def __init__(
        self, off: Iterable[str] = (), *, found: Iterable[EntryPoint] | None = None, patience: float = PATIENCE
    ) -> None:
        self._off = frozenset(off)
        self._found = None if found is None else list(found)
        self._patience = patience
        self._known: dict[tuple[Kind, str], Plugin] = {}

    def load(self, kind: Kind, take: Callable[[str, Any], None]) -> None:
        """Pass each plugin of a kind to `take` by name; if that raises, the plugin is disabled."""
        for entry in self._entries(kind):
            trouble = "disabled in the settings" if entry.name in self._off else self._trouble(entry, take)
            self._remember(kind, entry, trouble)

    def names(self, kind: Kind) -> list[str]:
        """Return the names of a kind's plugins without loading them."""
        return [entry.name for entry in self._entries(kind) if entry.name not in self._off]

    @property
    def known(self) -> list[Plugin]:
        """Return all plugins that were examined, in order."""
        return list(self._known.values())

    @property
    def disabled(self) -> dict[str, str]:
        """Return the plugins that could not be used, with the reason."""
        return {plugin.name: plugin.trouble for plugin in self.known if plugin.trouble}

    def _entries(self, kind: Kind) -> list[EntryPoint]:
        group = f"atlas_agents.{kind}"
        if self._found is None:
            return list(entry_points(group=group))
        return [entry for entry in self._found if entry.group == group]

    def _trouble(self, entry: EntryPoint, take: Callable[[str, Any], None]) -> str:
        """Load a plugin and hand it on; return the reason if that failed."""
        try:
            take(entry.name, _loaded(entry, self._patience))
        except Exception as error:  # plugin code may raise anything
            logger.warning("plugin disabled: name=%r error=%s: %s", entry.name, type(error).__name__, error)
            logger.debug("plugin traceback: name=%r", entry.name, exc_info=True)
            return f"{type(error).__name__}: {error}"
        return ""

    def _remember(self, kind: Kind, entry: EntryPoint, trouble: str) -> None:
        package, version = (entry.dist.name, entry.dist.version) if entry.dist is not None else ("", "")
        self._known[kind, entry.name] = Plugin(kind, entry.name, package, version, trouble)


def _loaded(entry: EntryPoint, patience: float) -> Any:
    """Import a plugin in a thread, so that one that hangs does not block startup."""
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
        raise TimeoutError(f"loading took longer than {patience:g} seconds")
    return found[0]


def _bounded(error: BaseException) -> Exception:
    """Convert exceptions that would end the process into an ordinary one."""
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"tried to exit the process: {type(error).__name__}: {error}")
