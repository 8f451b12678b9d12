"""Which errors to catch, and what they carry."""

import asyncio

from atlas_agents import Agent, Atlas, AtlasError, ConfigError, ProviderError
from atlas_agents.testing import Scripted, fails


async def main() -> None:
    unlucky = Agent("unlucky", model=Scripted(fails(ProviderError("invalid API key", "auth", status=401))))
    async with Atlas(agents=[unlucky]) as atlas:
        try:
            await atlas.ask("Hello?", agent_id="editor")
        except ConfigError as error:  # a setup error: nothing was sent
            print(error)
        try:
            await atlas.ask("Hello?")
        except ProviderError as error:  # retries and failover are exhausted
            print(error.kind, error.status, error.retryable, error.failover)
        except AtlasError as error:  # any other error of this package
            print(error)


asyncio.run(main())
