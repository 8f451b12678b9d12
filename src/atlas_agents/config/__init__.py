"""Settings of the CLI and the gateway: load them, and open the stores and files they name."""

from atlas_agents.config.load import load, load_again
from atlas_agents.config.open import open_home, open_policy, open_store
from atlas_agents.config.settings import SETTINGS, Explained, Setting, Settings

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
