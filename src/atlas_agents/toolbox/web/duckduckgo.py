"""DuckDuckGo, which has no API: a library reads its pages, in a process that can be killed."""

import asyncio
from typing import Any

from atlas_agents.core.errors import ToolFailed, Transient
from atlas_agents.toolbox.web.results import Hit, hits
from atlas_agents.tools.workers import WorkerDied, Workers

_SECONDS = 20.0


class DuckDuckGo:
    """DuckDuckGo, without a key. `proxy` is an address to go through, `authority` a file of certificates to trust."""

    name = "DuckDuckGo"

    def __init__(self, proxy: str | None = None, authority: str | None = None, seconds: float = _SECONDS) -> None:
        self._way = {"proxy": proxy, "authority": authority}
        self._seconds = seconds
        self._workers = Workers(warm=0, at_most=2)

    async def close(self) -> None:
        await self._workers.close()

    async def search(self, query: str, most: int) -> list[Hit]:
        arguments = {"query": query, "most": most, "seconds": int(self._seconds), **self._way}
        try:
            async with asyncio.timeout(self._seconds + 5):
                return hits(await self._workers.run(look, arguments), "body", most)
        except TimeoutError:
            raise Transient(f"DuckDuckGo did not answer within {self._seconds:g} s") from None
        except WorkerDied:
            raise ToolFailed("DuckDuckGo could not be asked: the process that asked broke down") from None


def look(query: str, most: int, seconds: int, proxy: str | None, authority: str | None) -> list[dict[str, Any]]:
    """Ask; runs in a worker."""
    try:
        from ddgs.ddgs import DDGS
        from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException
    except ImportError:
        raise ToolFailed(
            "DuckDuckGo needs an extra: a person has to say pip install 'atlas-agents[duckduckgo]'"
        ) from None
    try:
        return DDGS(proxy=proxy, timeout=seconds, verify=authority or True).text(
            query, max_results=most, backend="duckduckgo"
        )
    except RatelimitException:
        raise Transient("DuckDuckGo wants fewer questions") from None
    except TimeoutException:
        raise Transient(f"DuckDuckGo did not answer within {seconds} s") from None
    except DDGSException as error:
        if "No results" in str(error):
            return []
        raise Transient("DuckDuckGo cannot be reached, or answered with something that cannot be read") from None
