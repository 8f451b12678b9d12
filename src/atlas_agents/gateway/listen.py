"""The sockets to listen on: the host that was asked for, or both loopbacks of this machine; and what serves at them."""

import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn

from atlas_agents.core.errors import ConfigError
from atlas_agents.gateway.link import HttpProtocol, Link
from atlas_agents.gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)
_BACKLOG = 2048


def listeners(settings: GatewaySettings) -> list[socket.socket]:
    """Bound sockets; ConfigError if the address is taken or is not ours."""
    if settings.exposed:
        return [_bind(settings.host, settings.port)]
    first = _bind("127.0.0.1", settings.port)
    try:
        return [first, _bind("::1", first.getsockname()[1])]
    except ConfigError as error:
        if not _has_v6():
            logger.info("there is no ::1 here; listening on 127.0.0.1 only")
            return [first]
        first.close()
        raise error


class Server(uvicorn.Server):
    """Leaves signals to the process, which ends turns before sockets."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def server_of(app: Any, settings: GatewaySettings) -> Server:
    """`await server.serve(sockets)` until `server.should_exit`."""
    return Server(
        uvicorn.Config(
            app,
            http=HttpProtocol,
            ws=Link,
            ws_max_size=settings.first_frame,
            ws_ping_interval=settings.ping,
            ws_ping_timeout=settings.ping,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=2,
        )
    )


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


def _has_v6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
