"""Gateway settings: read once, then frozen."""

from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.core.paths import Secret

LOOPBACK = ("127.0.0.1", "::1", "localhost")
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - wildcard addresses, which are not host names of the gateway


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Listening address, tokens and limits of a gateway.

    `token` is the main token; without it, the token is read from the file `token` in `home`, which is created at the
    first start. `hosts` are further host names of this gateway, `origins` the other sites whose pages may use it,
    `trusted_proxies` the addresses or networks of reverse proxies whose `X-Forwarded-For` names the client. Sizes are
    in bytes, times in seconds.

    Attributes:
        home: Folder for the token and other state, readable only by its owner.
        host: Address to listen on.
        port: Port to listen on; 0 selects a free one.
        token: The main token; by default that in the file `token` in `home`, which is created at the first start.
        hosts: Further host names of this gateway.
        origins: Other sites whose pages may use it.
        trusted_proxies: Addresses or networks of reverse proxies whose `X-Forwarded-For` names the client.
        user_sessions: Maximum number of sessions of each user with own sessions. 0 means unlimited.
        user_messages: Maximum number of messages of each such user. 0 means unlimited.
        auth_timeout: Seconds in which a client must authenticate.
        first_frame: Maximum size in bytes of the first frame of a connection.
        max_frame: Maximum size in bytes of any other frame.
        max_queued: Maximum number of bytes that may wait for a slow client before it is disconnected.
        ping: Seconds between pings.
    """

    home: Path
    host: str = "127.0.0.1"
    port: int = 18789
    token: Secret | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    allowed_models: tuple[str, ...] = ()
    """Models, besides those of the agents, that tokens without the scope `admin` can choose."""
    user_sessions: int = 10_000
    user_messages: int = 100_000
    user_bytes: int = 256 * 1024 * 1024
    """Storage limits of each user with own sessions: sessions, messages and bytes of messages. 0 means unlimited."""
    auth_timeout: float = 10.0
    first_frame: int = 64 * 1024
    max_frame: int = 1024 * 1024
    max_queued: int = 1024 * 1024
    ping: float = 20.0
    grace: float = 6.0
    """Seconds to let running turns finish during shutdown."""
    restart_expected: float | None = None
    """Expected downtime in seconds, sent to clients at shutdown."""

    @property
    def exposed(self) -> bool:
        """Whether it listens on a non-loopback address."""
        return self.host not in LOOPBACK

    def url(self, port: int) -> str:
        """Return the URL for clients on this machine."""
        host = self.host
        name = f"[{host}]" if ":" in host else "127.0.0.1" if host in ("localhost", "0.0.0.0") else host  # noqa: S104
        return f"http://{name}:{port}"

    def to_public_dict(self) -> dict[str, Any]:
        """Return all settings except the token."""
        plain: dict[str, Any] = msgspec.to_builtins(
            msgspec.structs.asdict(self) | {"token": None, "home": str(self.home)}
        )
        return plain | {"token": "from the settings" if self.token else "in the file `token`"}
