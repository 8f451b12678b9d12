"""Who may come in at all: the names that this process answers to, its tokens, and who has shown too many wrong ones."""

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.gateway.guard import Guard
from atlas_agents.gateway.lockout import Lockout
from atlas_agents.gateway.settings import EVERYWHERE, GatewaySettings
from atlas_agents.gateway.tokens import Grant, Tokens


class Porch:
    """One per process that listens, whatever its role."""

    def __init__(self, settings: GatewaySettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.tokens = Tokens(settings.home, settings.token, exposed=settings.exposed)
        own = () if settings.host in EVERYWHERE else (settings.host,)
        self.guard = Guard((*settings.hosts, *own), settings.origins)
        self.suspended: frozenset[str] = frozenset()
        """Users whose keys open nothing."""
        self._lockout = Lockout(clock)

    def admit(self, address: str, token: str) -> tuple[float, Grant | None]:
        """(seconds to wait, the token's owner): one of them is nothing, or both when the token is wrong."""
        if wait := self._lockout.wait(address):
            return wait, None
        grant = self.tokens.who(token)
        if grant is not None and grant.principal.id in self.suspended:
            grant = None
        if grant is None:
            self._lockout.wrong(address)
        return 0.0, grant
