"""`runs.*`: the turns of sessions, and step by step what one of them did."""

from typing import Any

import msgspec

from atlas_agents.core.store import JournalRow, RunRow
from atlas_agents.gateway.chat_methods import visible_run
from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.protocol.runs import OneRun, RunFound, RunsFound, RunShape, RunsList, RunStep
from atlas_agents.gateway.protocol.shapes import UsageShape
from atlas_agents.gateway.translate import DECISIONS

_SESSIONS = 100


def add_run_methods(methods: Methods) -> None:
    methods.add("runs.list")(list_runs)
    methods.add("runs.get")(get_run)


async def list_runs(caller: Connection, params: RunsList) -> RunsFound:
    """The latest first; without a session, of those that changed last."""
    hub, prefix = caller.hub, caller.who.prefix
    if params.session_key is not None:
        keys = [prefix + params.session_key]
    else:
        sessions = await hub.atlas.sessions.list(limit=_SESSIONS)
        keys = [each.key for each in sessions if each.key.startswith(prefix)]
    rows = [row for key in keys for row in await hub.store.runs(hub.atlas.tenant, key)]
    rows.sort(key=lambda row: row.created_at, reverse=True)
    return RunsFound(tuple([run_shape(row, prefix) for row in rows[: params.limit]]))


async def get_run(caller: Connection, params: OneRun) -> RunFound:
    row = await visible_run(caller, params.run_id)
    journal = await caller.hub.store.journal(caller.hub.atlas.tenant, row.id)
    return RunFound(run_shape(row, caller.who.prefix), tuple(map(_step, journal)))


def run_shape(row: RunRow, prefix: str) -> RunShape:
    return RunShape(
        run_id=row.id,
        session_key=row.session.removeprefix(prefix),
        agent_id=row.agent_id,
        status=row.status,
        created_at=row.created_at,
        ended_at=row.ended_at,
        error=row.error,
        user=row.user,
    )


def _step(row: JournalRow) -> RunStep:
    """What a step says, without what was said in it: the session has the words, the audit log the arguments."""
    found: Any = msgspec.json.decode(row.payload) if row.payload else None
    more: dict[str, Any] = {}
    match row.kind:
        case "reply":
            told = found.get("metadata", {})
            more = {"name": str(told.get("model") or told.get("provider") or ""), "usage": _usage(told)}
            more["status"] = str(told.get("stop_reason") or "")
        case "intent":
            more = {"name": found["name"], "call_id": found["id"]}
        case "outcome":
            more = {"call_id": found["call_id"], "status": found["status"], "error": found.get("error")}
        case "asked":
            more = {"name": found["tool"], "call_id": found["call_id"]}
        case "answered":
            more = {
                "status": DECISIONS[found["decision"]],
                "by": found.get("by", ""),
                "reason": found.get("reason", ""),
            }
        case "ended":
            more = {"status": found["status"], "error": found.get("error")}
        case _:
            pass
    return RunStep(row.seq, row.kind, row.key, row.at, **more)


def _usage(told: dict[str, Any]) -> UsageShape | None:
    counted = told.get("usage")
    if not counted:
        return None
    return UsageShape(counted["input"], counted["output"], counted["cached"], bool(told.get("estimated")))
