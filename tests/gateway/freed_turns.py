"""Runs a turn through a gateway without the garbage collector, and prints how many turns are still in memory.

A process of its own: in one with other tests, these may keep turns alive.
"""

import asyncio
import gc
import sys
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE.parent), str(HERE)]  # before the imports of helpers, hence E402 below

from gateway_client import serve_and_connect  # noqa: E402

from atlas_agents import tool  # noqa: E402
from atlas_agents.agents.run import Run  # noqa: E402
from atlas_agents.storage.sqlite import SqliteStore  # noqa: E402
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says  # noqa: E402
from atlas_agents.tools.journal import Journal  # noqa: E402
from checks import wait_until  # noqa: E402

_SECONDS = 10.0


@tool
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"Sunny in {city}"


def live_turns() -> int:
    return sum([isinstance(each, Run | Journal) for each in gc.get_objects()])


async def main(home: Path) -> None:
    store, model = SqliteStore(home / "atlas.db"), Scripted(calls("weather", city="Rome"), says("Sunny."))
    await store.open()
    async with serve_and_connect(home, in_memory_atlas(model, (weather,), store=store)) as client:
        gc.disable()
        await client.get("chat.send", sessionKey="test", message="Hi")
        found = live_turns()
        await client.until("chat.final")
        with suppress(TimeoutError):
            await wait_until(lambda: not live_turns(), seconds=_SECONDS)
        print(bool(found), live_turns())
    await store.close()


asyncio.run(main(Path(sys.argv[1])))
