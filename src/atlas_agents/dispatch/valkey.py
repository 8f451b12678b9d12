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
from atlas_agents.dispatch.notifications import deliver_cancellation, describe_error

logger = logging.getLogger(__name__)
CONNECTION_ERRORS = (ValkeyError, OSError, TimeoutError)
_CONNECT_TIMEOUT = 5.0
_PING_INTERVAL = 2.0
_RECONNECT_DELAY = 1.0
_BATCH_SIZE = 512


class ValkeySubscriber:
    """Publisher and subscriber: calls `on_message` for every notification, and `on_gap` when some may have been missed
    (every second while disconnected). Messages that cannot be published are passed to `fallback`."""

    def __init__(
        self,
        client: Valkey,
        on_message: Callable[[str], None],
        on_gap: Callable[[], None],
        fallback: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        self._client: Any = client
        self._on_message = on_message
        self._on_gap = on_gap
        self._fallback = fallback
        self._channel = ""
        self._pending: list[str] = []
        self._has_pending = asyncio.Event()
        self._is_down = False
        self.connected = False
        """Whether publishing and receiving work."""

    async def open(self, identity: str) -> None:
        """Connect on a channel of this cluster; ConfigError if access is denied. A server that is down is retried."""
        self._channel = f"atlas:{hashlib.sha256(identity.encode()).hexdigest()[:16]}:news"
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                await self._client.ping()
        except CONNECTION_ERRORS as error:
            if _is_refusal(error):
                raise ConfigError(f"redis_url: access to Valkey denied: {describe_error(error)}") from None
            self._log_unreachable(error)

    async def close(self) -> None:
        await self._client.aclose()

    def publish(self, payloads: Sequence[str]) -> None:
        """Publish notifications after the commit, without waiting."""
        self._pending += payloads
        self._has_pending.set()

    async def run(self) -> None:
        """Publish and receive until cancelled."""
        while True:
            try:
                async with self._client.pubsub() as connection:
                    await connection.subscribe(self._channel)
                    deliver_cancellation()
                    await self._exchange(connection)
            except CONNECTION_ERRORS as error:
                self._log_unreachable(error)
            finally:
                self.connected = False
            self._on_gap()
            await self._send_fallback(self._take_batch())
            await asyncio.sleep(_RECONNECT_DELAY)

    async def _exchange(self, connection: Any) -> None:
        async with asyncio.timeout(_PING_INTERVAL):
            message: Any = None
            while message is None or message["type"] != "subscribe":
                message = await connection.get_message(timeout=_PING_INTERVAL)
        if self._is_down:
            logger.warning("Valkey connected again, notifications go through it")
        self.connected, self._is_down = True, False
        self._on_gap()
        publishing = asyncio.create_task(self._publish())
        receiving = asyncio.create_task(self._receive(connection))
        try:
            done, _ = await asyncio.wait((publishing, receiving), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.connected = False
            for task in (publishing, receiving):
                task.cancel()
            await asyncio.gather(publishing, receiving, return_exceptions=True)

    async def _receive(self, connection: Any) -> None:
        silent = False
        while True:
            message = await connection.get_message(timeout=_PING_INTERVAL)
            deliver_cancellation()
            if message is not None:
                silent = False
                if message["type"] == "message":
                    for payload in message["data"].decode(errors="replace").split("\n"):
                        self._on_message(payload)
            elif silent:  # a suspended server keeps its connections open but does not respond
                raise TimeoutError(f"no response for {_PING_INTERVAL:g} seconds")
            else:
                silent = True
                await connection.ping()

    async def _publish(self) -> None:
        while True:
            await self._has_pending.wait()
            payloads = self._take_batch()
            try:
                async with asyncio.timeout(_PING_INTERVAL):
                    await self._client.publish(self._channel, "\n".join(payloads))
            except BaseException:
                self._pending[:0] = payloads  # for `fallback`
                raise
            deliver_cancellation()

    def _take_batch(self) -> list[str]:
        payloads, self._pending = self._pending[:_BATCH_SIZE], self._pending[_BATCH_SIZE:]
        if not self._pending:
            self._has_pending.clear()
        return payloads

    async def _send_fallback(self, payloads: Sequence[str]) -> None:
        while payloads:
            await self._fallback(payloads)
            payloads = self._take_batch()

    def _log_unreachable(self, error: BaseException) -> None:
        if not self._is_down:
            self._is_down = True
            message = "Valkey unreachable, notifications go through Postgres: error=%s"
            logger.warning(message, describe_error(error))


def _is_refusal(error: BaseException) -> bool:
    """Return whether the server responds but denies access permanently."""
    refusals = (AuthenticationError, AuthorizationError, ResponseError, ssl.SSLCertVerificationError)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, refusals):
            return True
        cause = cause.__cause__ or cause.__context__
    return False
