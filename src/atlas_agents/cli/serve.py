"""`atlas serve`: the gateway as a program, and what it says when it is ready."""

import logging
import sys
from typing import Any

from atlas_agents.app.app import Runtime, Told
from atlas_agents.app.serve import ServedGateway, is_on
from atlas_agents.app.serve import serve as serve_gateway
from atlas_agents.app.serve import work as work_on
from atlas_agents.cli import options as given
from atlas_agents.cli.border import guarded
from atlas_agents.cli.models import progress_line
from atlas_agents.cli.who import model_name
from atlas_agents.cli.words import for_people, one_line
from atlas_agents.config.settings import Settings
from atlas_agents.gateway.convert import model_of
from atlas_agents.gateway.server import run
from atlas_agents.gateway.telemetry import set_up


def serve(flags: dict[str, Any]) -> int:
    """Serve until it is told to stop; the result is the exit code."""

    def act() -> None:
        settings = given.settings(**flags)
        _log(settings)
        for notice in settings.notices:
            _say(f"atlas: {notice}")
        if settings.role == "worker":
            run(work_on(settings, told=_progress(), on_ready=_works))
        else:
            run(serve_gateway(settings, told=_progress(), on_ready=_ready))

    return guarded(act)


def _works(runtime: Runtime, door: str) -> None:
    """Who answers here, and where to look how it is."""
    names = ", ".join(agent.id for agent in runtime.atlas.agents)
    _say(one_line(f"Atlas works: it runs turns of {names} that gateways have taken in.", 600))
    _say(f"How it is: {door}/readyz and {door}/metrics, or `atlas cluster status`.")
    _say("Ctrl-C ends it.")


def _ready(here: ServedGateway) -> None:
    """Where it listens, how to open the page, and who answers."""
    _say(f"Atlas listens on {here.url}.")
    if here.runtime.settings.token is None:
        _say(
            f"Open {here.url}/#token={here.token.reveal()}"
            if sys.stderr.isatty()
            else f"Open {here.url} with the token that `atlas token show` prints."
        )
    else:
        _say(f"Open {here.url} with your token.")
    atlas = here.runtime.atlas
    for agent in atlas.agents:
        notice = here.runtime.crew.notices.get(agent.id)
        words = f"{agent.id} answers with {model_name(model_of(agent, atlas.registry))}"
        _say(one_line(f"{words} ({for_people(notice)})" if notice else words, 600))
    if is_on(here.runtime.settings):
        _say("The Telegram bot listens, too: who writes to it is told how to be let in.")
    for finding in here.runtime.workspace.state.findings:
        _say(f"atlas: {finding}")
    _say("Ctrl-C ends it.")


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _progress() -> Told:
    lines: dict[str, Any] = {}

    def told(model: str, done: int, total: int, words: str) -> None:
        lines.setdefault(model, progress_line(model))(done, total, words)

    return told


def _log(settings: Settings) -> None:
    """JSON lines for programs; for people only what they should look at, in plain words."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logging.getLogger("procrastinate").setLevel(max(level, logging.WARNING))
    if settings.log_format == "json":
        set_up(level=level)
        return
    lines = logging.StreamHandler()
    lines.setFormatter(_Plain())
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


class _Plain(logging.Formatter):
    """One line, with nothing in it that could steer a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        when = self.formatTime(record, "%H:%M:%S")
        fields: dict[str, Any] = getattr(record, "fields", {})
        more = "".join(f" {key}={value}" for key, value in fields.items())
        trace = f" | {self.formatException(record.exc_info)}" if record.exc_info else ""
        return one_line(f"{when} {record.levelname.lower()} {record.getMessage()}{more}{trace}", 2000)
