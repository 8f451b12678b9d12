"""News by the publish and subscribe of Valkey or Redis, which takes them off the commits of Postgres.

It is a quicker way, never the only one. What cannot be told here is told by Postgres; who cannot hear, or may have
missed something, looks at everything.
"""

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from valkey.asyncio import Valkey
from valkey.exceptions import AuthenticationError, AuthorizationError, ResponseError, ValkeyError

from atlas_agents.core.errors import ConfigError

logger = logging.getLogger(__name__)
LOST = (ValkeyError, OSError, TimeoutError)
_STARTING = 5.0
_PING = 2.0
_PAUSE = 1.0
_AT_ONCE = 512


class ValkeySubscriber:
    """`on_told` hears every notice; `on_gap` is called whenever some may have been missed, every second as long as it
    cannot hear. What could not be told is given to `otherwise`."""

    def __init__(
        self,
        client: Valkey,
        on_told: Callable[[str], None],
        on_gap: Callable[[], None],
        otherwise: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        self._client: Any = client
        self._on_told = on_told
        self._on_gap = on_gap
        self._otherwise = otherwise
        self._channel = ""
        self._waiting: list[str] = []
        self._more = asyncio.Event()
        self._away = False
        self.up = False
        """It can be told, and heard."""

    async def open(self, place: str) -> None:
        """See who is there, for a place that is no other cluster's. One that lets us not in is a ConfigError; one that
        is away may come back."""
        self._channel = f"atlas:{hashlib.sha256(place.encode()).hexdigest()[:16]}:news"
        try:
            async with asyncio.timeout(_STARTING):
                await self._client.ping()
        except LOST as trouble:
            if _is_refusal(trouble):
                raise ConfigError(f"redis_url: Valkey does not let us in: {in_a_line(trouble)}") from None
            self._say_away(trouble)

    async def close(self) -> None:
        await self._client.aclose()

    def tell(self, notices: Sequence[str]) -> None:
        """After the commit, and without waiting."""
        self._waiting += notices
        self._more.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with self._client.pubsub() as line:
                    await line.subscribe(self._channel)
                    _heed()
                    await self._hold(line)
            except LOST as trouble:
                self._say_away(trouble)
            finally:
                self.up = False
            self._on_gap()
            await self._pass_on(self._taken())
            await asyncio.sleep(_PAUSE)

    async def _hold(self, line: Any) -> None:
        async with asyncio.timeout(_PING):
            while (heard := await line.get_message(timeout=_PING)) is None or heard["type"] != "subscribe":
                pass
        if self._away:
            logger.warning("Valkey is back, and carries the news again")
        self.up, self._away = True, False
        self._on_gap()
        telling = asyncio.create_task(self._publish())
        hearing = asyncio.create_task(self._hear(line))
        try:
            done, _ = await asyncio.wait((telling, hearing), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.up = False
            for task in (telling, hearing):
                task.cancel()
            await asyncio.gather(telling, hearing, return_exceptions=True)

    async def _hear(self, line: Any) -> None:
        silent = False
        while True:
            heard = await line.get_message(timeout=_PING)
            _heed()
            if heard is not None:
                silent = False
                if heard["type"] == "message":
                    for told in heard["data"].decode(errors="replace").split("\n"):
                        self._on_told(told)
            elif silent:  # a server that is stopped keeps its connections, and answers nothing
                raise TimeoutError(f"no answer for {_PING:g} seconds")
            else:
                silent = True
                await line.ping()

    async def _publish(self) -> None:
        while True:
            await self._more.wait()
            told = self._taken()
            try:
                async with asyncio.timeout(_PING):
                    await self._client.publish(self._channel, "\n".join(told))
            except BaseException:
                self._waiting[:0] = told  # for `otherwise`
                raise
            _heed()

    def _taken(self) -> list[str]:
        told, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
        if not self._waiting:
            self._more.clear()
        return told

    async def _pass_on(self, told: Sequence[str]) -> None:
        while told:
            await self._otherwise(told)
            told = self._taken()

    def _say_away(self, trouble: BaseException) -> None:
        if not self._away:
            self._away = True
            words = "Valkey cannot be reached (%s): Postgres carries the news until it is back"
            logger.warning(words, in_a_line(trouble))


def _heed() -> None:
    """The client waits by `wait_for`, which before Python 3.12 loses a cancellation that comes with the answer."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def in_a_line(trouble: BaseException) -> str:
    return " ".join(str(trouble).split())[:200] or type(trouble).__name__


def _is_refusal(trouble: BaseException) -> bool:
    """It is there, and will not have us however often we ask."""
    refusals = (AuthenticationError, AuthorizationError, ResponseError, ssl.SSLCertVerificationError)
    cause: BaseException | None = trouble
    while cause is not None:
        if isinstance(cause, refusals):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
