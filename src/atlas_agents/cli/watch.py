"""`atlas approvals watch`: questions as they come, answered at the prompt where there is one."""

import asyncio
import sys
from contextlib import suppress

import msgspec

from atlas_agents.cli import options as given
from atlas_agents.cli.ask import is_terminal
from atlas_agents.cli.border import quiet, run
from atlas_agents.cli.reach import Here, within_reach
from atlas_agents.cli.words import called
from atlas_agents.gateway.protocol.sessions import ApprovalsFound
from atlas_agents.gateway.protocol.shapes import ApprovalShape

_EVERY = 0.5


def watch() -> int:
    quiet()
    return run(_watch)


async def _watch() -> int:
    seen: set[str] = set()
    async with within_reach(given.settings()) as here:
        print("Waiting for questions; Ctrl-C ends it.", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):
            while True:
                for asked in await _waiting(here):
                    if asked.approval_id not in seen:
                        seen.add(asked.approval_id)
                        await _handle(here, asked)
                await asyncio.sleep(_EVERY)
    return 0


async def _waiting(here: Here) -> tuple[ApprovalShape, ...]:
    return msgspec.convert(await here.client.call("approvals.list"), ApprovalsFound).approvals


async def _handle(here: Here, asked: ApprovalShape) -> None:
    if not is_terminal(sys.stdin) or not is_terminal(sys.stdout):
        print(f"{asked.approval_id} {called(asked.tool_name, asked.details)}", flush=True)
        return
    from rich.console import Console

    from atlas_agents.cli.approve import ask_person, resolve
    from atlas_agents.cli.page import Page

    page = Page(Console(highlight=False))
    page.line(f"{asked.agent_id} in session {asked.session_key}:", "dim")
    asking = asyncio.ensure_future(ask_person(asked, page))
    gone = asyncio.ensure_future(_gone(here, asked))
    try:
        await asyncio.wait({asking, gone}, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            await resolve(here.client, asked, asking.result())
        else:
            page.line("(answered elsewhere, or too late)", "dim")
    finally:
        for task in (asking, gone):
            task.cancel()
        await asyncio.wait({asking, gone})
        page.end()


async def _gone(here: Here, asked: ApprovalShape) -> None:
    """Returns when the question waits no more."""
    while any(each.approval_id == asked.approval_id for each in await _waiting(here)):  # noqa: ASYNC110 - asks again
        await asyncio.sleep(_EVERY)
