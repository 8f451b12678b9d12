"""`atlas jobs …`: what agents hand to each other, listed, shown, stopped and tried again."""

import sys
from typing import Any, get_args

from atlas_agents.cli import options as given
from atlas_agents.cli import show as shown
from atlas_agents.cli.border import one_of, quiet, run
from atlas_agents.cli.reach import within_reach
from atlas_agents.cli.when import ago, moment
from atlas_agents.cli.words import printable
from atlas_agents.client.client import GatewayClient
from atlas_agents.core.errors import ConfigError
from atlas_agents.gateway.protocol.jobs import JobState

_MOST = 500


def list_jobs(states: list[str], limit: int, *, as_json: bool) -> int:
    async def work() -> None:
        _check(states)
        async with within_reach(given.settings(), idle=True) as here:
            found = (await here.client.call("jobs.list", states=states, limit=limit))["jobs"]
        if as_json:
            shown.as_json(found)
            return
        rows = [
            (
                each["jobId"],
                each["state"],
                each["priority"],
                each["agentId"],
                _asked_by(each),
                _when(each),
                each["task"],
            )
            for each in found
        ]
        shown.table(("job", "state", "agent", "asked by", "priority", "when", "task"), rows, "There are no jobs.")

    quiet()
    return run(work)


def show(start: str, *, as_json: bool) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            job = (await here.client.call("jobs.get", job_id=await _whole(here.client, start)))["job"]
        if as_json:
            shown.as_json(job)
            return
        print(f"{job['jobId']}  {job['state']}, {job['priority']}")
        print(f"for {job['agentId']}, asked by {_asked_by(job)}, {moment(job['createdAt'])}")
        if "deadline" in job:
            print(f"of use until {moment(job['deadline'])}")
        print(f"{job.get('attempts', 0)} attempts, in the session {job['sessionKey']}")
        print(f"\n{printable(job['task'])}")
        for what in ("result", "error"):
            if job.get(what):
                print(f"\n{what}:\n{printable(job[what])}")

    quiet()
    return run(work)


def change(start: str, method: str) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            job = (await here.client.call(method, job_id=await _whole(here.client, start)))["job"]
        print(f"{job['jobId']} is {job['state']}.", file=sys.stderr)

    quiet()
    return run(work)


async def _whole(client: GatewayClient, start: str) -> str:
    found = (await client.call("jobs.list", limit=_MOST))["jobs"]
    return one_of(start, [each["jobId"] for each in found], "job")


def _check(states: list[str]) -> None:
    known = get_args(JobState)
    for state in states:
        if state not in known:
            raise ConfigError(f"--state: there is no state {state!r}; there are {', '.join(known)}")


def _asked_by(job: dict[str, Any]) -> str:
    return job.get("askedBy") or ("a schedule" if job["kind"] == "schedule" else "-")


def _when(job: dict[str, Any]) -> str:
    return ago(job.get("endedAt") or job["createdAt"])
