"""Plugins in their places: what installed packages add to a house."""

from typing import Any, cast

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.plugins import Plugins
from atlas_agents.engine.interceptors import Interceptor


def interceptors_of(plugins: Plugins) -> list[Interceptor]:
    """Those of all plugins, in the order of their names: an interceptor, a list of them, or a function that makes
    them."""
    found: dict[str, list[Interceptor]] = {}

    def take(name: str, thing: Any) -> None:
        found[name] = _interceptors(thing)

    plugins.load("interceptors", take)
    return [each for name in sorted(found) for each in found[name]]


def _interceptors(thing: Any) -> list[Interceptor]:
    if isinstance(thing, Interceptor):
        return [thing]
    if isinstance(thing, list | tuple):
        return [each for item in cast(list[Any], thing) for each in _interceptors(item)]
    if callable(thing):
        return _interceptors(thing())
    raise ConfigError(f"a plugin gives an Interceptor, not {thing!r}")
