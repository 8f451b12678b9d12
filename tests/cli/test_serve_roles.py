"""`atlas serve --role`: gateways and workers on one Postgres, and who is kept apart from whom."""

import json
import signal
import urllib.request
from collections.abc import Iterator

import pytest
from atlas_command import Home

from stores.postgres_server import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def database() -> Iterator[str]:
    with PostgresServer() as server:
        yield server.url


def test_a_message_to_a_gateway_is_answered_by_a_worker_over_every_door(home: Home, database: str) -> None:
    home.env["ATLAS_DATABASE_URL"] = database
    with home.gateway("--role", "gateway") as gateway, home.gateway("--role", "worker") as worker:
        assert "Atlas works: it runs turns of assistant, poet that gateways have taken in.\n" in worker.said
        assert home.run("ask", "Hello").stdout == "You said: Hello\n"
        token = (home.path / "token").read_text().strip()
        for stream in (False, True):
            answer = _completion(gateway.url, token, stream=stream)
            assert "You said: Hi" in answer
        alone = home.run("serve")
        assert alone.returncode == 2 and "another Atlas process" in alone.stderr
        assert worker.kill(signal.SIGTERM) == gateway.kill(signal.SIGTERM) == 0
        for each in (gateway, worker):
            assert "Traceback" not in each.said, each.said


def test_who_works_alone_and_who_works_with_others_are_kept_apart(home: Home, database: str) -> None:
    home.env["ATLAS_DATABASE_URL"] = database
    elsewhere = {"ATLAS_HOME": str(home.folder / "elsewhere"), "ATLAS_WORKSPACE": str(home.path / "workspace")}
    with home.gateway():
        refused = home.run("serve", "--role", "worker", **elsewhere)
        assert (refused.returncode, refused.stderr) == (
            2,
            "atlas: another Atlas process uses this database exclusively; stop it, or start every process with --role\n",
        )
    with home.gateway("--role", "all"):
        refused = home.run("serve", **elsewhere)
        assert refused.returncode == 2 and "a cluster uses this database" in refused.stderr
        assert home.run("ask", "Hello").stdout == "You said: Hello\n"


def test_a_role_needs_a_database_that_others_can_reach(home: Home) -> None:
    for role in ("gateway", "worker", "all"):
        refused = home.run("serve", "--role", role)
        assert refused.returncode == 2 and "ATLAS_DATABASE_URL=postgresql://" in refused.stderr
    assert home.run("serve", "--role", "king").returncode == 2


def _completion(url: str, token: str, *, stream: bool) -> str:
    asked = {"model": "atlas/assistant", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "X-Atlas-Session": "h"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        told = answer.read().decode()
    if not stream:
        return json.loads(told)["choices"][0]["message"]["content"]
    lines = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: {")]
    return "".join(line["choices"][0]["delta"].get("content") or "" for line in lines if line["choices"])
