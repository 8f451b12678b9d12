"""Finding out whether a call happened that nobody saw the end of: only the other side knows, and a tool may ask it."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from atlas_agents.core.calling import call as call_user
from atlas_agents.core.messages import ToolCall, ToolResult
from atlas_agents.tools.desk import Desk
from atlas_agents.tools.results import json_value
from atlas_agents.tools.tool import Tool

logger = logging.getLogger(__name__)


class Happened(msgspec.Struct, frozen=True):
    """It did, and this is what the tool would have given back."""

    result: Any = None


class NotHappened(msgspec.Struct, frozen=True):
    """It did not, and will not any more: it may be done now."""


Finding: TypeAlias = Happened | NotHappened | None
"""None, and anything else, is: nobody can tell."""


async def find_out(tool: Tool, call: ToolCall, desk: Desk) -> Finding:
    """Ask the tool's `reconcile(key)` or `reconcile(key, arguments)`; its trouble is: nobody can tell."""
    if tool.reconcile is None:
        return None
    key = f"{desk.run_id}:{call.id}"
    given = (key, call.arguments) if _takes_two(tool.reconcile) else (key,)
    try:
        async with asyncio.timeout(tool.timeout):
            found = await call_user(tool.reconcile, *given)
        if isinstance(found, Happened):
            return Happened(json_value(found.result))
    except Exception as error:  # noqa: BLE001 - a user's function; the outcome stays unknown
        trace = desk.house.redactor.trace(error)
        logger.error("whether a call of %r happened could not be found out\n%s", tool.name, trace)
        return None
    return found if isinstance(found, NotHappened) else None


def as_result(found: Finding, call: ToolCall, desk: Desk) -> ToolResult | None:
    """What the model is told of it."""
    if isinstance(found, Happened):
        return ToolResult(call.id, "ok", desk.house.redactor.known_in(found.result))
    if isinstance(found, NotHappened):
        words = "It was interrupted before it happened: nothing was done. Call it again if it is still wanted."
        return ToolResult(call.id, "error", words, "failed")
    return None


def _takes_two(reconcile: Callable[..., Any]) -> bool:
    try:
        known = inspect.signature(reconcile).parameters.values()
    except (TypeError, ValueError):
        return False
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in plain for each in known) > 1
