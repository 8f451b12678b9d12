"""The weights of the small local model, fetched once per machine by the product's own code."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from atlas_agents import LocalProvider
from atlas_agents.local.download import pull

Make: TypeAlias = Callable[..., LocalProvider]
"""Makes a provider whose home has the weights."""

# Read when the tests are collected: a test itself sees no settings of the machine.
_HOME = os.environ.get("ATLAS_TEST_MODELS") or Path.home() / ".cache" / "atlas-agents-tests"


def home_with_weights() -> Path:
    """A home folder in which the default model is installed."""
    asyncio.run(pull(folder=Path(_HOME) / "models"))
    return Path(_HOME)
