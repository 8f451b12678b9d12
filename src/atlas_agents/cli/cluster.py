"""`atlas cluster status`: the members of a cluster, their load, and the queue."""

from typing import TYPE_CHECKING

from atlas_agents.cli.command import JsonFlag, command, command_group
from atlas_agents.cli.connect import load_settings
from atlas_agents.cli.output import format_duration, print_json, print_table

if TYPE_CHECKING:
    from atlas_agents.dispatch.members import ClusterStatus, MemberStatus

app = command_group()
_HEADERS = ("member", "role", "state", "turns", "uptime", "last seen", "version", "process", "url")


@command(app)
async def status(as_json: JsonFlag = False) -> None:
    """Show the members, the leader, the load of each member, and the queue.

    Reads the database (ATLAS_DATABASE_URL), so it works while no gateway responds. A member without a heartbeat for
    8 seconds is lost: other members take over its turns.

    Exit codes: 0 success, 1 Postgres cannot be reached, 2 there is no cluster, or invalid settings.
    """
    import msgspec

    from atlas_agents.app.serve import cluster_status

    found = await cluster_status(load_settings())
    if as_json:
        print_json(msgspec.to_builtins(found) | {"problems": found.problems})
        return
    print_table(_HEADERS, [_row(each) for each in found.members], "There are no members.")
    print()
    for name, summary in _summaries(found):
        print(f"{name:<8}  {summary}")
    for problem in found.problems:
        print(f"! {problem}.")


def _row(member: "MemberStatus") -> tuple[str, ...]:
    return (
        member.id[-8:],
        member.role,
        _state(member),
        f"{member.runs} of {member.capacity}" if member.capacity else "-",
        format_duration(member.uptime - (member.heartbeat_age if member.lost else 0)),
        f"{format_duration(member.heartbeat_age)} ago",
        member.version,
        f"{member.host} {member.pid}",
        member.address or "-",
    )


def _state(member: "MemberStatus") -> str:
    if member.lost:
        return "lost"
    return "draining" if member.draining else "leader" if member.leads else "ok"


def _summaries(found: "ClusterStatus") -> list[tuple[str, str]]:
    turns, queue, jobs = found.turns, found.queue, found.jobs
    oldest = f", the oldest for {format_duration(queue.lag)}" if queue.waiting else ""
    open_turns = f"{turns.running} running, {turns.waiting} waiting for an approval, {turns.queued} queued"
    summaries = [
        ("turns", f"{turns.open} open: {open_turns}"),
        ("queue", f"{queue.waiting} waiting for a worker{oldest}; {queue.taken} taken"),
        ("jobs", f"{jobs.due} due, {jobs.later} scheduled, {jobs.running} running, {jobs.dead} dead"),
    ]
    if found.keys:
        paused = ", ".join(f"{each.name} for {format_duration(each.seconds)}" for each in found.keys)
        summaries.append(("keys", f"{len(found.keys)} paused: {paused}"))
    return [*summaries, ("postgres", found.postgres)]
