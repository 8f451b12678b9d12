"""A gateway with a staged model, in a process of its own: `page_process.py HOME [PORT]`; the port is its first line."""

import asyncio
import struct
import sys
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from staged import Rounds, Staged

from atlas_agents import Agent, Approvals, Atlas, Image, ToolContext, ToolFailed, tool
from atlas_agents.core.forms import Choice, Field, Form
from atlas_agents.gateway.logs import set_up
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.providers.registry import Registry
from atlas_agents.stores.sqlite import SqliteStore
from atlas_agents.toolbox.team import delegate_task

__all__ = ["Rounds", "Staged", "serve"]


@tool
async def look_up(city: str) -> dict[str, object]:
    """Tell the weather of a city."""
    return {"city": city, "sky": "clear", "degrees": 21}


@tool
async def count(to: int, context: ToolContext) -> str:
    """Count slowly and say how far it is."""
    for number in range(1, to + 1):
        context.progress(f"{number} of {to}")
        await asyncio.sleep(0.05)
    return f"counted to {to}"


@tool(confirm=True)
async def run_command(command: str) -> str:
    """Run a command on this machine."""
    return f"ran {command}"


def change(arguments: dict[str, Any]) -> str:
    return f"--- note\n+++ note\n-milk\n+{arguments['note']}"


@tool(confirm=True, preview=change)
async def write_note(note: str) -> str:
    """Put a note in the place of another."""
    return f"wrote {note}"


@tool
async def build(lines: int, context: ToolContext) -> str:
    """Write many lines, then wait until there is a file `go` here."""
    for number in range(1, lines + 1):
        context.progress(f"[{number:4}] cc -c part{number}.c")
    await asyncio.to_thread(_there, Path("go"))
    return f"built {lines}"


def _there(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


@tool(effect="pure")
async def draw(title: str) -> dict[str, Any]:
    """Draw a picture."""
    return {"title": title, "plot": Image.of(painted(240, 160))}


def painted(width: int, height: int) -> bytes:
    """A picture whose colours run from one corner to the other, as PNG."""
    rows = [b"\0" + b"".join(bytes((x, 120, y)) for x in range(width)) for y in range(height)]

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack("!I", len(body)) + kind + body + struct.pack("!I", zlib.crc32(kind + body))

    head = struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@tool
async def order(what: str, context: ToolContext) -> str:
    """Order something; how many and how large is asked, and where to pay."""
    fields = (
        Field("size", "choice", "Size", "How large it is", required=True, choices=(Choice("s", "Small"), Choice("l"))),
        Field("count", "integer", "Count", default=2, least=1, most=9),
        Field("mail", "text", "Mail", "Where the <b>bill</b> goes", format="email"),
        Field("with", "choices", "With", choices=(Choice("milk"), Choice("sugar"))),
        Field("gift", "boolean", "Gift"),
    )
    filled = await context.ask(Form("the MCP server shop", f"Which \u202e{what}?\n<img src=x>", fields))
    return f"{filled.action} {filled.values}"


@tool
async def pay(context: ToolContext) -> str:
    """Pay somewhere."""
    return (await context.ask(Form("the MCP server shop", "Pay.", url="https://pay.example.org/bill"))).action


@tool
async def break_down() -> str:
    """Fail, always."""
    raise ToolFailed("it always does")


def agents() -> list[Agent]:
    tools = [look_up, count, build, draw, run_command, write_note, order, pay, break_down, delegate_task]
    return [
        Agent("helper", model=Staged(), tools=tools, name="Helper"),
        Agent("writer", model="stage/staged-writer", name="Writer", description="Writes letters."),
        Agent("planner", model=Staged(), tools=[look_up, build], name="Planner", mode="plan"),
    ]


async def serve(
    home: Path,
    port: int,
    agents: list[Agent],
    *,
    before: Callable[[SqliteStore], Awaitable[None]] | None = None,
    **atlas: Any,
) -> None:
    """Serve these agents until it is told to stop."""
    set_up()
    store = SqliteStore(home / "atlas.db")
    await store.open()
    if before is not None:
        await before(store)
    registry = Registry()
    registry.register("stage", lambda _: Staged())
    house = Atlas(agents, store=store, registry=registry, approve=Approvals(wait=True), **atlas)
    gateway = Gateway(house, GatewaySettings(home=home, port=port, grace=0.5))
    await gateway.serve(lambda ready: print(ready.port, flush=True))
    await store.close()


if __name__ == "__main__":
    run(serve(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, agents()))
