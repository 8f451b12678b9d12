"""Plugins: loads the entry points of installed packages, and isolates failures.

A plugin that fails to load, or takes too long, is disabled with a reason; everything else continues without it.
"""

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from atlas_agents.core.errors import ConfigError
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
            return list(self._installed.select(group=group))
        return [entry for entry in self._given_entries if entry.group == group]

    @cached_property
    def _installed(self) -> Any:
        """Entry points of all packages, by kind. Cached, because finding them reads the metadata of every package."""
        from importlib.metadata import entry_points  # takes long to import, and few programs load plugins

        return entry_points()

    def _load(self, entry: "EntryPoint", register: Callable[[str, Any], None]) -> str:
        """Load a plugin and pass it to `register`; return the reason if that failed."""
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
    """Return the reason why a plugin may not be loaded: an agent changed its code, and no person agreed to that."""
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


# Code that a person names on the command line, or in a file


def import_target(target: str, folder: Path | None = None) -> Any:
    """Import the object that `package.module:name` or `path/to/file.py:name` refers to; the name may contain dots.

    Nothing is imported from the current folder unless the file is named. `folder`, or the folder of a named file, is
    searched after all installed packages.
    """
    return find_attribute(*import_module_of(target, folder))


def import_module_of(target: str, folder: Path | None = None) -> tuple[ModuleType, str]:
    """Import the module of `package.module:name` or `path/to/file.py:name`, and return it with the name."""
    where, separator, name = target.rpartition(":")
    if not (where and separator and all(part.isidentifier() for part in name.split("."))):
        raise ConfigError(f"invalid target {target!r}: expected package.module:name or path/to/file.py:name")
    try:
        with _without_current_folder(folder):
            return (_import_file(Path(where).expanduser()) if where.endswith(".py") else _import_module(where)), name
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"cannot import {where!r}: {type(error).__name__}: {error}") from error


def find_attribute(module: ModuleType, name: str) -> Any:
    """Return the attribute of a module with this dotted name."""
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"module {module.__name__!r} has no attribute {name!r}")
        found = getattr(found, part)
    return found


@contextmanager
def _without_current_folder(folder: Path | None) -> Generator[None]:
    """Remove the current folder from the import path, and append another one. Folders of named files stay in it."""
    before, here = list(sys.path), os.path.realpath(Path.cwd())
    sys.path[:] = [each for each in before if each and os.path.realpath(each) != here]
    last = str(folder.resolve()) if folder is not None else None
    if last is not None:
        sys.path.append(last)
    try:
        yield
    finally:
        sys.path[:] = [*before, *[each for each in sys.path if each not in before and each != last]]


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        file = Path(name.replace(".", "/") + ".py")
        hint = f"name the file instead: ./{file}:…" if file.is_file() else "install its package, or name a .py file"
        raise ConfigError(f"no installed module {name!r}; {hint}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"not found: file {str(path)!r}")
    spec = spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigError(f"{str(path)!r} is not a Python file")
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.append(str(path.resolve().parent))  # last: it cannot replace installed modules
    spec.loader.exec_module(module)
    return module
