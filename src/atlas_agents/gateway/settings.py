"""What a gateway can be told; read once, then frozen."""

from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.core.paths import Secret

LOOPBACK = ("127.0.0.1", "::1", "localhost")
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - addresses to listen on, and no names to be reached by


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen, where the tokens are, and how much a connection may take.

    `token` is the user's own; without one, it is in the file `token` in `home`, made on the first start. `hosts` are
    further names under which this gateway may be reached, `origins` those of other sites whose pages may use it. Sizes
    are in bytes, times in seconds.
    """

    home: Path
    host: str = "127.0.0.1"
    port: int = 18789
    token: Secret | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    auth_timeout: float = 10.0
    first_frame: int = 64 * 1024
    max_frame: int = 1024 * 1024
    max_queued: int = 1024 * 1024
    ping: float = 20.0
    grace: float = 6.0
    """How long turns may go on after the gateway was told to stop."""
    restart_expected: float | None = None
    """How soon it will be back, to be told to clients when it stops."""

    @property
    def exposed(self) -> bool:
        """It listens beyond this machine."""
        return self.host not in LOOPBACK

    def url(self, port: int) -> str:
        """Where it is reached from this machine, at the port that it listens on."""
        host = self.host
        name = f"[{host}]" if ":" in host else "127.0.0.1" if host in ("localhost", "0.0.0.0") else host  # noqa: S104
        return f"http://{name}:{port}"

    def shown(self) -> dict[str, Any]:
        """All of it but the token."""
        plain: dict[str, Any] = msgspec.to_builtins(
            msgspec.structs.asdict(self) | {"token": None, "home": str(self.home)}
        )
        return plain | {"token": "from the settings" if self.token else "in the file `token`"}
