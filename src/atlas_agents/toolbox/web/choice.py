"""Which search is used: the one that is named, else the first that has an address or a key."""

from collections.abc import Callable

from atlas_agents.core.environment import Environment
from atlas_agents.core.secret import Secret
from atlas_agents.toolbox.web.backends import Brave, Exa, Search, SearXNG, Tavily
from atlas_agents.toolbox.web.duckduckgo import DuckDuckGo

_KEYED: dict[str, tuple[str, Callable[[Secret], Search]]] = {
    "brave": ("BRAVE_API_KEY", Brave),
    "tavily": ("TAVILY_API_KEY", Tavily),
    "exa": ("EXA_API_KEY", Exa),
}
_ADDRESS = "SEARXNG_URL"
NONE = (
    "the web cannot be searched: nobody is set who does. A person has to set ATLAS_SEARCH_URL to a SearXNG, or "
    f"{', '.join(variable for variable, _ in _KEYED.values())}, or ATLAS_SEARCH=duckduckgo"
)


def choose(named: str | None, url: str | None, key: Secret | None, environment: Environment) -> Search | str:
    """The search to use, or a sentence that says what has to be set."""
    address = url or environment.get(_ADDRESS)
    if named == "duckduckgo":
        return DuckDuckGo()
    if named == "searxng" or (named is None and address):
        return (
            SearXNG(address)
            if address
            else f"SearXNG has no address: a person has to set ATLAS_SEARCH_URL or {_ADDRESS}"
        )
    for name, (variable, make) in _KEYED.items():
        if named in (None, name):
            found = (key if named else None) or _secret(environment, variable)
            if found:
                return make(found)
            if named:
                return f"{name} has no key: a person has to set ATLAS_SEARCH_KEY or {variable}"
    if key:
        return "there is a key to search with, and nobody named whose it is: a person has to set ATLAS_SEARCH"
    return NONE


def _secret(environment: Environment, variable: str) -> Secret | None:
    found = environment.secret(variable)
    return Secret(found) if found else None
