"""Forgetting as steps: the runs that are longest over, each from its end on, as far as the limit goes."""

from atlas_agents.core.forgetting import Forget, Forgotten
from atlas_agents.stores import forgetting_statements as sql
from atlas_agents.stores.query import Place, Steps


def forget(place: Place, write: Forget) -> Steps[Forgotten]:
    found = yield place.ask(sql.RUNS[write.what], before=write.before, runs=write.runs)
    runs = rows = size = 0
    for (run_id,) in found:
        left = write.limit - rows
        if left <= 0:
            break
        dropped = yield place.ask(sql.DROP[write.what], run_id=run_id, limit=left)
        rows += len(dropped)
        size += sum(row[0] for row in dropped)
        if len(dropped) < left:
            yield place.ask(sql.DROPPED[write.what], run_id=run_id)
            runs += 1
    return Forgotten(runs, rows, size)
