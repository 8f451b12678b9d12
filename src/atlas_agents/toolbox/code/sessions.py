"""Interpreters that are kept between calls: one for each session that asked for it, until it is idle or in the way."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from atlas_agents.toolbox.code.interpreter import Answer, Interpreter
from atlas_agents.toolbox.sandbox.ports import OnOutput

Key: TypeAlias = tuple[str, str]
"""A tenant and its session."""
Start: TypeAlias = Callable[[], Awaitable[Interpreter]]
_WHY = {
    "time": "it was idle for too long",
    "memory": "it used too much memory",
    "processes": "it started too many processes",
    "disk": "it wrote too much",
    "output": "it wrote too much",
}


class Sessions:
    """Kept interpreters. When there are too many, the one that was used least recently is ended."""

    def __init__(self, *, at_most: int = 8, idle: float = 600.0) -> None:
        self._at_most = at_most
        self._idle = idle
        self._kept: dict[Key, Interpreter] = {}
        self._locks: dict[Key, asyncio.Lock] = {}
        self._lost: dict[Key, str] = {}

    async def ask(self, key: Key, code: str, start: Start, on_output: OnOutput | None = None) -> tuple[Answer, str]:
        """Run code in the session's interpreter; what came of it, and a sentence where state was lost before it."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            interpreter, news = await self._of(key, start)
            try:
                answer = await interpreter.ask(code, on_output)
            except BaseException:
                await self._end(key, "the call was cut short")
                raise
            if answer.ended:
                await self._end(key, "")
            else:
                interpreter.rest(self._idle)
            return answer, news

    async def close(self) -> None:
        """End all of them."""
        for key in tuple(self._kept):
            await self._end(key, "")

    async def _of(self, key: Key, start: Start) -> tuple[Interpreter, str]:
        kept = self._kept.pop(key, None)
        if kept is not None and not kept.ended:
            self._kept[key] = kept  # now the one that was used last
            return kept, ""
        why = self._lost.pop(key, "")
        if kept is not None:
            outcome = await kept.how_it_ended()
            why = _WHY.get(outcome.stopped or "", "its interpreter ended")
            await kept.close()
        while len(self._kept) >= self._at_most:
            await self._end(next(iter(self._kept)), "others needed the room")
        self._kept[key] = await start()
        return self._kept[key], f"The state of this session was lost, because {why}." if why else ""

    async def _end(self, key: Key, why: str) -> None:
        """`why` is told when the session comes back; nothing, where the answer tells it already."""
        interpreter = self._kept.pop(key, None)
        if why:
            self._lost[key] = why
            while len(self._lost) > 1000:
                self._lost.pop(next(iter(self._lost)))
        if interpreter is not None:
            with suppress(Exception):
                await interpreter.close()
