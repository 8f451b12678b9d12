"""How a cluster stands: its members, turns, queue, jobs and keys, as values."""

import msgspec


class MemberStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A process of the cluster. Since when it is there, and when it was last heard of, in seconds ago. `lost` is one
    that has not been heard of for so long that others go on with its turns."""

    id: str
    role: str
    host: str
    pid: int
    door: str
    version: str
    since: float
    heard: float
    at_hand: int
    capacity: int
    leads: bool
    draining: bool
    lost: bool


class TurnCounts(msgspec.Struct, frozen=True, rename="camel"):
    """Turns that have not ended: under way, waiting for a person, and queued behind another one of their session."""

    open: int = 0
    running: int = 0
    waiting: int = 0
    queued: int = 0


class Backlog(msgspec.Struct, frozen=True, rename="camel"):
    """Turns that wait for a worker, those that one has, and how many seconds the first has waited."""

    waiting: int = 0
    taken: int = 0
    lag: float = 0.0


class JobCounts(msgspec.Struct, frozen=True, rename="camel"):
    """Jobs that are due, that are not yet, that are under way, and that were given up until a person has them tried."""

    due: int = 0
    later: int = 0
    running: int = 0
    dead: int = 0


class KeyRest(msgspec.Struct, frozen=True, rename="camel"):
    """A key of a provider, named by what does not give it away, and the seconds for which it rests."""

    name: str
    seconds: float


class ClusterStatus(msgspec.Struct, frozen=True, rename="camel"):
    """All of it."""

    postgres: str
    members: tuple[MemberStatus, ...]
    turns: TurnCounts
    queue: Backlog
    jobs: JobCounts
    keys: tuple[KeyRest, ...]
    """Keys of providers that nobody may use at the moment."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What somebody should look at, in sentences."""
        living = [each for each in self.members if not each.lost]
        working = [each for each in living if each.capacity and not each.draining]
        found: list[str] = []
        if not working and self.queue.waiting:
            found.append(f"Nobody works: {self.queue.waiting} turns wait. Start a worker: atlas serve --role worker")
        elif not working:
            found.append("Nobody works: turns will wait. Start a worker: atlas serve --role worker")
        if not any(each.leads for each in living) and working:
            found.append("Nobody leads: jobs and schedules wait. It lasts seconds, if Postgres is well")
        if all(each.role == "worker" for each in living):
            found.append("There is no gateway: nobody can connect. Start one: atlas serve --role gateway")
        if len({each.version for each in living}) > 1:
            found.append("Not all members have the same version")
        if self.jobs.dead:
            found.append(f"{self.jobs.dead} jobs were given up: atlas jobs list --state dead shows them")
        return tuple(found)
