"""Azure OpenAI with tokens that expire: a function returns the current one."""

import asyncio
import os
import time

from atlas_agents import Agent, Atlas, OpenAIProvider


class Identity:
    """Caches a token until shortly before it expires, as the credentials of `azure.identity.aio` do."""

    def __init__(self) -> None:
        self.token, self.expires_at = "", 0.0

    async def current_token(self) -> str:
        if time.time() > self.expires_at - 300:
            # With azure-identity: (await credential.get_token("https://ai.azure.com/.default")).token
            self.token, self.expires_at = "eyJ-a-token-of-one-hour", time.time() + 3600
            print("new token")
        return self.token


provider = OpenAIProvider(
    "our-deployment",
    profile="gpt-5.6",  # the model behind the deployment, which the name does not tell
    base_url=os.environ.get("OPENAI_BASE_URL", "https://our-resource.openai.azure.com/openai/v1/"),
    api_key=Identity().current_token,
)


async def main() -> None:
    async with Atlas(agents=[Agent("assistant", model=provider)]) as atlas:
        for _ in range(2):
            print((await atlas.ask("Hello!")).text)


asyncio.run(main())
