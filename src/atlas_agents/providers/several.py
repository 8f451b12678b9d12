"""Several keys or addresses in one variable, with commas between them: as many environments with one of each."""

from atlas_agents.core.environment import Environment
from atlas_agents.core.errors import ConfigError

_OWN = {"http": "OPENAI"}


def each_by_itself(id: str, environment: Environment) -> list[Environment]:
    """`OPENAI_API_KEY=one,two` are two. As many addresses go with them pair by pair, a single one with all."""
    prefix = _OWN.get(id, id.upper())
    key, url = f"{prefix}_API_KEY", f"{prefix}_BASE_URL"
    keys, urls = _split(environment.secret(key)), _split(environment.get(url))
    count = max(len(keys), len(urls))
    if count < 2:
        return [environment]
    if len(keys) > 1 and len(urls) > 1 and len(keys) != len(urls):
        raise ConfigError(
            f"{key} has {len(keys)} keys and {url} {len(urls)} addresses: give one of either, or as many of both"
        )
    pairs = zip(_filled(key, keys, count), _filled(url, urls, count), strict=True)
    return [environment.replaced(one | other) for one, other in pairs]


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _filled(name: str, values: list[str], count: int) -> list[dict[str, str]]:
    return [{name: value} for value in values * (count if len(values) == 1 else 1)] or [{} for _ in range(count)]
