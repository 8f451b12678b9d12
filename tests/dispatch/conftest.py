"""Fixtures; also makes the helpers of the gateway tests and of the crash tests importable."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlas_agents.core.messages import new_id
from stores.postgres_server import PostgresServer

sys.path.append(str(Path(__file__).parent.parent / "gateway"))
sys.path.append(str(Path(__file__).parent.parent / "durable"))


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """The Postgres of the test run, with a database for one test."""
    with postgres_server.with_database() as own:
        yield own


@pytest.fixture(scope="module")
def url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database for one test file."""
    with postgres_server.with_database() as own:
        yield own.url


@pytest.fixture
def schema() -> str:
    """A schema, and thus a cluster, per test."""
    return "t" + new_id().replace("-", "")
