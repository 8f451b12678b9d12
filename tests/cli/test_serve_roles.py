"""`atlas serve --role`: gateways and workers of a cluster on one Postgres."""

import json
import signal
import urllib.request
from collections.abc import Iterator

import pytest
from atlas_command import Home

from checks import TIMEOUT
from stores.postgres_server import PostgresServer

pytestmark = pytest.mark.slow


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    with postgres_server.with_database() as server:
        yield server.url


def test_worker_answers_messages_from_every_endpoint_of_a_gateway(home: Home, database: str) -> None:
    home.env["ATLAS_DATABASE_URL"] = database
    with home.gateway("--role", "gateway") as gateway, home.gateway("--role", "worker") as worker:
        assert "Worker ready: runs turns of assistant, poet that gateways accept.\n" in worker.output
        assert home.run("ask", "Hello").stdout == "You wrote: Hello\n"
        token = (home.path / "token").read_text().strip()
        for stream in (False, True):
            answer = _completion(gateway.url, token, stream=stream)
            assert "You wrote: Hi" in answer
        alone = home.run("serve")
        assert alone.returncode == 2 and "another Atlas process" in alone.stderr
        assert worker.kill(signal.SIGTERM) == gateway.kill(signal.SIGTERM) == 0
        for each in (gateway, worker):
            assert "Traceback" not in each.output, each.output


def test_single_process_and_cluster_exclude_each_other(home: Home, database: str) -> None:
    home.env["ATLAS_DATABASE_URL"] = database
    elsewhere = {"ATLAS_HOME": str(home.folder / "elsewhere"), "ATLAS_WORKSPACE": str(home.path / "workspace")}
    with home.gateway():
        refused = home.run("serve", "--role", "worker", **elsewhere)
        assert refused.returncode == 2
        (error,) = [line for line in refused.stderr.splitlines() if " info " not in line]  # pgvector may be missing
        assert error.startswith("atlas: ")
        assert "another Atlas process uses this database exclusively" in refused.stderr
    with home.gateway("--role", "all"):
        refused = home.run("serve", **elsewhere)
        assert refused.returncode == 2 and "a cluster uses this database" in refused.stderr
        assert home.run("ask", "Hello").stdout == "You wrote: Hello\n"


def test_role_requires_postgres(home: Home) -> None:
    for role in ("gateway", "worker", "all"):
        refused = home.run("serve", "--role", role)
        assert refused.returncode == 2 and "ATLAS_DATABASE_URL=postgresql://" in refused.stderr
    assert home.run("serve", "--role", "king").returncode == 2


def _completion(url: str, token: str, *, stream: bool) -> str:
    asked = {"model": "atlas/assistant", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "X-Atlas-Session": "h"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        body = answer.read().decode()
    if not stream:
        return json.loads(body)["choices"][0]["message"]["content"]
    lines = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    return "".join(line["choices"][0]["delta"].get("content") or "" for line in lines if line["choices"])
