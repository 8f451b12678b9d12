"""The clients and processes of the gateway's tests are used here, too, and the checker of the crash cases."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atlas_agents.core.messages import new_id
from stores.postgres_server import PostgresServer

sys.path.append(str(Path(__file__).parent.parent / "gateway"))
sys.path.append(str(Path(__file__).parent.parent / "durable"))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A Postgres of the file's own."""
    with PostgresServer() as server:
        yield server.url


@pytest.fixture
def schema() -> str:
    """A cluster of the test's own on it."""
    return "t" + new_id().replace("-", "")
