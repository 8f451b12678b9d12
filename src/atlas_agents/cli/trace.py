"""`atlas trace RUN`: the rounds, model calls, tool calls, approvals and jobs of a turn with their times, as a tree.

It is read from the journal, so it needs no collector and no telemetry setting.
"""

import time
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from atlas_agents.cli.command import Argument, Group, JsonFlag, command, match_prefix
from atlas_agents.cli.connect import GatewayCall, open_calls
from atlas_agents.cli.output import one_line, print_json
from atlas_agents.core.errors import ConfigError, GatewayError

app = Group()
_PAGE = 500
_MAX_DEPTH = 10
_NOT_FOUND = ("NOT_FOUND", "RUN_NOT_FOUND", "SESSION_NOT_FOUND", "INVALID_PARAMS")
NodeKind: TypeAlias = Literal["turn", "queue", "round", "model", "tool", "approval", "summary", "job", "restart"]
RunId = Annotated[
    str, Argument(metavar="RUN", help="Id of a run or a unique prefix of it, or key of a session for its last run.")
]


class TraceNode(msgspec.Struct, omit_defaults=True, rename="camel"):
    """A part of a turn. Times are in milliseconds; `duration` is None if it has not ended."""

    kind: NodeKind
    name: str
    started_at: int
    duration: int | None = None
    status: str = ""
    note: str = ""
    first_ms: int | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    id: str = ""
    children: list["TraceNode"] = msgspec.field(default_factory=list["TraceNode"])


@command(app, "trace")
def trace(run: RunId, as_json: JsonFlag = False) -> None:
    """Show where the time of a turn went, as a tree.

    The tree has the rounds, model calls, tool calls, approvals and delegated jobs of the turn. A model call has its
    time to the first token and its total time.
    """
    with open_calls() as gateway:
        root = _read_turn(gateway, _find_run(gateway, run), 0)
    if as_json:
        print_json(msgspec.to_builtins(root))
        return
    print(_describe(root))
    for line in _draw(root.children, ""):
        print(line)


def _find_run(gateway: GatewayCall, run: str) -> dict[str, Any]:
    """Return a run with its steps, by its id or a unique prefix of it, or the last run of a session by its key."""
    try:
        return gateway("runs.get", run_id=run)
    except GatewayError as error:
        if error.kind not in _NOT_FOUND:
            raise
    if (last := _last_run(gateway, run)) is not None:
        return gateway("runs.get", run_id=last)
    known = [each["runId"] for each in gateway("runs.list", limit=_PAGE)["runs"]]
    try:
        return gateway("runs.get", run_id=match_prefix(run, known, "run"))
    except ConfigError as error:
        hint = str(error).partition("; run:")[0]
        raise ConfigError(f"{hint}; the ids of runs are in the web UI and in: atlas audit list --json") from None


def _last_run(gateway: GatewayCall, session: str) -> str | None:
    """Return the id of the last run of a session; None if there is no such session, or if it has no runs."""
    try:
        runs = gateway("runs.list", session_key=session, limit=_PAGE)["runs"]
    except GatewayError as error:
        if error.kind not in _NOT_FOUND:
            raise
        return None
    return max(reversed(runs), key=lambda row: row["createdAt"])["runId"] if runs else None


def _read_turn(gateway: GatewayCall, found: dict[str, Any], depth: int) -> TraceNode:
    run, steps = found["run"], found["steps"]
    reader = _TurnReader(run)
    for step in steps:
        reader.add(step)
    for call, job_id in reader.jobs:
        if depth < _MAX_DEPTH:
            call.children += _read_job(gateway, job_id, depth + 1)
    return reader.finish()


def _read_job(gateway: GatewayCall, job_id: str, depth: int) -> list[TraceNode]:
    """Return a delegated job with its turns; nothing if it was deleted, or if another user's token cannot see it."""
    try:
        job = gateway("jobs.get", job_id=job_id)["job"]
    except GatewayError:
        return []
    ended = job.get("endedAt")
    node = TraceNode("job", job["agentId"], job["createdAt"], status=job["state"], id=job_id)
    node.duration = ended - job["createdAt"] if ended is not None else None
    if job.get("attempts", 0) > 1:
        node.note = f"{job['attempts']} attempts"
    runs = gateway("runs.list", session_key=job["sessionKey"], limit=_PAGE)["runs"]
    for each in sorted(runs, key=lambda row: row["createdAt"]):
        node.children.append(_read_turn(gateway, gateway("runs.get", run_id=each["runId"]), depth))
    return [node]


