"""Weights of the small local model, downloaded once per machine by the product's own code."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from atlas_agents import LocalProvider
from atlas_agents.local.download import pull

Make: TypeAlias = Callable[..., LocalProvider]
"""Creates a provider whose home has the weights."""

# Read when the tests are collected: a test itself sees no settings of the machine.
_HOME = os.environ.get("ATLAS_TEST_MODELS") or Path.home() / ".cache" / "atlas-agents-tests"


def home_with_weights() -> Path:
    """Return a home folder with the default model installed."""
    asyncio.run(pull(folder=Path(_HOME) / "models"))
    return Path(_HOME)
