"""The settings of the command and the gateway: where they come from, and what is opened with them."""

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
