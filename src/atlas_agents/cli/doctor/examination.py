"""All that is looked at, in the order in which one thing needs the other."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeAlias

from atlas_agents.cli import options as given
from atlas_agents.cli.doctor.agents import (
    look_at_mcp,
    look_at_models,
    look_at_plugins,
    look_at_policy,
    look_at_workspace,
)
from atlas_agents.cli.doctor.database import look_at_database, look_at_redis
from atlas_agents.cli.doctor.finding import Finding, broken, notice, ok
from atlas_agents.cli.doctor.gateway import look_at_gateway
from atlas_agents.cli.doctor.machine import look_at_clock, look_at_home, look_at_python, look_at_room, look_at_token
from atlas_agents.cli.doctor.messages import look_at_telegram, look_at_x
from atlas_agents.cli.doctor.sandbox import look_at_sandbox
from atlas_agents.cli.doctor.search import look_at_search
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import AtlasError, ConfigError

Look: TypeAlias = Callable[[Settings], Iterator[Finding] | AsyncIterator[Finding]]
_PATIENCE = 20.0
_LOOKS: tuple[tuple[str, Look], ...] = (
    ("home", look_at_home),
    ("disk", look_at_room),
    ("token", look_at_token),
    ("workspace", look_at_workspace),
    ("policy", look_at_policy),
    ("models", look_at_models),
    ("plugins", look_at_plugins),
    ("sandbox", look_at_sandbox),
    ("search", look_at_search),
    ("mcp", look_at_mcp),
    ("database", look_at_database),
    ("redis", look_at_redis),
    ("gateway", look_at_gateway),
    ("telegram", look_at_telegram),
    ("x", look_at_x),
)


async def examine() -> list[Finding]:
    """Look at everything; what cannot be looked at is a finding too."""
    findings = [*look_at_python(), *look_at_clock()]
    try:
        settings = given.settings()
    except ConfigError as error:
        return [*findings, broken("settings", str(error), "mend that first; the rest is looked at after it")]
    findings += _of_settings(settings)
    for what, look in _LOOKS:
        findings += await _safely(what, look, settings)
    return findings


def _of_settings(settings: Settings) -> list[Finding]:
    said = [each for each in settings.explain() if each.origin != "default"]
    words = "; ".join(f"{each.key} = {each.value} ({each.origin})" for each in said) or "all are defaults"
    return [ok("settings", words), *(notice("settings", words) for words in settings.notices)]


async def _safely(what: str, look: Look, settings: Settings) -> list[Finding]:
    try:
        async with asyncio.timeout(_PATIENCE):
            found = look(settings)
            if isinstance(found, AsyncIterator):
                return [finding async for finding in found]
            return list(found)
    except TimeoutError:
        return [broken(what, f"it did not answer in {_PATIENCE:g} s")]
    except (AtlasError, OSError) as error:
        return [broken(what, str(error))]
