"""Open the store that the settings name."""

import asyncio

from atlas_agents.config import load, open_store

settings = load({"home": "state"})


async def main() -> None:
    store = open_store(settings)
    await store.open()
    print(type(store).__name__, len(await store.sessions("default")))
    await store.close()
    print(sorted(path.name for path in settings.home.glob("*.db")), oct(settings.home.stat().st_mode)[-3:])


asyncio.run(main())
