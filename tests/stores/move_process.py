"""Moves a tenant and kills itself: `move_process.py SOURCE TARGET SCHEMA TENANT STEP`."""

import asyncio
import os
import signal
import sys

from atlas_agents.storage.tenant_move import TenantMove, move_tenant

source, target, schema, tenant, last_step = sys.argv[1:]


def on_step(step: str) -> None:
    if step == last_step:
        os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(move_tenant(TenantMove(tenant, source, target, schema, on_step=on_step)))
