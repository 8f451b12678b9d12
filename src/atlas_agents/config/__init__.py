"""Settings of the CLI and the gateway: load them, and open the stores and files they name."""

from typing import TYPE_CHECKING, Any

from atlas_agents.config.load import load, load_again
from atlas_agents.config.settings import SETTINGS, Explained, Setting, Settings

if TYPE_CHECKING:
    from atlas_agents.config.open import open_home, open_policy, open_store

__all__ = [
    "SETTINGS",
    "Explained",
    "Setting",
    "Settings",
    "load",
    "load_again",
    "open_home",
    "open_policy",
    "open_store",
]


def __getattr__(name: str) -> Any:
    """Import what opens stores and policies when it is used."""
    if name in __all__:
        from atlas_agents.config import open

        return getattr(open, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
