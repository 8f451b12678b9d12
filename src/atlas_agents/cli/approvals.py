"""`atlas approvals …`: list, answer and watch approval requests."""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_agents.cli.command import JsonFlag, command, command_group, match_prefix
from atlas_agents.cli.connect import GatewaySession, call, connect
from atlas_agents.cli.output import format_call, one_line, print_json, print_table
from atlas_agents.core.errors import BadArguments, ConfigError

if TYPE_CHECKING:
    from atlas_agents.cli.prompts import ApprovalReply
    from atlas_agents.cli.terminal import TerminalView
    from atlas_agents.gateway.protocol.types import ApprovalShape

app = command_group()
_POLL_SECONDS = 0.5
RequestId = Annotated[str, typer.Argument(metavar="ID", help="The id of the request, or a unique prefix of it.")]
ReasonOption = Annotated[str, typer.Option(metavar="TEXT", help="A reason, which the agent sees.")]


@command(app, "list")
async def list_requests(as_json: JsonFlag = False) -> None:
    """List the pending approval requests."""
    found = (await call("approvals.list"))["approvals"]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["approvalId"],
            each.get("agentId", ""),
            f"{max(0, each['expiresAt'] / 1000 - time.time()):.0f} s",
            _describe(_convert(each)),
        )
        for each in found
    ]
    print_table(("request", "agent", "time left", "call"), rows, "There are no pending approval requests.")


@command(app)
async def approve(
    id: RequestId,
    session: Annotated[bool, typer.Option("--session", help="Approve the same call for the whole session.")] = False,
    always: Annotated[bool, typer.Option("--always", help="Approve exactly this call from now on.")] = False,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A value that a form asks for. Repeatable.")
    ] = None,
    reason: ReasonOption = "",
) -> None:
    """Approve a call once or for longer, or answer a form."""
    await _resolve(id, "allow-always" if always else "allow-session" if session else "allow-once", reason, values or ())


@command(app)
async def deny(id: RequestId, reason: ReasonOption = "") -> None:
    """Deny a request."""
    await _resolve(id, "deny", reason)


@command(app)
async def dismiss(id: RequestId) -> None:
    """Dismiss a request without an answer. A call is then denied."""
    await _resolve(id, "dismiss")


@command(app)
async def watch() -> None:
    """Print approval requests as they arrive; in a terminal, answer them. Stop with Ctrl-C."""
    shown: set[str] = set()
    async with connect(idle=False) as gateway:
        print("Waiting for approval requests; press Ctrl-C to stop.", file=sys.stderr, flush=True)
        while True:
            for request in await _pending(gateway):
                if request.approval_id not in shown:
                    shown.add(request.approval_id)
                    if not await _handle(gateway, request):
                        return
            await asyncio.sleep(_POLL_SECONDS)


async def _resolve(prefix: str, decision: str, reason: str = "", values: Sequence[str] = ()) -> None:
    async with connect() as gateway:
        pending = {each.approval_id: each for each in await _pending(gateway)}
        id = match_prefix(prefix, pending, "approval")
        arguments = _form_values(pending[id], values) if decision.startswith("allow") else None
        await gateway.client.call(
            "approvals.resolve", approval_id=id, decision=decision, reason=reason, arguments=arguments
        )
    print(f"{id}: {decision}.", file=sys.stderr)


def _form_values(request: "ApprovalShape", assignments: Sequence[str]) -> dict[str, Any] | None:
    """Return the values for a form, starting with its defaults; None for a tool call."""
    from atlas_agents.cli.prompts import parse_field

    if request.form is None:
        if assignments:
            raise ConfigError(f"request {request.approval_id} is for a tool call, not a form; omit --set")
        return None
    values, fields = dict(request.details), {field.name: field for field in request.form.fields}
    for assignment in assignments:
        name, sign, text = assignment.partition("=")
        if not sign or name not in fields:
            expected = ", ".join(fields) or "none"
            raise ConfigError(f"invalid --set {assignment!r}: expected NAME=VALUE; the fields are {expected}")
        try:
            value = parse_field(fields[name], text)
        except BadArguments as error:
            raise ConfigError(f"invalid --set {assignment!r}: {error}") from error
        values.pop(name, None)
        if value is not None:
            values[name] = value
    return values


async def _pending(gateway: GatewaySession) -> "list[ApprovalShape]":
    return [_convert(each) for each in (await gateway.client.call("approvals.list"))["approvals"]]


def _convert(found: dict[str, Any]) -> "ApprovalShape":
    import msgspec

    from atlas_agents.gateway.protocol.types import ApprovalShape

    return msgspec.convert(found, ApprovalShape)


def _describe(request: "ApprovalShape") -> str:
    """Describe the call to approve, or the form to fill in."""
    from atlas_agents.cli.prompts import describe_field
    from atlas_agents.core.text import escape_invisible

    form = request.form
    if form is None:
        arguments = ", ".join(f"{name}={escape_invisible(value)}" for name, value in request.details.items())
        return f"{request.tool_name}({arguments})"
    fields = "; ".join(describe_field(field) for field in form.fields)
    details = f" [{escape_invisible(form.url)}]" if form.url else f" [{fields}]" if fields else ""
    return f"{one_line(form.asker)} asks: {one_line(form.message)}{details}"


async def _handle(gateway: GatewaySession, request: "ApprovalShape") -> bool:
    """Print a request or ask the user; return False if the user wants to quit."""
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stdout.isatty():
        form = request.form
        text = one_line(f"? {form.asker}: {form.message}") if form else format_call(request.tool_name, request.details)
        print(f"{request.approval_id} {text}", flush=True)
        return True
    from rich.console import Console

    from atlas_agents.cli.prompts import send_reply
    from atlas_agents.cli.terminal import TerminalView

    view = TerminalView(Console(highlight=False))
    view.print_line(f"{request.agent_id} in session {request.session_key}:", "dim")
    answering = asyncio.create_task(_ask(request, view))
    resolved = asyncio.create_task(_wait_until_resolved(gateway, request))
    try:
        await asyncio.wait({answering, resolved}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (answering, resolved):
            task.cancel()
        await asyncio.wait({answering, resolved})
        view.end()
    if answering.cancelled():
        view.print_line("(answered elsewhere, or expired)", "dim")
        return True
    reply = answering.result()
    if reply is not None and not await send_reply(gateway.client, request, reply, view):
        return await _handle(gateway, request)
    return reply is not None


async def _ask(request: "ApprovalShape", view: "TerminalView") -> "ApprovalReply | None":
    """Return the user's answer; None after Ctrl-C. A KeyboardInterrupt that left the task would stop the loop."""
    from atlas_agents.cli.prompts import ask_user

    try:
        return await ask_user(request, view)
    except KeyboardInterrupt:
        return None


async def _wait_until_resolved(gateway: GatewaySession, request: "ApprovalShape") -> None:
    while any(each.approval_id == request.approval_id for each in await _pending(gateway)):  # noqa: ASYNC110 - polls
        await asyncio.sleep(_POLL_SECONDS)
