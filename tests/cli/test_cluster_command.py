"""`atlas cluster status`, and the processes that it shows."""

import asyncio
import json
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from atlas_command import Home

from atlas_agents.client import GatewayClient
from atlas_agents.dispatch.members import Backlog, ClusterStatus, JobCounts, MemberStatus, TurnCounts
from checks import TIMEOUT
from stores.postgres_server import PostgresServer

TOKEN = "k9Vd2mQ8xZ4tR7wB1nL5cH"


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.with_database() as server:
        yield server.url


async def read_operations(url: str) -> dict[str, Any]:
    """Return what the operations view of a gateway shows."""
    async with GatewayClient(url, TOKEN) as client:
        return (await client.call("ops.status"))["live"]


@pytest.mark.slow
def test_status_shows_members_until_they_stop(home: Home, database: str) -> None:
    home.env |= {"ATLAS_DATABASE_URL": database, "ATLAS_TOKEN": TOKEN}
    with home.gateway("--role", "gateway") as front, home.gateway("--role", "worker", ATLAS_PORT="") as worker:
        assert "Status: http://127.0.0.1:" in worker.output
        end = time.monotonic() + TIMEOUT
        done = home.run("cluster", "status")
        while "No leader" in done.stdout or " of 64 " not in done.stdout:  # until the worker leads and takes turns
            assert time.monotonic() < end, done.stdout
            done = home.run("cluster", "status")
        assert (done.returncode, done.stderr) == (0, "")
        header, first, second, _, *summaries = done.stdout.splitlines()
        assert header.split() == [
            "MEMBER",
            "ROLE",
            "STATE",
            "TURNS",
            "UPTIME",
            "LAST",
            "SEEN",
            "VERSION",
            "PROCESS",
            "URL",
        ]
        assert front.process is not None and f" {front.process.pid} " in first and first.endswith(front.url)
        assert " gateway " in first and " worker " in second and " 0 of 64 " in second
        assert [line.split()[0] for line in summaries] == ["turns", "queue", "jobs", "postgres"]
        live = asyncio.run(read_operations(front.url))
        assert [(each["role"], each["pid"]) for each in live["members"]] == [
            ("gateway", front.process.pid),
            ("worker", worker.process.pid if worker.process else 0),
        ]
        assert live["members"][1]["leads"] and live["members"][1]["capacity"] == 64
        taken = home.run("serve", "--role", "worker", "--port", str(front.port))
        assert (taken.returncode, taken.stderr.splitlines()[-1]) == (
            2,
            f"atlas: cannot listen on 127.0.0.1 port {front.port}: Address already in use; choose another port",
        )
        assert worker.kill(signal.SIGTERM) == 0
        found = json.loads(home.run("cluster", "status", "--json").stdout)
        assert [each["role"] for each in found["members"]] == ["gateway"]
        assert found["problems"] == ["No worker is running, so turns will wait. Start one: atlas serve --role worker"]
        assert TOKEN not in done.stdout and "postgres@" not in json.dumps(found)


@pytest.mark.slow
def test_status_without_a_cluster_explains_what_to_do(bare: Home, database: str) -> None:
    alone = bare.run("cluster", "status")
    assert alone.returncode == 2 and "used by a single process; set ATLAS_DATABASE_URL=postgresql://" in alone.stderr
    empty = bare.run("cluster", "status", ATLAS_DATABASE_URL=database)
    assert empty.returncode == 2 and "has never used this database; start a member with" in empty.stderr
    gone = bare.run("cluster", "status", ATLAS_DATABASE_URL="postgresql://u:secret@127.0.0.1:1/x")
    assert gone.returncode == 1 and "cannot reach Postgres" in gone.stderr and "secret" not in gone.stderr
    assert alone.stdout == empty.stdout == gone.stdout == ""


def member(role: str = "worker", **states: bool) -> MemberStatus:
    leads, draining, lost = (states.get(each, False) for each in ("leads", "draining", "lost"))
    capacity = 0 if role == "gateway" else 64
    return MemberStatus("id", role, "box", 1, "", "0.1.0", 9.0, 1.0, 0, capacity, leads, draining, lost)


def problems(*members: MemberStatus, waiting: int = 0, dead: int = 0) -> list[str]:
    """The problems of a status, without their remedies."""
    status = ClusterStatus("18", members, TurnCounts(), Backlog(waiting), JobCounts(dead=dead), ())
    return [re.split("[:,]", each)[0] for each in status.problems]


def test_problems_of_a_cluster_are_listed() -> None:
    gateway, leader = member("gateway"), member(leads=True)
    assert problems(gateway, leader) == problems(member("all", leads=True)) == []
    assert problems(gateway, leader, member(lost=True), dead=2) == ["2 jobs are dead"]
    assert problems(gateway, member(lost=True), waiting=3) == ["No worker is running"]
    assert problems(gateway, member(draining=True)) == ["No worker is running"]
    assert problems(gateway, member()) == ["No leader"]
    assert problems(leader) == ["No gateway is running"]
    assert problems() == ["No worker is running", "No gateway is running"]
