"""`atlas cluster status`: who is there, what they have at hand, and what waits."""

import msgspec

from atlas_agents.app.serve import cluster_status
from atlas_agents.cli import options as given
from atlas_agents.cli import show
from atlas_agents.cli.border import quiet, run
from atlas_agents.cli.when import lasting
from atlas_agents.dispatch.members import ClusterStatus, MemberStatus

_HEADS = ("member", "role", "state", "turns", "up", "heard", "version", "process", "door")


def status(*, as_json: bool) -> int:
    async def work() -> None:
        found = await cluster_status(given.settings())
        if as_json:
            show.as_json(msgspec.to_builtins(found) | {"problems": found.problems})
            return
        show.table(_HEADS, [_row(each) for each in found.members], "Nobody is there.")
        print()
        for what, words in _sums(found):
            print(f"{what:<8}  {words}")
        for problem in found.problems:
            print(f"! {problem}.")

    quiet()
    return run(work)


def _row(member: MemberStatus) -> tuple[str, ...]:
    return (
        member.id[-8:],
        member.role,
        _state(member),
        f"{member.at_hand} of {member.capacity}" if member.capacity else "-",
        lasting(member.since - (member.heard if member.lost else 0)),
        f"{lasting(member.heard)} ago",
        member.version,
        f"{member.host} {member.pid}",
        member.door or "-",
    )


def _state(member: MemberStatus) -> str:
    if member.lost:
        return "lost"
    return "draining" if member.draining else "leads" if member.leads else "ok"


def _sums(found: ClusterStatus) -> list[tuple[str, str]]:
    turns, queue, jobs = found.turns, found.queue, found.jobs
    waits = f", the first for {lasting(queue.lag)}" if queue.waiting else ""
    under_way = f"{turns.running} running, {turns.waiting} wait for a person, {turns.queued} queued"
    sums = [
        ("turns", f"{turns.open} open: {under_way}"),
        ("queue", f"{queue.waiting} wait for a worker{waits}; {queue.taken} taken"),
        ("jobs", f"{jobs.due} due, {jobs.later} later, {jobs.running} running, {jobs.dead} given up"),
    ]
    if found.keys:
        resting = ", ".join(f"{each.name} for {lasting(each.seconds)}" for each in found.keys)
        sums.append(("keys", f"{len(found.keys)} rest: {resting}"))
    return [*sums, ("postgres", found.postgres)]
