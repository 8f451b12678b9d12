"""Who searches the web: SearXNG, Brave, Tavily, Exa and DuckDuckGo, each asked in its own words."""

from collections.abc import Iterable
from typing import Any, Protocol, cast

from atlas_agents.core.errors import ToolFailed
from atlas_agents.core.secret import Secret
from atlas_agents.toolbox.web.rest import Question, asked
from atlas_agents.toolbox.web.results import Hit, hits

SECONDS = 20.0
MOST = 20
"""So many results are asked for at most: the least of what the services allow."""


class Search(Protocol):
    """A way to search. ToolFailed or Transient say in a sentence why nothing came of it."""

    name: str

    async def search(self, query: str, most: int) -> list[Hit]: ...


class SearXNG:
    """One's own, at any address, without a key. It gives whole pages of results; the rest is cut off here."""

    name = "SearXNG"

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/").removesuffix("/search")

    async def search(self, query: str, most: int) -> list[Hit]:
        refused = "its settings do not allow JSON; put json into search.formats of its settings.yml"
        question = Question(
            self.name, f"{self._url}/search", parameters={"q": query, "format": "json"}, refused=refused
        )
        answer = _object(self.name, await asked(question, SECONDS))
        found = hits(_list(self.name, answer, "results"), "content", most)
        if not found and answer.get("unresponsive_engines"):
            raise ToolFailed("none of the engines that SearXNG asks has answered; try again later, or another question")
        return found


class Brave:
    """Brave Search."""

    name = "Brave"

    def __init__(self, key: Secret, url: str = "https://api.search.brave.com") -> None:
        self._key = key
        self._url = url

    async def search(self, query: str, most: int) -> list[Hit]:
        question = Question(
            self.name,
            f"{self._url}/res/v1/web/search",
            parameters={"q": query, "count": str(most), "text_decorations": "false"},
            key_header="X-Subscription-Token",
            key=self._key,
        )
        answer = _object(self.name, await asked(question, SECONDS))
        if not answer.get("web"):
            return []
        return hits(_list(self.name, _object(self.name, answer["web"]), "results"), "description", most)


class Tavily:
    """Tavily."""

    name = "Tavily"

    def __init__(self, key: Secret, url: str = "https://api.tavily.com") -> None:
        self._key = key
        self._url = url

    async def search(self, query: str, most: int) -> list[Hit]:
        question = Question(
            self.name,
            f"{self._url}/search",
            body={"query": query, "max_results": most},
            key_header="Authorization",
            key=self._key,
            key_scheme="Bearer",
        )
        answer = _object(self.name, await asked(question, SECONDS))
        return hits(_list(self.name, answer, "results"), "content", most)


class Exa:
    """Exa."""

    name = "Exa"

    def __init__(self, key: Secret, url: str = "https://api.exa.ai") -> None:
        self._key = key
        self._url = url

    async def search(self, query: str, most: int) -> list[Hit]:
        question = Question(
            self.name,
            f"{self._url}/search",
            body={"query": query, "numResults": most, "contents": {"highlights": True}},
            key_header="x-api-key",
            key=self._key,
        )
        answer = _object(self.name, await asked(question, SECONDS))
        return hits(_list(self.name, answer, "results"), "highlights", most)


def _object(name: str, answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise ToolFailed(f"{name} answered with something that is no list of results")
    return cast(dict[str, Any], answer)


def _list(name: str, answer: dict[str, Any], field: str) -> Iterable[Any]:
    found = answer.get(field)
    if not isinstance(found, list):
        raise ToolFailed(f"{name} answered with something that is no list of results")
    return cast(list[Any], found)
