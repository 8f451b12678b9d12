"""A gateway from settings with doubles of a bot and of an MCP server behind OAuth: `admin_gateway.py HOME [PORT]`.

It prints its port as the first line. The address of the MCP server is in `HOME/tracker.txt`.
"""

import asyncio
import sys
from pathlib import Path

from atlas_agents.app.serve import ServedGateway, serve
from atlas_agents.config.load import load
from atlas_agents.core.paths import Environment
from atlas_agents.gateway.server import run
from atlas_agents.knowledge.memories import MemoryOrigin, MemoryOwner
from bot_double import bot_double
from oauth_server import oauth_server

FACTS = ("Prefers short answers.", "Works in Oslo.", "Her dog is called Bella.")


async def main(home: Path, port: int) -> None:
    async with bot_double() as bot, oauth_server() as tracker:
        (home / "tracker.txt").write_text(tracker.url)
        values = {"ATLAS_HOME": str(home), "HOME": str(home), "ATLAS_TELEGRAM_URL": bot.url}
        environment = Environment(values, dotenv=None)
        flags = {"model": "demo", "embeddings": "none", "port": port, "sandbox": "none"}
        settings = load(flags, environment, home)
        tasks: list[asyncio.Task[None]] = []

        async def remember(served: ServedGateway) -> None:
            atlas = served.runtime.atlas
            owner = MemoryOwner(atlas.tenant, atlas.agents[0].id, "owner")
            for number, text in enumerate(FACTS):
                origin = MemoryOrigin(f"fact-{number}", session="first")
                await served.runtime.knowledge.memories.remember(owner, text, ["about you"], origin)
            bot.person(42, "Mara").says("/start")
            print(served.gateway.port, flush=True)

        await serve(
            settings,
            environment=environment,
            on_ready=lambda served: tasks.append(asyncio.ensure_future(remember(served))),
        )


if __name__ == "__main__":
    run(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
