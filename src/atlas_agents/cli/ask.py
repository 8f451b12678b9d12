"""`atlas ask`: ask one question and print the answer."""

import os
import select
import stat
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from atlas_agents.cli import command as cli
from atlas_agents.cli import connect
from atlas_agents.cli.output import describe_model_error, format_call, one_line, print_json, printable
from atlas_agents.core.errors import ConfigError

if TYPE_CHECKING:
    from atlas_agents.cli.turn import ApprovalRequest, TurnOutcome, TurnView

app = cli.Group()
_MAX_BYTES = 4_000_000
_STDIN_SECONDS = 10.0
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")


@cli.command(app)
async def ask(
    message: Annotated[
        str | None,
        cli.Argument(metavar="MESSAGE", help="The question. Piped input is appended; '-' reads only that."),
    ] = None,
    files: Annotated[
        list[str] | None, cli.Option("--file", "-f", metavar="FILE", help="Attach a text, image or PDF. Repeatable.")
    ] = None,
    session: connect.SessionOption = None,
    agent: cli.AgentOption = None,
    yes_to: Annotated[
        list[str] | None, cli.Option(metavar="TOOL", help="Approve calls of this tool. Repeatable.")
    ] = None,
    as_json: Annotated[bool, cli.Option("--json", help="Print the answer, usage, runId and steps as JSON.")] = False,
    model: connect.ModelOption = None,
    base_url: connect.BaseUrlOption = None,
    system: connect.SystemOption = None,
    tools: connect.ToolsFlag = True,
    effort: connect.EffortOption = None,
    setting: connect.SetOption = None,
) -> int:
    """Ask one question and print the answer.

    `cat report.txt | atlas ask "Summarise"` sends both. The answer goes to standard output, everything else to standard
    error. Calls that need approval are denied, unless --yes-to approves them.

    Exit codes: 0 success, 1 no answer or an unfinished one, 2 invalid options or settings, 130 stopped by Ctrl-C.
    """
    from atlas_agents.cli.turn import QuitRequested, follow_turn
    from atlas_agents.core.messages import new_id

    options = connect.ConversationOptions(session, agent, False, model, base_url, system, tools)
    model_settings = connect.read_model_settings(effort, setting)
    settings = cache(connect.load_settings)
    if not options.direct and connect.find_running_gateway(settings) is None:
        settings()  # invalid settings are reported before the question is read
    question = _with_files(_read_question(message), files or [])
    view = _create_view(as_json)
    async with connect.connect_for(options, settings) as gateway:
        gateway.on_status = view.show_status
        if not as_json:
            print(await connect.describe_responder(gateway, agent), file=sys.stderr, flush=True)
        key = session or new_id()

        async def decide(request: "ApprovalRequest") -> None:
            await _decide(request, gateway, yes_to or [])

        async with gateway.client.follow(key) as feed:
            sent = await feed.send(question, agent_id=agent, settings=model_settings)
            try:
                outcome = await follow_turn(gateway.client, feed, sent.run_id, view, decide)
            except QuitRequested:
                return cli.EXIT_INTERRUPTED
        return _print_outcome(outcome, key, view, gateway, as_json=as_json)


async def _decide(request: "ApprovalRequest", gateway: connect.GatewaySession, approved_tools: list[str]) -> None:
    """Approve calls of the tools named on the command line, deny all others, and dismiss forms."""
    if request.form is not None:
        text = one_line(f"{request.form.asker}: {request.form.message}")
        cli.print_error(f"not answered: {text}; use atlas chat or the web UI to answer forms")
        await gateway.client.call("approvals.resolve", approval_id=request.approval_id, decision="dismiss")
        return
    approved = request.tool_name in approved_tools
    if not approved:
        call = format_call(request.tool_name, request.details).removeprefix("→ ")
        cli.print_error(f"denied: {call} needs approval; use atlas chat, or pass --yes-to {request.tool_name}")
    await gateway.client.call(
        "approvals.resolve",
        approval_id=request.approval_id,
        decision="allow-once" if approved else "deny",
        reason="" if approved else "no one was available to approve it",
    )


