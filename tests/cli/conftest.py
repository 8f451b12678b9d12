"""What the tests of the command share: a model by rule, and homes furnished for it."""

from collections.abc import Generator
from pathlib import Path

import pytest
from atlas_command import Home, furnished, mind

from model_server import ModelServer, serving


@pytest.fixture
def server() -> Generator[ModelServer]:
    with serving(mind) as model:
        yield model


@pytest.fixture
def home(tmp_path: Path, server: ModelServer) -> Home:
    """A workspace with two agents that answer, and a tool that needs a yes."""
    return furnished(tmp_path, server)


@pytest.fixture
def bare(tmp_path: Path) -> Home:
    """Nothing yet."""
    return Home(tmp_path)
