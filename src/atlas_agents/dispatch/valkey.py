"""Notifications over Valkey or Redis pub/sub, which relieves Postgres commits of NOTIFY.

An optimisation, never the only channel: messages that cannot be published go through Postgres, and a process that may
have missed some re-reads the state.
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
    """Publisher and subscriber: `on_told` receives every notification, and `on_gap` is called when some may have been
    missed, every second while disconnected. Messages that cannot be published are passed to `otherwise`."""

    def __init__(
        self,
        client: Valkey,
        on_told: Callable[[str], None],
        on_gap: Callable[[], None],
        otherwise: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        self._client: Any = client
        self._on_message = on_told
        self._on_gap = on_gap
        self._fallback = otherwise
        self._channel = ""
        self._waiting: list[str] = []
        self._more = asyncio.Event()
        self._away = False
        self.up = False
        """Whether publishing and receiving work."""

    async def open(self, place: str) -> None:
        """Connect on a channel that is unique to this cluster. ConfigError if access is denied; a server that is
        down may come back."""
        self._channel = f"atlas:{hashlib.sha256(place.encode()).hexdigest()[:16]}:news"
        try:
            async with asyncio.timeout(_STARTING):
                await self._client.ping()
        except LOST as error:
            if _is_refusal(error):
                raise ConfigError(f"redis_url: access to Valkey denied: {in_a_line(error)}") from None
            self._log_unreachable(error)

    async def close(self) -> None:
        await self._client.aclose()

    def tell(self, notices: Sequence[str]) -> None:
        """Publish notifications after the commit, without waiting."""
        self._waiting += notices
        self._more.set()

    async def run(self) -> None:
        """Publish and receive until cancelled."""
        while True:
            try:
                async with self._client.pubsub() as connection:
                    await connection.subscribe(self._channel)
                    _deliver_cancellation()
                    await self._hold(connection)
            except LOST as error:
                self._log_unreachable(error)
            finally:
                self.up = False
            self._on_gap()
            await self._pass_on(self._acquire_lock())
            await asyncio.sleep(_PAUSE)

    async def _hold(self, connection: Any) -> None:
        async with asyncio.timeout(_PING):
            while (heard := await connection.get_message(timeout=_PING)) is None or heard["type"] != "subscribe":
                pass
        if self._away:
            logger.warning("Valkey connected again, notifications go through it")
        self.up, self._away = True, False
        self._on_gap()
        telling = asyncio.create_task(self._publish())
        hearing = asyncio.create_task(self._receive(connection))
        try:
            done, _ = await asyncio.wait((telling, hearing), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.up = False
            for task in (telling, hearing):
                task.cancel()
            await asyncio.gather(telling, hearing, return_exceptions=True)

    async def _receive(self, connection: Any) -> None:
        silent = False
        while True:
            heard = await connection.get_message(timeout=_PING)
            _deliver_cancellation()
            if heard is not None:
                silent = False
                if heard["type"] == "message":
                    for told in heard["data"].decode(errors="replace").split("\n"):
                        self._on_message(told)
            elif silent:  # a suspended server keeps its connections open but does not respond
                raise TimeoutError(f"no response for {_PING:g} seconds")
            else:
                silent = True
                await connection.ping()

    async def _publish(self) -> None:
        while True:
            await self._more.wait()
            told = self._acquire_lock()
            try:
                async with asyncio.timeout(_PING):
                    await self._client.publish(self._channel, "\n".join(told))
            except BaseException:
                self._waiting[:0] = told  # for `otherwise`
                raise
            _deliver_cancellation()

    def _acquire_lock(self) -> list[str]:
        told, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
        if not self._waiting:
            self._more.clear()
        return told

    async def _pass_on(self, told: Sequence[str]) -> None:
        while told:
            await self._fallback(told)
            told = self._acquire_lock()

    def _log_unreachable(self, error: BaseException) -> None:
        if not self._away:
            self._away = True
            words = "Valkey unreachable, notifications go through Postgres: error=%s"
            logger.warning(words, in_a_line(error))


def _deliver_cancellation() -> None:
    """Deliver a lost cancellation: the client uses `wait_for`, which before Python 3.12 loses one that arrives together
    with the response."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _is_refusal(error: BaseException) -> bool:
    """Return whether the server is there but denies access permanently."""
    refusals = (AuthenticationError, AuthorizationError, ResponseError, ssl.SSLCertVerificationError)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, refusals):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
