"""Who searches the web: named, with a key or an address, and there."""

from collections.abc import AsyncIterator

from atlas_agents.builtin_tools.web.search import NONE, SearXNG, choose
from atlas_agents.cli.doctor.finding import Finding, broken, ok
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ToolFailed
from atlas_agents.core.paths import Environment


async def look_at_search(settings: Settings) -> AsyncIterator[Finding]:
    """A SearXNG is asked something; services that count their questions are not."""
    search = choose(settings.search, settings.search_url, settings.search_key, Environment())
    if search == NONE:
        yield ok("search", "nobody is set who searches the web, and web_search says what to set")
    elif isinstance(search, str):
        yield broken("search", search, "set it, or take the search out of the settings")
    elif isinstance(search, SearXNG):
        try:
            await search.search("atlas", 1)
        except ToolFailed as error:
            yield broken("search", str(error), "is it running, and is the address right?")
        else:
            yield ok("search", "SearXNG answers")
    else:
        yield ok("search", f"{search.name}; it was not asked")
