"""A process of a dispatcher under test: `conformance_process.py ROLE WHERE HOME SCHEMA HEARTBEAT_TIMEOUT POISON`.

Role `alone` uses the inline dispatcher on the SQLite file or Postgres database WHERE; the other roles form a cluster.
The model and tools are those of the crash tests, slowed down so that a process can be killed during a call. They record
side effects in HOME/world. Once ready, the process prints its port.
"""

import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from crash.evidence_log import EvidenceLog
from crash.fault_points import NO_FAULT, Plan, Points
from crash.process_state import STATE
from crash.replies import TOOLS, ReplayModel

from atlas_agents import Agent, Approvals, Atlas, Delegation, Limits
from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.dispatch.locks import database_lock
from atlas_agents.gateway.cluster import ClusterMembership, run_worker
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.telemetry import configure_logging
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Environment, Registry

GRACE = 600.0
"""Seconds in which turns end when a process is stopped: longer than a test waits for a process that does not notice."""
_PAUSE = 0.15
_POISON = Plan("kill", 1, forever=True, only="tool poison")


async def main(role: str, where: str, home: Path, schema: str, heartbeat_timeout: float, poison: bool) -> None:
    STATE.log = EvidenceLog(home / "world", os.getpid())
    STATE.points = Points(_POISON if poison else NO_FAULT, STATE.log)
    STATE.pause = _PAUSE
    async with AsyncExitStack() as up:
        on_postgres = where.startswith("postgresql:")
        if on_postgres:
            await up.enter_async_context(database_lock(where, shared=role != "alone", schema=schema))
        cluster = Cluster(where, schema=schema, heartbeat_timeout=heartbeat_timeout) if role != "alone" else None
        hook = cluster.enqueue_and_notify if cluster is not None else None
        store = PostgresStore(where, schema=schema, transaction_hook=hook) if on_postgres else SqliteStore(Path(where))
        await store.open()
        up.push_async_callback(store.close)
        atlas = Atlas(
            [Agent(id, providers=[ReplayModel()], tools=TOOLS) for id in "abc"],
            store=store,
            dispatcher=cluster,
            limits=Limits(tick=1.0),
            delegation=Delegation(retry_delays=(0.0,)),
            approve=Approvals(wait=True),
            registry=Registry(Environment({}, dotenv=None)),
        )
        await _serve(role, atlas, cluster, home)


async def _serve(role: str, atlas: Atlas, cluster: Cluster | None, home: Path) -> None:
    if cluster is not None and role == "worker":
        await run_worker(atlas, cluster, GRACE, lambda: print("0", flush=True))
    else:
        membership = ClusterMembership(cluster, executes_runs=role == "all") if cluster is not None else None
        gateway = Gateway(atlas, GatewaySettings(home=home, port=0, grace=GRACE), membership=membership)
        await gateway.serve(lambda ready: print(ready.port, flush=True))


if __name__ == "__main__":
    configure_logging()
    _, role, where, home, schema, heartbeat_timeout, poison = sys.argv
    run(main(role, where, Path(home), schema, float(heartbeat_timeout), bool(poison)))
