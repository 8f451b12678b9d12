"""`atlas serve`: run the gateway or a worker of a cluster. `atlas cluster status`: members, load of each, and queue."""

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

from atlas_agents.cli.command import EXIT_FAILED, EXIT_OK, Group, JsonFlag, Option, command, print_error
from atlas_agents.cli.connect import describe_agent, find_running_gateway, load_settings
from atlas_agents.cli.output import format_duration, one_line, print_json, print_table, show_download

if TYPE_CHECKING:
    from atlas_agents.app.app import Runtime
    from atlas_agents.app.serve import ServedGateway
    from atlas_agents.config.settings import Settings
    from atlas_agents.dispatch.members import ClusterStatus, MemberStatus

app = Group()
cluster = Group()
_MEMBER_HEADERS = ("member", "role", "state", "turns", "uptime", "last seen", "version", "process", "url")
_EXIT_MARGIN = 2.0
"""Seconds after `drain_seconds` within which the process exits, whatever hangs."""


@command(app)
def serve(
    host: Annotated[str | None, Option(metavar="ADDRESS", help="The address to listen on.")] = None,
    port: Annotated[int | None, Option(metavar="PORT", help="The port; 0 picks a free one.")] = None,
    workspace: Annotated[str | None, Option(metavar="FOLDER", help="The folder with AGENTS.md.")] = None,
    model: Annotated[
        str | None,
        Option(metavar="REF", help="The model for agents that name none, or whose key is not set; also demo."),
    ] = None,
    policy: Annotated[str | None, Option(metavar="FILE", help="The policy file for tool permissions.")] = None,
    home: Annotated[str | None, Option(metavar="FOLDER", help="The folder for state and tokens.")] = None,
    config: Annotated[str | None, Option(metavar="FILE", help="The settings file, instead of ./atlas.toml.")] = None,
    role: Annotated[
        str | None, Option(metavar="ROLE", help="alone, or in a cluster on Postgres: gateway, worker or all.")
    ] = None,
    log_level: Annotated[str | None, Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, Option(metavar="FORMAT", help="text or json.")] = None,
    no_open: Annotated[bool, Option("--no-open", help="Do not open the web UI in a browser.")] = False,
    hide_token: Annotated[bool, Option("--hide-token", help="Print the address without the token, for logs.")] = False,
) -> None:
    """Start the gateway and its web UI.

    It listens on this machine only, unless you pass --host. In a terminal with a display it opens the web UI. Stop it
    with Ctrl-C.
    """
    from atlas_agents.app import serve as gateway
    from atlas_agents.gateway.server import run

    flags = {"host": host, "port": port, "workspace": workspace, "model": model, "policy": policy, "home": home}
    flags |= {"config": config, "role": role, "log_level": log_level, "log_format": log_format}
    settings = load_settings(**flags)
    _configure_logging(settings)
    for notice in settings.notices:
        _print(f"atlas: {notice}")
    if settings.role == "worker":
        run(gateway.work(settings, on_progress=_download_progress(), on_ready=_worker_ready))
    else:
        exit_timer = threading.Timer(settings.drain_seconds + _EXIT_MARGIN, _exit_now)
        exit_timer.daemon = True

        def ready(served: "ServedGateway") -> None:
            _gateway_ready(served, hide_token=hide_token)
            if not no_open and sys.stderr.isatty() and has_display():
                open_browser(_link(served.url, served.token.reveal()))

        def stop() -> None:
            exit_timer.start()
            echo = "\r" if sys.stderr.isatty() else ""  # it replaces the ^C that the terminal shows
            _print(f"{echo}Stopping: running turns may finish. Open turns resume at the next start.")

        run(gateway.serve(settings, on_progress=_download_progress(), on_ready=ready, on_stop=stop))
        _print("The gateway has stopped.")


def _exit_now() -> None:
    """Exit although a tool, a server or a thread of a plugin hangs. Acknowledged messages are stored."""
    logging.getLogger(__name__).error("shutdown takes too long, exiting now: open turns resume at the next start")
    os._exit(0)


def _worker_ready(runtime: "Runtime", url: str) -> None:
    names = ", ".join(agent.id for agent in runtime.atlas.agents)
    _print(one_line(f"Worker ready: runs turns of {names} that gateways accept.", 600))
    _print(f"Status: {url}/readyz and {url}/metrics, or run: atlas cluster status")
    _finish_start()


def _gateway_ready(served: "ServedGateway", *, hide_token: bool) -> None:
    from atlas_agents.app.serve import telegram_enabled
    from atlas_agents.gateway.convert import agent_model

    runtime, url = served.runtime, served.url
    _print(f"Atlas is listening on {url}.")
    if runtime.settings.token is not None:
        _print(f"Open {url} and log in with your token.")
    elif hide_token:
        _print(f"Open {url} and log in with the token that `atlas token show` prints.")
    else:
        _print(f"Open {_link(url, served.token.reveal())}")
    for agent in runtime.atlas.agents:
        model = agent_model(agent, runtime.atlas.registry)
        _print(describe_agent(agent.id, model, runtime.agent_loader.notices.get(agent.id, "")))
    if runtime.setup.hint:
        _print(runtime.setup.hint)
    if telegram_enabled(runtime.settings):
        _print("The Telegram bot is running; it tells new users how to pair.")
    for notice in runtime.workspace.state.pending:
        _print(f"atlas: {one_line(notice, 600)}")
    for finding in runtime.workspace.state.findings:
        _print(f"atlas: {finding}")
    _finish_start()


