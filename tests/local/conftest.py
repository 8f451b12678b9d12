"""Homes with real model weights, and local providers that are closed after the test."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import LocalProvider
from atlas_agents.testing import Environment
from local_weights import Make, home_with_weights


@pytest.fixture(scope="session")
def weights() -> Path:
    """The folder of the models."""
    return home_with_weights() / "models"


@pytest.fixture
def home(weights: Path, tmp_path: Path) -> Path:
    """A home of the test with a link to the models; it has its own model servers."""
    return _home(weights, tmp_path)


@pytest.fixture(scope="session")
def shared_home(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home shared by all tests, with a model server that runs until the last test has ended."""
    home = _home(weights, tmp_path_factory.mktemp("local"))
    anchor = LocalProvider(environment=_environment(home))
    asyncio.run(_start(anchor))
    yield home
    asyncio.run(anchor.close())


@pytest.fixture
async def make(home: Path) -> AsyncIterator[Make]:
    """Create providers that start their own model server."""
    async for provider in _providers(home):
        yield provider


@pytest.fixture
async def share(shared_home: Path) -> AsyncIterator[Make]:
    """Create providers that use the shared model server."""
    async for provider in _providers(shared_home):
        yield provider


async def _providers(home: Path) -> AsyncIterator[Make]:
    created: list[LocalProvider] = []

    def provider(*arguments: Any, **options: Any) -> LocalProvider:
        created.append(LocalProvider(*arguments, environment=_environment(home), **options))
        return created[-1]

    yield provider
    for each in created:
        await each.close()


async def _start(provider: LocalProvider) -> None:
    await provider.endpoint()


def _home(weights: Path, folder: Path) -> Path:
    home = folder / "home"
    home.mkdir()
    (home / "models").symlink_to(weights)
    return home


def _environment(home: Path) -> Environment:
    return Environment({"ATLAS_HOME": str(home)}, dotenv=None)