def _print_outcome(
    outcome: "TurnOutcome", key: str, view: "TurnView", gateway: connect.GatewaySession, *, as_json: bool
) -> int:
    from atlas_agents.cli.turn import StderrView, show_outcome_notice

    url = gateway.model_choice.url if gateway.model_choice else ""
    error = None if outcome.error is None else describe_model_error(outcome.error, outcome.error_kind, url)
    for warning in outcome.warnings:
        cli.print_error(one_line(warning, 600))
    if as_json:
        print_json(_as_json(outcome, key, error))
    elif error is not None:
        if outcome.partial and isinstance(view, StderrView):
            _print_answer(outcome.partial)
        cli.print_error(error)
    elif not outcome.cancelled:
        show_outcome_notice(outcome, view)
        if isinstance(view, StderrView):
            _print_answer(outcome.text)
    if outcome.cancelled:
        return cli.EXIT_INTERRUPTED
    return cli.EXIT_FAILED if error is not None or outcome.incomplete else cli.EXIT_OK


def _print_answer(text: str) -> None:
    sys.stdout.reconfigure(errors="replace")  # pyrefly: ignore[missing-attribute] - Python opened it as a TextIOWrapper
    print(printable(text), flush=True)


def _as_json(outcome: "TurnOutcome", key: str, error: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "answer": outcome.text if outcome.message is not None and error is None else None,
        "runId": outcome.run_id,
        "sessionKey": key,
        "model": outcome.model,
        "usage": outcome.usage,
        "steps": outcome.steps,
    }
    if outcome.message is not None and outcome.message.refusal:
        fields["refusal"] = outcome.message.refusal
    if outcome.incomplete_reason:
        fields["incomplete"] = outcome.incomplete_reason
    if outcome.warnings:
        fields["warnings"] = outcome.warnings
    if outcome.cancelled:
        fields["cancelled"] = True
    if error is not None:
        fields["error"] = {"kind": outcome.error_kind, "message": error}
        if outcome.partial:
            fields["partial"] = outcome.partial
    return fields


def _create_view(as_json: bool) -> "TurnView":
    if as_json or not _is_terminal(sys.stdout):
        from atlas_agents.cli.turn import StderrView

        return StderrView()
    from rich.console import Console

    from atlas_agents.cli.terminal import TerminalView

    return TerminalView(Console(highlight=False))


def _read_question(message: str | None) -> str:
    """Return the message with piped input, or standard input alone; raise ConfigError if it is empty."""
    if message in (None, "-"):
        question = _read_stdin(wait=message == "-")
    else:
        piped = _read_stdin(wait=False) if _is_piped(sys.stdin) else ""
        question = f"{message}\n\n{piped}" if piped else message
    if not question.strip():
        raise ConfigError("the question is empty; pass MESSAGE, or pipe one in")
    return question


def _is_piped(file: TextIO | None) -> bool:
    """Whether a file is a pipe or a regular file, unlike a terminal or the null device of a service."""
    try:
        mode = os.fstat(file.fileno()).st_mode if file is not None else 0
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_stdin(*, wait: bool) -> str:
    """Read standard input to its end. In a script, an input that stays silent counts as empty."""
    if sys.stdin is None:
        return ""
    if _is_terminal(sys.stdin):
        print("Type the message and end it with Ctrl-D on an empty line.", file=sys.stderr)
    interactive = wait or _is_terminal(sys.stdin) or _is_terminal(sys.stdout)
    if not interactive and not select.select([sys.stdin], [], [], _STDIN_SECONDS)[0]:
        return ""
    content = sys.stdin.buffer.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"the message is longer than {_MAX_BYTES:,} bytes")
    return content.decode("utf-8", "replace").strip()


def _with_files(question: str, names: list[str]) -> str | list[dict[str, Any]]:
    """Return the question, followed by the attached files as parts of the message."""
    if not names:
        return question
    return [{"type": "text", "text": question}, *(_file_part(Path(name)) for name in names)]


def _file_part(path: Path) -> dict[str, Any]:
    """Read a file as a part of a message: images and PDFs as such, everything else as text with the file's name."""
    import base64
    import mimetypes

    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{path} is longer than {_MAX_BYTES:,} bytes")
    media_type = mimetypes.guess_type(path.name)[0] or ""
    encoded = {"mediaType": media_type, "data": base64.b64encode(content).decode()}
    if media_type in _IMAGE_TYPES:
        return {"type": "image", **encoded}
    if media_type == "application/pdf":
        return {"type": "file", "name": path.name, **encoded}
    try:
        return {"type": "text", "text": f"File {path.name}:\n\n{content.decode('utf-8')}"}
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot attach {path}: expected text, a PDF, or an image (PNG, JPEG, GIF, WebP)") from error


def _is_terminal(file: TextIO | None) -> bool:
    return file is not None and file.isatty()
