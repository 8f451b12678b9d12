"""`atlas approvals …`: list, answer and watch approval requests."""

import shutil
import sys
import termios
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from atlas_agents.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    Argument,
    Group,
    JsonFlag,
    Option,
    YesFlag,
    command,
    confirm,
    match_prefix,
    print_error,
)
from atlas_agents.cli.connect import GatewayCall, GatewaySession, call, connect, open_calls
from atlas_agents.cli.output import format_call, one_line, print_json, print_table
from atlas_agents.core.errors import BadArguments, ConfigError
from atlas_agents.core.paths import Environment
from atlas_agents.core.trust import Trust

if TYPE_CHECKING:
    from atlas_agents.cli.prompts import ApprovalReply
    from atlas_agents.cli.terminal import TerminalView
    from atlas_agents.gateway.protocol.types import ApprovalShape

app = Group()
_POLL_SECONDS = 0.5
_MAX_UNASKED, _MAX_UNASKED_LINES = 2000, 40
"""Maximum size of a call that can be approved without a terminal and without --yes."""
RequestId = Annotated[str, Argument(metavar="ID", help="The id of the request, or a unique prefix of it.")]
RequestIds = Annotated[list[str], Argument(metavar="ID", help="The ids of the requests, or unique prefixes of them.")]
ReasonOption = Annotated[str, Option(metavar="TEXT", help="A reason, which the agent sees.")]


@command(app, "list")
def list_requests(as_json: JsonFlag = False) -> None:
    """List the pending approval requests."""
    found = (call("approvals.list"))["approvals"]
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
    for change in Trust.of(Environment()).pending():
        print_error(f"{change.summary} and is not used until you agree; run: atlas trust")


@command(app)
def show(id: RequestId) -> None:
    """Show a pending request with nothing left out."""
    with open_calls() as gateway:
        request = _find(gateway, id)
    print("\n".join(_lines(request)))


@command(app)
def approve(
    ids: RequestIds,
    session: Annotated[bool, Option("--session", help="Approve the same call for the whole session.")] = False,
    always: Annotated[bool, Option("--always", help="Approve exactly this call from now on.")] = False,
    values: Annotated[
        list[str] | None, Option("--set", metavar="NAME=VALUE", help="A value that a form asks for. Repeatable.")
    ] = None,
    reason: ReasonOption = "",
    yes: YesFlag = False,
) -> int:
    """Show a call and approve it once or for longer, or answer a form. Several calls are approved once.

    Every call is shown whole, one screen at a time, before you are asked. Without a terminal, short calls are
    shown and approved; long ones need --yes, after you have read them with `atlas approvals show`.
    """
    if session and always:
        raise ConfigError("--session and --always cannot be combined; pass one of them")
    decision = "allow-always" if always else "allow-session" if session else "allow-once"
    with open_calls() as gateway:
        requests = _find_all(gateway, ids)
        first, *others = requests
        if others and (decision != "allow-once" or values):
            raise ConfigError("several requests can only be approved once; omit --session, --always and --set")
        if form := next((each for each in requests if others and each.form is not None), None):
            raise ConfigError(f"request {form.approval_id} is a form; answer it on its own")
        if first.form is None and not _review(requests, yes):
            print("Nothing was approved.", file=sys.stderr)
            return EXIT_FAILED
        if others:
            return _resolve_many(gateway, requests, decision, reason)
        _resolve(gateway, first, decision, reason, _form_values(first, values or ()))
    return EXIT_OK


@command(app)
def deny(ids: RequestIds, reason: ReasonOption = "") -> int:
    """Deny requests."""
    with open_calls() as gateway:
        requests = _find_all(gateway, ids)
        if len(requests) > 1:
            return _resolve_many(gateway, requests, "deny", reason)
        _resolve(gateway, requests[0], "deny", reason)
    return EXIT_OK


@command(app)
def dismiss(id: RequestId) -> None:
    """Dismiss a request without an answer. A call is then denied."""
    with open_calls() as gateway:
        _resolve(gateway, _find(gateway, id), "dismiss")


@command(app)
async def watch() -> None:
    """Print approval requests as they arrive; in a terminal, answer them. Stop with Ctrl-C."""
    import asyncio

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


