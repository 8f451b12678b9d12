"""Params and results of `runs.*`: turns, under way or over, and the steps they took."""

from typing import Literal, TypeAlias

from atlas_agents.gateway.protocol.chat import Key, Page, RunId
from atlas_agents.gateway.protocol.shapes import RunState, UsageShape, Wire

StepKind: TypeAlias = Literal["accepted", "resumed", "reply", "intent", "outcome", "asked", "answered", "ended"]


class RunShape(Wire, frozen=True):
    """A turn, and how it stands."""

    run_id: str
    session_key: str
    agent_id: str
    status: RunState
    created_at: int
    ended_at: int | None = None
    error: str | None = None
    user: str = ""


class RunStep(Wire, frozen=True):
    """One step of a turn, as its journal has it: `key` names what it is about, a call's id or a question's; `name` is
    the tool's or the model's, `status` what came of it, `by` who answered, and for what `reason`."""

    seq: int
    kind: StepKind
    key: str
    at: int
    name: str = ""
    call_id: str = ""
    status: str = ""
    error: str | None = None
    by: str = ""
    reason: str = ""
    usage: UsageShape | None = None


class RunsList(Wire, frozen=True):
    """The latest turns of a session, or of all."""

    session_key: Key | None = None
    limit: Page = 50


class RunsFound(Wire, frozen=True):
    runs: tuple[RunShape, ...]


class OneRun(Wire, frozen=True):
    """Name a turn."""

    run_id: RunId


class RunFound(Wire, frozen=True):
    """A turn with its steps, in order."""

    run: RunShape
    steps: tuple[RunStep, ...]
