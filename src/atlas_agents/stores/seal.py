"""A secret that the processes on one database share, and nobody else has: it seals what they leave elsewhere."""

import secrets

from atlas_agents.core.errors import Conflict
from atlas_agents.core.records import PutRecord
from atlas_agents.core.store import Store

_HOUSE = "default"
"""It is the house's own, whichever tenant has something sealed."""
_KEY = "copies"


async def seal_of(store: Store) -> bytes:
    """The one that is there, or a new one."""
    while True:
        found = await store.record(_HOUSE, "seal", _KEY)
        if found is not None:
            return bytes.fromhex(found.body.decode().strip('"'))
        try:
            await store.commit(_HOUSE, [PutRecord("seal", _KEY, f'"{secrets.token_hex(32)}"'.encode(), version=0)])
        except Conflict:  # another process was quicker
            continue
