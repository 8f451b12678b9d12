"""A member of a cluster in a process of its own: `cluster_process.py ROLE URL HOME`; it says when it is ready.

Its model makes three calls of `note`, one after the other, and then says so. A call writes what it does into
HOME/effects; it takes a while, so that there is time to be killed in it.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from atlas_agents import Approvals, Chunk, Request, TextChunk, Tool, ToolContext
from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.gateway.logs import set_up
from atlas_agents.gateway.membership import ClusterMembership
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.worker import work
from atlas_agents.stores.postgres import PostgresStore
from atlas_agents.testing import Scripted, calls, house, says

_CALLS = 3


class Steps(Scripted):
    """What it says follows from what was said: it is the same in every process."""

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        place = max(n for n, message in enumerate(request.messages) if message.role == "user")
        done = sum(message.role == "tool" for message in request.messages[place:])
        text = request.messages[place].text
        asks = "ask" if text.startswith("?") else "note"
        reply = calls(asks, input=f"{text} {done + 1}") if done < _CALLS else says(f"All {_CALLS} of {text}.")
        async for chunk in Scripted(reply).stream(request):
            if isinstance(chunk, TextChunk):
                await asyncio.sleep(0.05)
            yield chunk


def tools_of(home: Path) -> list[Tool]:
    async def note(input: str, context: ToolContext) -> str:
        with (home / "effects").open("a") as file:
            file.write(f"{os.getpid()} {input}\n")
        await asyncio.sleep(0.25)
        return "noted"

    return [Tool("note", note), Tool("ask", note, confirm=True)]


async def main(role: str, url: str, home: Path) -> None:
    cluster = Cluster(url)
    store = PostgresStore(url, beside=cluster.beside)
    await store.open()
    atlas = house(Steps(), tools_of(home), store=store, approve=Approvals(wait=True), dispatcher=cluster)
    if role == "worker":
        await work(atlas, cluster, 1.0, lambda: print("0", flush=True))
    else:
        membership = ClusterMembership(cluster, works=role == "all")
        gateway = Gateway(atlas, GatewaySettings(home=home, port=0, grace=1.0), membership=membership)
        await gateway.serve(lambda ready: print(ready.port, flush=True))
    await store.close()


if __name__ == "__main__":
    set_up()
    run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
