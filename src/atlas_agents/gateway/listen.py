"""The sockets to listen on: the host that was asked for, and both loopbacks where it is this machine."""

import logging
import socket

from atlas_agents.core.errors import ConfigError
from atlas_agents.gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)
BACKLOG = 2048


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


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
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
