"""Forgetting on dictionaries."""

from atlas_agents.core.forgetting import Forget, Forgettable, Forgotten
from atlas_agents.stores.memory_desk import Desk
from atlas_agents.stores.query import Place


def forget(desk: Desk, place: Place, write: Forget) -> Forgotten:
    runs = rows = size = 0
    for run_id in _over(desk, write.what, write.before)[: write.runs]:
        left = write.limit - rows
        if left <= 0:
            break
        kept = _sizes(desk, write.what, run_id)
        gone = sorted(kept, reverse=True)[:left]
        for seq in gone:
            _drop(desk, write.what, run_id, seq)
        rows += len(gone)
        size += sum(kept[seq] for seq in gone)
        if len(gone) < left:
            _dropped(desk, write.what, run_id)
            runs += 1
    return Forgotten(runs, rows, size)


def forgettable(desk: Desk, what: Forgettable, before: int) -> Forgotten:
    """All that could be removed."""
    sizes = [_sizes(desk, what, run_id) for run_id in _over(desk, what, before)]
    return Forgotten(len(sizes), sum(map(len, sizes)), sum(sum(kept.values()) for kept in sizes))


def _over(desk: Desk, what: Forgettable, before: int) -> list[str]:
    """The runs that have some of it and ended before, the oldest first."""
    ended = {run.id: run.ended_at for run in desk.runs.values() if run.ended_at is not None and run.ended_at < before}
    since = {id: desk.said_at[id] for id in ended if id in desk.said_at} if what == "events" else ended
    found = [id for id in since if since[id] < before and (what == "events" or id in desk.journal)]
    return sorted(found, key=lambda id: since[id])


def _sizes(desk: Desk, what: Forgettable, run_id: str) -> dict[int, int]:
    if what == "events":
        return {seq: len(row.body) for seq, row in desk.events.get(run_id, {}).items()}
    return {seq: len(row.payload) for seq, row in desk.journal.get(run_id, {}).items()}


def _drop(desk: Desk, what: Forgettable, run_id: str, seq: int) -> None:
    if what == "events":
        desk.remove(desk.events[run_id], seq)
        return
    row = desk.journal[run_id][seq]
    desk.remove(desk.journal_keys[run_id], (row.kind, row.key))
    desk.remove(desk.journal[run_id], seq)


def _dropped(desk: Desk, what: Forgettable, run_id: str) -> None:
    for table in (desk.events, desk.said_at) if what == "events" else (desk.journal, desk.journal_keys):
        desk.remove(table, run_id)
