"""`atlas trace`: the tree of a turn from its journal, with a delegated job and an approval."""

import asyncio
import json
import re
import socket
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing

import pytest
from atlas_command import Home

from atlas_agents import Agent, Answer, Approvals, Atlas, tool
from atlas_agents.builtin_tools.team import delegate_task
from atlas_agents.providers.registry import Registry
from atlas_agents.storage.sql.tables import unpack_value
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Environment, Scripted, calls, says
from checks import TIMEOUT, scaled, wait_until
from otlp_collector import collector

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@tool(confirm=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def in_store(home: Home, work: Callable[[Atlas], Awaitable[str]], poet: Scripted | None = None) -> str:
    """Run turns with scripted agents in the database of a home folder."""

    async def run() -> str:
        store = SqliteStore(home.path / "atlas.db")
        await store.open()
        lead = Agent(
            "assistant",
            model=Scripted(
                calls("delegate_task", target_agent="poet", task_description="Write."),
                says("Asked."),
                says("The poet is done."),
                id="openai/gpt-5.6",
            ),
            tools=[delegate_task],
        )
        writes = Agent("poet", model=poet or Scripted(calls("pay", amount=3), says("A poem.")), tools=[pay])
        registry = Registry(Environment({}, dotenv=None))
        try:
            async with Atlas([lead, writes], store=store, registry=registry, approve=Approvals(wait=True)) as atlas:
                return await work(atlas)
        finally:
            await store.close()

    return asyncio.run(run())


async def delegate(atlas: Atlas) -> str:
    async with atlas.jobs.running():
        stream = atlas.send("A poem, please.", session="s")
        await stream.reply()
        (question,) = await wait_until(atlas.pending)
        await atlas.answer(question.id, Answer("once", by="ana"))
        (job,) = await atlas.jobs.list()
        await atlas.jobs.ended(job.id)
        return stream.stream_id


def test_trace_draws_the_turn_and_its_delegated_job(home: Home) -> None:
    run_id = in_store(home, delegate)
    done = home.run("trace", run_id[:-2])  # the first digits are the time, which the job may share
    assert done.returncode == 0, done.stderr
    shape = [re.sub(r"\b(\d+ ms|\d+\.\d s)\b", "T", line) for line in done.stdout.splitlines()]
    assert shape[0].startswith(f"turn assistant {run_id}  done  T  ")
    tree = [line for line in shape[1:] if "queued" not in line]
    assert re.match(r"├─ round 1  T$", tree[0])
    assert re.match(r"│  ├─ model openai/gpt-5.6  first token T, total T  [\d,]+ tokens in, \d+ out  \$0\.0", tree[1])
    assert re.match(r"│  └─ tool delegate_task  ok  T$", tree[2])
    assert re.match(r"│     └─ job poet \S+  done  T$", tree[3])
    assert re.match(r"│        └─ turn poet \S+  done  T  ", tree[4])
    assert any(re.search(r"approval pay  allow-once  by ana  T$", line) for line in tree)
    assert any(re.search(r"tool pay  ok  T$", line) for line in tree)
    assert re.match(r"└─ round 2  T$", tree[-2])

    root = json.loads(home.run("trace", run_id, "--json").stdout)
    assert (root["kind"], root["id"], root["status"]) == ("turn", run_id, "done")
    first, *_ = [each for each in root["children"] if each["kind"] == "round"]
    model, call = first["children"]
    assert model["firstMs"] <= model["duration"]
    assert call["children"][0]["kind"] == "job"


def test_stored_values_cannot_control_the_terminal(home: Home) -> None:
    home.run("ask", "Hello", "-s", "hall")
    with closing(sqlite3.connect(home.path / "atlas.db")) as database, database:
        database.create_function("unpack", 1, unpack_value)
        change = 'CAST(replace(CAST(unpack(payload) AS TEXT), \'"stop_reason":"stop"\', ?) AS BLOB)'
        hostile = (r'"stop_reason":"odd\u001b]0;owned\u0007\n└─ tool pay"',)
        database.execute(f"UPDATE journal_rows SET payload = {change} WHERE kind = 'reply'", hostile)
        (run_id,) = database.execute("SELECT id FROM runs").fetchone()
    done = home.run("trace", run_id)
    assert done.returncode == 0 and "odd" in done.stdout, done.stdout + done.stderr
    assert "\x1b" not in done.stdout and "\x07" not in done.stdout and "\n└─ tool pay" not in done.stdout


@pytest.mark.parametrize("metrics", ["otlp", "none"])
def test_setting_sends_the_turns_of_a_command_to_a_collector(home: Home, metrics: str) -> None:
    home.env["OTEL_METRICS_EXPORTER"] = metrics
    with collector() as collected:
        home.env |= {"ATLAS_TELEMETRY": "otel", "OTEL_EXPORTER_OTLP_ENDPOINT": collected.url}
        asking = home.start("ask", "hello")
        output, _ = asking.communicate(timeout=TIMEOUT)
        assert asking.returncode == 0 and output.strip()
    turn = collected.one("invoke_agent")
    assert turn.service == "atlas" and len(collected.tree(turn.trace_id)) == 3
    assert ("gen_ai.client.token.usage" in collected.metrics) is (metrics == "otlp")
    assert "hello" not in str([span.attributes for span in collected.spans])


def test_collector_that_never_answers_does_not_delay_the_end_of_a_command(home: Home) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        home.env |= {"ATLAS_TELEMETRY": "otel", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        home.env["OTEL_EXPORTER_OTLP_TIMEOUT"] = "600"
        asking = home.start("ask", "hello")
        output, _ = asking.communicate(timeout=scaled(40))  # the SDK itself waits for more than a minute
    assert asking.returncode == 0 and output.strip()


def test_trace_names_runs_that_are_unknown_or_ambiguous(home: Home) -> None:
    assert "run not found: 'nothing'" in home.run("trace", "nothing").stderr
    start = in_store(home, delegate)[:4]
    done = home.run("trace", start)
    assert done.returncode == 2 and f"ambiguous run '{start}'" in done.stderr
    done = home.run("trace", "")
    assert done.returncode == 2 and "invalid run ''" in done.stderr


async def ask_twice(atlas: Atlas) -> str:
    for text in ("One", "Two"):
        stream = atlas.send(text, session="poems", agent_id="poet")
        await stream.reply()
    return stream.stream_id


def test_trace_of_a_session_is_that_of_its_last_run(home: Home) -> None:
    run_id = in_store(home, ask_twice, poet=Scripted(says("A poem."), says("Another poem.")))
    done = home.run("trace", "poems")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"turn poet {run_id}  done  ")
