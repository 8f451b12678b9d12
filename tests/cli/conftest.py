"""Fixtures of the command-line tests: a model server that replies by rule, and home folders."""

from collections.abc import Generator
from pathlib import Path

import pytest
from atlas_command import Home, create_home, reply_by_rule

from model_server import ModelServer, run_model_server


@pytest.fixture
def server() -> Generator[ModelServer]:
    with run_model_server(reply_by_rule) as model:
        yield model


@pytest.fixture
def home(tmp_path: Path, server: ModelServer) -> Home:
    """A workspace with two agents, and a tool that needs approval."""
    return create_home(tmp_path, server)


@pytest.fixture
def bare(tmp_path: Path) -> Home:
    """An empty folder."""
    return Home(tmp_path)