def _find(gateway: GatewayCall, prefix: str) -> "ApprovalShape":
    return _find_all(gateway, [prefix])[0]


def _find_all(gateway: GatewayCall, prefixes: Sequence[str]) -> "list[ApprovalShape]":
    """Return the requests with these ids, each once."""
    pending = {each.approval_id: each for each in _requests(gateway("approvals.list"))}
    ids = dict.fromkeys([match_prefix(prefix, pending, "approval") for prefix in prefixes])
    return [pending[id] for id in ids]


def _resolve(
    gateway: GatewayCall,
    request: "ApprovalShape",
    decision: str,
    reason: str = "",
    arguments: dict[str, Any] | None = None,
) -> None:
    id = request.approval_id
    shown = {"digest": request.digest} if request.digest else {}
    gateway("approvals.resolve", approval_id=id, decision=decision, reason=reason, arguments=arguments, **shown)
    print(f"{id}: {decision}.", file=sys.stderr)


def _resolve_many(gateway: GatewayCall, requests: "Sequence[ApprovalShape]", decision: str, reason: str) -> int:
    """Resolve several requests as they were shown, and print the outcome of each."""
    shown = [{"approvalId": each.approval_id, "digest": each.digest} for each in requests]
    found = gateway("approvals.resolveMany", approvals=shown, decision=decision, reason=reason)["outcomes"]
    for each in found:
        if each["ok"]:
            print(f"{each['approvalId']}: {decision}.", file=sys.stderr)
        else:
            print_error(f"{each['approvalId']}: {each['error']}")
    return EXIT_OK if all(each["ok"] for each in found) else EXIT_FAILED


def _review(requests: "Sequence[ApprovalShape]", yes: bool) -> bool:
    """Show calls with nothing left out, and ask whether to approve them. Raise ConfigError if they would be unseen."""
    lines = [line for request in requests for line in _lines(request)]
    asks = not yes and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if asks:
        count = len(requests)
        return _page(lines) and confirm("Approve this call?" if count == 1 else f"Approve these {count} calls?")
    print("\n".join(lines))
    size = sum(map(len, lines))
    if not yes and (size > _MAX_UNASKED or len(lines) > _MAX_UNASKED_LINES):
        id = max(requests, key=lambda request: sum(map(len, _lines(request)))).approval_id
        raise ConfigError(
            f"request {id} has {size:,} characters and is not approved unread; run: atlas approvals show {id}, "
            "then approve it in a terminal, or with --yes"
            if len(requests) == 1
            else f"these requests have {size:,} characters and are not approved unread; read the longest one with: "
            f"atlas approvals show {id}, then approve them in a terminal, or with --yes"
        )
    return True


def _lines(request: "ApprovalShape") -> list[str]:
    """Return the lines of a request with nothing left out."""
    from atlas_agents.cli.prompts import describe_call

    if request.form is not None:
        return [_describe(request)]
    return [line for line, _ in describe_call(request, request.details)]


def _page(lines: Sequence[str]) -> bool:
    """Print lines one screen at a time; return False if the user stops before the end."""
    columns, rows = shutil.get_terminal_size()
    width = max(20, columns if all(map(str.isascii, lines)) else columns // 2)  # other characters may be two wide
    pieces = [line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width)]
    size = max(1, rows - 2)
    for start in range(0, len(pieces), size):
        print("\n".join(pieces[start : start + size]), flush=True)
        left = len(pieces) - start - size
        if left > 0:
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # keys that were typed before the question
            print(f"-- {left:,} more lines: Enter continues, q stops -- ", end="", file=sys.stderr, flush=True)
            if (answer := sys.stdin.readline()) == "" or answer.strip().lower() in ("q", "quit"):
                return False
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    return True


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
    return _requests(await gateway.client.call("approvals.list"))


def _requests(page: dict[str, Any]) -> "list[ApprovalShape]":
    return [_convert(each) for each in page["approvals"]]


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
    import asyncio

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
    import asyncio

    while any(each.approval_id == request.approval_id for each in await _pending(gateway)):  # noqa: ASYNC110 - polls
        await asyncio.sleep(_POLL_SECONDS)
