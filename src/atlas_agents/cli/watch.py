"""`atlas approvals watch`: questions as they come, answered at the prompt where there is one."""

import asyncio
import sys

import msgspec
from rich.console import Console

from atlas_agents.cli import options as given
from atlas_agents.cli.approve import Reply, ask_person, resolve
from atlas_agents.cli.ask import is_terminal
from atlas_agents.cli.border import DONE, quiet, run
from atlas_agents.cli.page import Page
from atlas_agents.cli.reach import Here, within_reach
from atlas_agents.cli.words import called, one_line
from atlas_agents.gateway.protocol.sessions import ApprovalsFound
from atlas_agents.gateway.protocol.types import ApprovalShape

_EVERY = 0.5


def watch() -> int:
    quiet()
    return run(_watch)


async def _watch() -> int:
    seen: set[str] = set()
    async with within_reach(given.settings()) as here:
        print("Waiting for questions; Ctrl-C ends it.", file=sys.stderr, flush=True)
        while True:
            for asked in await _waiting(here):
                if asked.approval_id not in seen:
                    seen.add(asked.approval_id)
                    if not await _handle(here, asked):
                        return DONE
            await asyncio.sleep(_EVERY)


async def _waiting(here: Here) -> tuple[ApprovalShape, ...]:
    return msgspec.convert(await here.client.call("approvals.list"), ApprovalsFound).approvals


async def _handle(here: Here, asked: ApprovalShape) -> bool:
    """Print or ask; False if the person wants to leave."""
    if not is_terminal(sys.stdin) or not is_terminal(sys.stdout):
        print(f"{asked.approval_id} {_said(asked)}", flush=True)
        return True
    page = Page(Console(highlight=False))
    page.line(f"{asked.agent_id} in session {asked.session_key}:", "dim")
    asking = asyncio.create_task(_asked(asked, page))
    gone = asyncio.create_task(_gone(here, asked))
    try:
        await asyncio.wait({asking, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (asking, gone):
            task.cancel()
        await asyncio.wait({asking, gone})
        page.end()
    if asking.cancelled():
        page.line("(answered elsewhere, or too late)", "dim")
        return True
    reply = asking.result()
    if reply is not None and not await resolve(here.client, asked, reply, page):
        return await _handle(here, asked)
    return reply is not None


def _said(asked: ApprovalShape) -> str:
    if asked.form is not None:
        return one_line(f"? {asked.form.asker}: {asked.form.message}")
    return called(asked.tool_name, asked.details)


async def _asked(asked: ApprovalShape, page: Page) -> Reply | None:
    """What the person answers; None if they press Ctrl-C. An interrupt must not leave its task, or it ends the loop."""
    try:
        return await ask_person(asked, page)
    except KeyboardInterrupt:
        return None


async def _gone(here: Here, asked: ApprovalShape) -> None:
    """Returns when the question waits no more."""
    while any(each.approval_id == asked.approval_id for each in await _waiting(here)):  # noqa: ASYNC110 - asks again
        await asyncio.sleep(_EVERY)
