"""What the tools of a team may know of the house they work in: who else is there, what is kept, how far they may go."""

from collections.abc import Callable, Sequence

import msgspec

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.store import Store
from atlas_agents.core.tenancy import Tenancy


class Delegation(msgspec.Struct, frozen=True):
    """How far work may be handed on: so many agents deep, so many jobs that follow from one message of a user, so many
    that are worked on at once. `pauses` are the seconds before a job is tried again."""

    depth: int = 3
    jobs: int = 50
    at_once: int = 8
    pauses: tuple[float, ...] = (5.0, 30.0, 120.0, 600.0)

    def __post_init__(self) -> None:
        for name in ("depth", "jobs", "at_once"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Delegation({name}=…) must be at least 1, not {getattr(self, name)}")
        if not self.pauses or min(self.pauses) < 0:
            raise ConfigError("Delegation(pauses=…) needs seconds to wait, none of them negative")


class Colleague(msgspec.Struct, frozen=True):
    """An agent, as the others know it."""

    id: str
    name: str
    role: str
    description: str


class Office:
    """One per house that keeps things."""

    def __init__(
        self, store: Store, tenant: str, delegation: Delegation | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.store = store
        self.tenancy = Tenancy(store, tenant, clock)
        self.users = self.tenancy.users
        self.delegation = delegation or Delegation()
        self.clock = clock
        self.agents: Callable[[], Sequence[Colleague]] = tuple
        """All that there are now."""
        self.wake: Callable[[], None] = _nobody
        """Called when there may be something to do."""


def _nobody() -> None:
    """Nobody works on jobs here."""
