"""Who hears what a turn says: `atlas.on(name, f)`.

Each listener has its own queue and its own place to run (a task, or a thread for a plain function), so that one that
throws, hangs or is slow keeps no other and no turn waiting.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, get_args

from atlas_agents.core.calling import call
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.events import Event, EventName

logger = logging.getLogger(__name__)
HANG = 1.0
CATCH_UP = 0.25
Trace: TypeAlias = Callable[[BaseException], str]
_NAMES: tuple[str, ...] = get_args(EventName)
_hung: set[asyncio.Task[None]] = set()


class _Listener:
    """One function, told one event at a time."""

    def __init__(self, function: Callable[[Any], Any], drop: Callable[["_Listener"], None], trace: Trace) -> None:
        self.function = function
        self._drop = drop
        self._trace = trace
        self._waiting: deque[Event] = deque()
        self._task: asyncio.Task[None] | None = None

    def tell(self, event: Event) -> None:
        self._waiting.append(event)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())

    @property
    def busy(self) -> "asyncio.Task[None] | None":
        return self._task if self._task and not self._task.done() else None

    async def _work(self) -> None:
        while self._waiting:
            event = self._waiting.popleft()
            task = asyncio.create_task(self._hear(event))
            await asyncio.wait({task}, timeout=HANG)
            if not task.done():  # it is told to stop, and not waited for: it may not listen
                logger.warning("the listener %r hung for %g s on %s and was removed", self.function, HANG, event.type)
                self._waiting.clear()
                self._drop(self)
                _hung.add(task)
                task.add_done_callback(_hung.discard)
                task.cancel()

    async def _hear(self, event: Event) -> None:
        try:
            await call(self.function, event)
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - a user's listener: its trouble is its own, even SystemExit
            logger.error("the listener %r failed on %s\n%s", self.function, event.type, self._trace(error))


class Listeners:
    """The listeners of an Atlas, by event name. `trace` writes for the log what one of them raised."""

    def __init__(self, trace: Trace) -> None:
        self._by_name: dict[str, list[_Listener]] = {}
        self._trace = trace

    def on(self, name: str, function: Callable[[Any], Any]) -> Callable[[], None]:
        """Have `function` called for each event of that name; the result takes it off again."""
        if name not in _NAMES:
            raise ConfigError(f"there is no event {name!r}; there are {', '.join(_NAMES)}")
        if not callable(function):
            raise ConfigError(f"a listener must be a function of the event, not {function!r}")
        listener = _Listener(function, self._remove, self._trace)
        self._by_name.setdefault(name, []).append(listener)
        return lambda: self._remove(listener)

    def off(self, name: str, function: Callable[[Any], Any]) -> None:
        """Stop calling `function` for that event; unknown ones are ignored."""
        if name not in _NAMES:
            raise ConfigError(f"there is no event {name!r}; there are {', '.join(_NAMES)}")
        for listener in [item for item in self._by_name.get(name, ()) if item.function == function]:
            self._remove(listener)

    def tell(self, event: Event) -> None:
        if self._by_name:
            for listener in self._by_name.get(event.type, ()):
                listener.tell(event)

    async def catch_up(self, limit: float = CATCH_UP) -> None:
        """Give listeners a moment to hear what was said; a turn does not wait long for a hung one."""
        busy = [task for held in self._by_name.values() for listener in held if (task := listener.busy)]
        if busy:
            await asyncio.wait(busy, timeout=limit)

    def _remove(self, listener: _Listener) -> None:
        for name in list(self._by_name):
            kept = [item for item in self._by_name[name] if item is not listener]
            if kept:
                self._by_name[name] = kept
            else:
                del self._by_name[name]