def _finish_start() -> None:
    _print("Press Ctrl-C to stop.")
    for handler in logging.getLogger().handlers:
        handler.removeFilter(_is_important)


def _link(url: str, token: str) -> str:
    """Return the address that opens the web UI signed in. A fragment is not sent to servers and not logged by them."""
    return f"{url}/#token={token}"


def has_display() -> bool:
    """Whether this process can show a window to the person at the machine."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def open_browser(link: str) -> bool:
    """Open a page in the person's browser, in a thread because some browsers block until they are closed."""
    import webbrowser

    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    threading.Thread(target=browser.open, args=(link,), daemon=True).start()
    return True


@command(app, "open")
def open_page(
    no_open: Annotated[bool, Option("--no-open", help="Only print the link.")] = False,
) -> int:
    """Open the web UI of the running gateway, signed in.

    Without a display it prints the link. The link contains the token: do not share it.
    """
    running = find_running_gateway()
    if running is None:
        print_error("no gateway is running; start it with: atlas serve")
        return EXIT_FAILED
    link = _link(*running)
    if no_open or not has_display() or not open_browser(link):
        print(link)
    else:
        _print(f"Opening {running.url} in your browser.")
    return EXIT_OK


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _download_progress() -> Any:
    shown: dict[str, Any] = {}

    def show(model: str, done: int, total: int, step: str) -> None:
        shown.setdefault(model, show_download(model))(done, total, step)

    return show


def _configure_logging(settings: "Settings") -> None:
    """Log JSON lines for programs; for people, one short line per record."""
    from atlas_agents.gateway.telemetry import configure_logging

    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logging.getLogger("procrastinate").setLevel(max(level, logging.WARNING))
    if settings.log_format == "json":
        configure_logging(level=level)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_TextFormatter())
    if level == logging.INFO:
        handler.addFilter(_is_important)  # until the start is complete: the link is easy to find
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _is_important(record: logging.LogRecord) -> bool:
    """Return whether a record is shown while the gateway starts: warnings, and the steps of an upgrade."""
    return record.levelno >= logging.WARNING or record.name == "atlas_agents.storage.migrations"


class _TextFormatter(logging.Formatter):
    """Formats a record as one line without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        time = self.formatTime(record, "%H:%M:%S")
        fields: dict[str, Any] = getattr(record, "fields", {})
        pairs = "".join(f" {key}={value}" for key, value in fields.items())
        trace = f" | {self.formatException(record.exc_info)}" if record.exc_info else ""
        return one_line(f"{time} {record.levelname.lower()} {record.getMessage()}{pairs}{trace}", 2000)


@command(cluster)
async def status(as_json: JsonFlag = False) -> None:
    """Show the members, the leader, the load of each member, and the queue.

    Reads the database (ATLAS_DATABASE_URL), so it works while no gateway responds. A member without a heartbeat for
    6 seconds is lost: other members take over its turns.

    Exit codes: 0 success, 1 Postgres cannot be reached, 2 there is no cluster, or invalid settings.
    """
    import msgspec

    from atlas_agents.app.serve import cluster_status

    found = await cluster_status(load_settings())
    if as_json:
        print_json(msgspec.to_builtins(found) | {"problems": found.problems})
        return
    print_table(_MEMBER_HEADERS, [_row(each) for each in found.members], "There are no members.")
    print()
    for name, summary in _summaries(found):
        print(f"{name:<8}  {summary}")
    for problem in found.problems:
        print(f"! {problem}.")


def _row(member: "MemberStatus") -> tuple[str, ...]:
    return (
        member.id[-8:],
        member.role,
        _state(member),
        f"{member.runs} of {member.capacity}" if member.capacity else "-",
        format_duration(member.uptime - (member.heartbeat_age if member.lost else 0)),
        f"{format_duration(member.heartbeat_age)} ago",
        member.version,
        f"{member.host} {member.pid}",
        member.address or "-",
    )


def _state(member: "MemberStatus") -> str:
    if member.lost:
        return "lost"
    return "draining" if member.draining else "leader" if member.leads else "ok"


def _summaries(found: "ClusterStatus") -> list[tuple[str, str]]:
    turns, queue, jobs = found.turns, found.queue, found.jobs
    oldest = f", the oldest for {format_duration(queue.lag)}" if queue.waiting else ""
    open_turns = f"{turns.running} running, {turns.waiting} waiting for an approval, {turns.queued} queued"
    summaries = [
        ("turns", f"{turns.open} open: {open_turns}"),
        ("queue", f"{queue.waiting} waiting for a worker{oldest}; {queue.taken} taken"),
        ("jobs", f"{jobs.due} due, {jobs.later} scheduled, {jobs.running} running, {jobs.dead} dead"),
    ]
    if found.keys:
        paused = ", ".join(f"{each.name} for {format_duration(each.seconds)}" for each in found.keys)
        summaries.append(("keys", f"{len(found.keys)} paused: {paused}"))
    return [*summaries, ("postgres", found.postgres)]
