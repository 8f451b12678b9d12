"""A home with real weights, and providers on it that are closed again."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import LocalProvider
from atlas_agents.testing import Environment
from local_weights import Make, home_with_weights


@pytest.fixture(scope="session")
def weights() -> Path:
    """The folder of models."""
    return home_with_weights() / "models"


@pytest.fixture
def home(weights: Path, tmp_path: Path) -> Path:
    """A home of the test's own, with the models of all."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(weights)
    return home


@pytest.fixture
async def make(home: Path) -> AsyncIterator[Make]:
    made: list[LocalProvider] = []

    def provider(*arguments: Any, **options: Any) -> LocalProvider:
        environment = Environment({"ATLAS_HOME": str(home)}, dotenv=None)
        made.append(LocalProvider(*arguments, environment=environment, **options))
        return made[-1]

    yield provider
    for each in made:
        await each.close()