class _TurnReader:
    """Builds the tree of a turn from the steps of its journal."""

    def __init__(self, run: dict[str, Any]) -> None:
        self._run = run
        self._turn = TraceNode("turn", run["agentId"], run["createdAt"], status=run["status"], id=run["runId"])
        self._round: TraceNode | None = None
        self._open: dict[str, TraceNode] = {}
        self._last = run["createdAt"]
        self.jobs: list[tuple[TraceNode, str]] = []

    def add(self, step: dict[str, Any]) -> None:
        match step["kind"]:
            case "accepted" if step["at"] > self._run["createdAt"]:
                self._add(TraceNode("queue", "queued", self._run["createdAt"], step["at"] - self._run["createdAt"]))
            case "reply":
                self._add_reply(step)
            case "summary":
                self._add(TraceNode("summary", "summary of older messages", self._last, step["at"] - self._last))
            case "intent":
                self._begin(f"call {step['callId']}", "tool", step)
            case "outcome":
                self._end_call(step)
            case "asked":
                self._begin(f"approval {step['key']}", "approval", step)
            case "answered":
                by = f"by {step['by']}" if step.get("by") else ""
                self._end(f"approval {step['key']}", step, step.get("status", ""), by)
            case "resumed":
                self._add(TraceNode("restart", "resumed by another process", self._last, step["at"] - self._last))
            case _:
                pass
        self._last = step["at"]

    def finish(self) -> TraceNode:
        """Return the turn with its sums; parts that have not ended have no duration."""
        turn, ended = self._turn, self._run.get("endedAt")
        self._end_round(ended)
        turn.duration = ended - turn.started_at if ended is not None else None
        if self._run.get("error"):
            turn.note = str(self._run["error"])
        if not turn.children:
            turn.note = turn.note or "no steps are recorded: it has not started, or its journal was deleted"
        models = [node for each in turn.children for node in (each, *each.children) if node.kind == "model"]
        turn.input_tokens = sum(node.input_tokens for node in models)
        turn.output_tokens = sum(node.output_tokens for node in models)
        costs = [node.cost for node in models if node.cost is not None]
        turn.cost = sum(costs) if costs else None
        return turn

    def _add(self, node: TraceNode) -> None:
        (self._round or self._turn).children.append(node)

    def _add_reply(self, step: dict[str, Any]) -> None:
        total = step.get("totalMs")
        started = self._last if total is None else max(step["at"] - total, self._turn.started_at)
        self._end_round(started)
        number = 1 + sum(each.kind == "round" for each in self._turn.children)
        self._round = TraceNode("round", f"round {number}", started)
        self._turn.children.append(self._round)
        usage: dict[str, int] = step.get("usage") or {}
        model = TraceNode(
            "model", step.get("name") or "model", started, step["at"] - started if total is None else total
        )
        model.first_ms, model.cost = step.get("firstMs"), step.get("cost")
        model.input_tokens, model.output_tokens = usage.get("inputTokens", 0), usage.get("outputTokens", 0)
        model.status = step.get("status", "")
        self._round.children.append(model)

    def _end_round(self, at: int | None) -> None:
        if self._round is not None:
            self._round.duration = max(0, at - self._round.started_at) if at is not None else None

    def _begin(self, key: str, kind: NodeKind, step: dict[str, Any]) -> None:
        node = self._open[key] = TraceNode(kind, step.get("name") or kind, step["at"], id=step["key"])
        self._add(node)

    def _end_call(self, step: dict[str, Any]) -> None:
        key = f"call {step['callId']}"
        if key not in self._open:  # it was refused before it could act
            self._begin(key, "tool", {**step, "name": f"call {step['callId']}"})
        node = self._open[key]
        self._end(key, step, step.get("status", ""), step.get("error") or "")
        if step.get("jobId"):
            self.jobs.append((node, step["jobId"]))

    def _end(self, key: str, step: dict[str, Any], status: str, note: str) -> None:
        node = self._open.pop(key, None)
        if node is not None:
            node.duration, node.status, node.note = step["at"] - node.started_at, status, note


def _draw(nodes: list[TraceNode], indent: str) -> list[str]:
    lines: list[str] = []
    for index, node in enumerate(nodes):
        last = index == len(nodes) - 1
        lines.append(f"{indent}{'└─' if last else '├─'} {_describe(node)}")
        lines += _draw(node.children, indent + ("   " if last else "│  "))
    return lines


def _describe(node: TraceNode) -> str:
    """Describe a node in one line: its name, outcome, duration and usage."""
    kind = "" if node.kind in ("queue", "round", "summary", "restart") else f"{node.kind} "
    identity = f" {one_line(node.id, 200)}" if node.kind in ("turn", "job") else ""
    parts = [f"{kind}{one_line(node.name, 200)}{identity}"]
    if node.status and node.status not in ("stop", "tool_calls"):
        parts.append(one_line(node.status, 200))
    if node.note:
        parts.append(one_line(node.note, 200))
    if node.first_ms is not None:
        parts.append(f"first token {_duration(node.first_ms)}, total {_duration(node.duration)}")
    else:
        parts.append(_duration(node.duration))
    if node.input_tokens or node.output_tokens:
        parts.append(f"{node.input_tokens:,} tokens in, {node.output_tokens:,} out")
    if node.cost is not None:
        parts.append(f"${node.cost:.4f}")
    return "  ".join(parts)


def _duration(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "not ended"
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 100 else time.strftime("%H:%M:%S", time.gmtime(seconds))
