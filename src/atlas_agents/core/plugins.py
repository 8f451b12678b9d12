"""Plugins: loads what installed packages offer through entry points, isolated from their failures.

A plugin that fails to load, or takes too long, is disabled with a reason; everything else continues without it.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from atlas_agents.core.paths import Environment

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

logger = logging.getLogger(__name__)
Kind: TypeAlias = Literal["tools", "providers", "interceptors", "stores", "commands"]
KINDS: tuple[Kind, ...] = ("tools", "providers", "interceptors", "stores", "commands")
LOAD_TIMEOUT = 5.0
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
        self, off: Iterable[str] = (), *, entries: "Iterable[EntryPoint] | None" = None, timeout: float = LOAD_TIMEOUT
    ) -> None:
        self._disabled_names = frozenset(off)
        self._given_entries = None if entries is None else list(entries)
        self._timeout = timeout
        self._examined: dict[tuple[Kind, str], Plugin] = {}

    def load(self, kind: Kind, register: Callable[[str, Any], None]) -> None:
        """Pass each plugin of a kind to `register` by name; if that raises, the plugin is disabled."""
        for entry in self._entries(kind):
            trouble = "disabled in the settings" if entry.name in self._disabled_names else self._load(entry, register)
            self._record(kind, entry, trouble)

    def names(self, kind: Kind) -> list[str]:
        """Return the names of a kind's plugins without loading them."""
        return [entry.name for entry in self._entries(kind) if entry.name not in self._disabled_names]

    @property
    def examined(self) -> list[Plugin]:
        """Return all plugins that were examined, in order."""
        return list(self._examined.values())

    @property
    def disabled(self) -> dict[str, str]:
        """Return the plugins that could not be used, with the reason."""
        return {plugin.name: plugin.trouble for plugin in self.examined if plugin.trouble}

    def _entries(self, kind: Kind) -> "list[EntryPoint]":
        group = f"atlas_agents.{kind}"
        if self._given_entries is None:
            from importlib.metadata import entry_points  # takes long to import, and few programs load plugins

            return list(entry_points(group=group))
        return [entry for entry in self._given_entries if entry.group == group]

    def _load(self, entry: "EntryPoint", register: Callable[[str, Any], None]) -> str:
        """Load a plugin and hand it on; return the reason if that failed."""
        if reason := _held(entry):
            logger.warning("plugin disabled: name=%r reason=%s", entry.name, reason)
            return reason
        try:
            register(entry.name, _load_with_timeout(entry, self._timeout))
        except Exception as error:  # plugin code may raise anything
            logger.warning("plugin disabled: name=%r error=%s: %s", entry.name, type(error).__name__, error)
            logger.debug("plugin traceback: name=%r", entry.name, exc_info=True)
            return f"{type(error).__name__}: {error}"
        return ""

    def _record(self, kind: Kind, entry: "EntryPoint", trouble: str) -> None:
        package, version = (entry.dist.name, entry.dist.version) if entry.dist is not None else ("", "")
        self._examined[kind, entry.name] = Plugin(kind, entry.name, package, version, trouble)


def _held(entry: "EntryPoint") -> str:
    """Return why a plugin may not be loaded: an agent changed its code, and no person agreed to that."""
    if entry.dist is None:
        return ""
    from atlas_agents.core.trust import Trust

    changed = Trust.of(Environment(dotenv=None)).changed_code(Path(str(entry.dist.locate_file(""))))
    return (
        f"{changed[0]} was changed by an agent; to see the change and agree to it, run: atlas trust" if changed else ""
    )


def _load_with_timeout(entry: "EntryPoint", timeout: float) -> Any:
    """Import a plugin in a thread, so that one that hangs does not block startup."""
    loaded: list[Any] = []
    errors: list[BaseException] = []

    def load() -> None:
        try:
            loaded.append(entry.load())
        except BaseException as error:  # noqa: BLE001 - SystemExit at import, too
            errors.append(error)

    thread = threading.Thread(target=load, name=f"plugin {entry.name}", daemon=True)
    thread.start()
    thread.join(timeout)
    if errors:
        raise _as_exception(errors[0])
    if not loaded:
        raise TimeoutError(f"loading took longer than {timeout:g} seconds")
    return loaded[0]


def _as_exception(error: BaseException) -> Exception:
    """Convert exceptions that would end the process into an ordinary one."""
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"tried to exit the process: {type(error).__name__}: {error}")
