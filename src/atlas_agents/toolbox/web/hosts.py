"""Hosts in a private network that a person has named: they may be fetched from, and nothing else there."""

import re
from collections.abc import Iterable

from atlas_agents.core.errors import ConfigError

_WEB = (80, 443)
_HOST = re.compile(r"\[([0-9a-f:.]+)\](?::([0-9]{1,5}))?|([a-z0-9_][a-z0-9_.-]*)(?::([0-9]{1,5}))?")


class Hosts:
    """`wiki.intern` is that host on the ports of the web, `wiki.intern:8080` on this one."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._places = {place for name in names for place in _places(name)}

    def include(self, host: str, port: int) -> bool:
        return (host.rstrip("."), port) in self._places


def _places(name: str) -> list[tuple[str, int]]:
    found = _HOST.fullmatch(name.strip().lower())
    if found is None:
        raise ConfigError(f"{name!r} is no host; write one like wiki.intern or wiki.intern:8080, without https://")
    host, port = (found[1] or found[3]).rstrip("."), found[2] or found[4]
    return [(host, int(port))] if port else [(host, each) for each in _WEB]
