"""Job and schedule methods: listing, updates, cancellation and retry, only for the owner's jobs."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from gateway_client import Client, connect_client, serve_gateway

from atlas_agents import Agent, Approvals, Atlas, Delegation, ProviderError, tool
from atlas_agents.builtin_tools.team import delegate_task
from atlas_agents.core.json import encode
from atlas_agents.core.store import PutRecord, Schedule
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Environment, Registry, Reply, Scripted, calls, fails, says
from checks import cpu_factor, repeat_for_block, wait_until

HAND = calls("delegate_task", target_agent="writer", task_description="a poem", priority="high")
STRONG = "-0123456789abcdefghijklmnopqrstuvwxyz"


def team(lead: list[Reply], writer: list[Reply], *tools: Any, store: MemoryStore | SqliteStore | None = None) -> Atlas:
    agents = [
        Agent("lead", model=Scripted(*lead), tools=[delegate_task]),
        Agent("writer", model=Scripted(*writer), tools=tools),
    ]
    return Atlas(
        agents,
        store=store or MemoryStore(),
        approve=Approvals(wait=True),
        delegation=Delegation(retry_delays=(0.0,)),
        registry=Registry(Environment({}, dotenv=None)),
    )


async def job_of(client: Client, state: str) -> dict[str, Any]:
    """Wait for the update that reports this state, and return the job."""
    while (job := (await client.until("job.updated"))["job"])["state"] != state:
        pass
    return job


async def test_job_updates_and_both_turns_are_delivered(tmp_path: Path) -> None:
    atlas = team([HAND, says("Asked."), says("Thanks.")], [says("Roses are red.")])
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        assert await client.get("jobs.list") == {"jobs": []}
        first = (await client.get("chat.send", sessionKey="s", message="A poem!"))["runId"]
        done = await job_of(client, "done")
        while (await client.until("chat.final"))["runId"] == first:
            pass
        updates = [frame["data"]["job"]["state"] for frame in client.events() if frame["event"] == "job.updated"]
        assert updates == ["queued", "running", "done"]
        assert (done["result"], done["askedBy"], done["askerSession"]) == ("Roses are red.", "lead", "s")
        assert done["sessionKey"] == f"s/jobs/{done['jobId']}" and done["priority"] == "high"
        history = (await client.get("chat.history", sessionKey=done["sessionKey"]))["messages"]
        assert [each["parts"][0]["text"] for each in history] == ["a poem", "Roses are red."]
        assert (await client.get("jobs.get", jobId=done["jobId"]))["job"] == done
        assert (await client.get("jobs.list", states=["done"]))["jobs"] == [done]
        assert (await client.get("jobs.list", states=["dead"]))["jobs"] == []
        labels = {each["label"] for each in (await client.get("sessions.list"))["sessions"]}
        assert "a poem" in labels


async def test_job_is_cancelled_and_retried(tmp_path: Path) -> None:
    @tool
    async def hang() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return "never"

    atlas = team([HAND, says("Asked."), says("A pity."), says("At last.")], [calls("hang"), says("A poem.")], hang)
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        await client.get("jobs.list")
        await client.get("chat.send", sessionKey="s", message="A poem!")
        running = await job_of(client, "running")
        stopped = (await client.get("jobs.cancel", jobId=running["jobId"]))["job"]
        assert (stopped["state"], stopped["error"]) == ("cancelled", "cancelled by owner")
        again = await client.request("jobs.cancel", jobId=running["jobId"])
        assert again["error"]["data"]["kind"] == "CONFLICT"
        assert (await client.get("jobs.retry", jobId=running["jobId"]))["job"]["state"] == "queued"
        assert (await job_of(client, "done"))["result"] == "A poem."
        refused = await client.request("jobs.retry", jobId=running["jobId"])
        assert refused["error"]["data"]["kind"] == "CONFLICT"


async def test_dead_job_is_reported_and_others_continue(tmp_path: Path) -> None:
    away = [fails(ProviderError("away", "auth"))] * 5
    atlas = team([HAND, says("Asked."), HAND, says("Asked again."), *[says("So be it.")] * 3], [*away, says("A poem.")])
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        await client.get("jobs.list")
        await client.get("chat.send", sessionKey="s", message="A poem!")
        dead = await job_of(client, "dead")
        assert (dead["attempts"], dead["error"]) == (5, "away")
        await job_of(client, "done")
        states = [each["state"] for each in (await client.get("jobs.list"))["jobs"]]
        assert states == ["done", "dead"]


async def test_submitted_job_runs_once_and_its_result_can_be_read(tmp_path: Path) -> None:
    atlas = team([], [says("Roses are red.")])
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        await client.get("jobs.list")
        task = {"task": "a poem", "targetAgent": "writer", "priority": "high", "idempotencyKey": "k"}
        made = await client.get("jobs.submit", **task, deadline="2 hours")
        again = await client.get("jobs.submit", **task)
        assert made["jobId"] == again["jobId"] == made["job"]["jobId"]
        done = await job_of(client, "done")
        assert (done["result"], done["kind"], done["user"]) == ("Roses are red.", "request", "owner")
        assert done["deadline"] - done["createdAt"] >= 7_190_000 and done["sessionKey"].endswith(made["jobId"])
        for wrong, message in [
            ({"task": " "}, "must not be blank"),
            ({"task": "x", "targetAgent": "poet"}, "unknown agent 'poet'"),
            ({"task": "x", "deadline": 1}, "in the past"),
            ({"task": "x", "deadline": "soon"}, "expected a time like"),
            ({}, "task"),
        ]:
            assert message in (await client.request("jobs.submit", **wrong))["error"]["message"]
        assert len((await client.get("jobs.list"))["jobs"]) == 1


async def test_other_users_job_looks_like_a_missing_one(tmp_path: Path) -> None:
    names = {"ann": ["read", "write", "approve"], "bob": ["read", "write", "approve"]}
    lines = {name: {"token": name + STRONG, "scopes": scopes} for name, scopes in names.items()}
    (tmp_path / "tokens.json").write_text(json.dumps(lines))

    @tool(confirm=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    atlas = team([HAND, says("Asked."), says("Thanks.")], [calls("pay"), says("Paid.")], pay)
    async with (
        serve_gateway(tmp_path, atlas) as gateway,
        connect_client(gateway, "ann" + STRONG) as ann,
        connect_client(gateway, "bob" + STRONG) as bob,
    ):
        await ann.get("jobs.list")
        await bob.get("jobs.list")
        await ann.get("chat.send", sessionKey="s", message="A poem!")
        job = await job_of(ann, "running")

        async def pending_approvals() -> Any:
            return (await ann.get("approvals.list"))["approvals"]

        questions = await wait_until(pending_approvals)
        assert (await bob.get("jobs.list"))["jobs"] == (await bob.get("approvals.list"))["approvals"] == []
        for method in ("jobs.get", "jobs.cancel", "jobs.retry"):
            others, missing = await bob.request(method, jobId=job["jobId"]), await bob.request(method, jobId="0" * 16)
            assert others["error"] == missing["error"] and others["error"]["data"]["kind"] == "JOB_NOT_FOUND"
        assert job["user"] == "ann" and job["sessionKey"].startswith("s/jobs/")
        denied = await bob.request("approvals.resolve", approvalId=questions[0]["approvalId"], decision="allow-once")
        assert denied["error"]["data"]["kind"] == "APPROVAL_NOT_FOUND"
        await ann.get("approvals.resolve", approvalId=questions[0]["approvalId"], decision="allow-once")
        assert (await job_of(ann, "done"))["result"] == "Paid."
        assert [frame for frame in bob.frames if frame.get("event") == "job.updated"] == []


async def test_many_schedules_do_not_block_other_requests(tmp_path: Path) -> None:
    """Neither their list nor the check for those that are due."""
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    async with serve_gateway(tmp_path, team([], [], store=store)) as gateway, connect_client(gateway) as client:
        jobs, now = gateway.hub.atlas.jobs, int(time.time() * 1000)
        schedules = [Schedule(f"s{n}", "0 0 29 2 *", "lead", "x", "Europe/Berlin", last=now) for n in range(800)]
        writes = [PutRecord("schedule", each.name, encode(each)) for each in schedules]
        await store.commit(gateway.hub.atlas.tenant, writes)

        async def list_and_check() -> Any:
            found = await client.get("schedules.list")
            await jobs.schedules.add_due_jobs()
            return found["schedules"]

        found, longest = await repeat_for_block(list_and_check, times=2)
    await store.close()
    assert len(found) == 800 and all(each["nextAt"] > now for each in found)
    assert longest < 0.02 * cpu_factor()


async def test_schedule_is_stored_run_and_removed_by_its_owner(tmp_path: Path) -> None:
    lines = {name: {"token": name + STRONG, "scopes": ["read", "write"]} for name in ("ann", "bob")}
    (tmp_path / "tokens.json").write_text(json.dumps(lines))
    atlas = team([says("The news.")], [])
    async with (
        serve_gateway(tmp_path, atlas) as gateway,
        connect_client(gateway, "ann" + STRONG) as ann,
        connect_client(gateway, "bob" + STRONG) as bob,
    ):
        made = (await ann.get("schedules.add", name="news", cron="@daily", task="The news!"))["schedule"]
        assert (made["agentId"], made["zone"], made["user"]) == ("lead", "UTC", "ann") and made["nextAt"] > 0
        assert (await ann.get("schedules.list"))["schedules"] == [made]
        assert (await bob.get("schedules.list"))["schedules"] == []
        for method in ("schedules.run", "schedules.pause", "schedules.remove"):
            others, missing = await bob.request(method, name="news"), await bob.request(method, name="nothing")
            others["error"]["message"] = others["error"]["message"].replace("'news'", "'nothing'")
            assert others["error"] == missing["error"]
        assert (await bob.request("schedules.add", name="news", cron="@daily", task="x"))["error"]["code"] == -32005
        assert (
            "cron expression" in (await ann.request("schedules.add", name="b", cron="no", task="x"))["error"]["message"]
        )
        await ann.get("jobs.list")
        job = (await ann.get("schedules.run", name="news"))["job"]
        assert (await job_of(ann, "done"))["result"] == "The news."
        assert job["sessionKey"] == f"schedules/news/jobs/{job['jobId']}"
        assert "nextAt" not in (await ann.get("schedules.pause", name="news"))["schedule"]
        await ann.get("schedules.remove", name="news")
        assert (await ann.get("schedules.list"))["schedules"] == []
