"""Fork: continue live from a step of a finished run, with another model, prompt or policy, in a scratch session.

Nothing is written to the store of the run. Tools are simulated from the record, except those that are allowed to run.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.history import read_request_record
from atlas_agents.agents.loop import run_turn
from atlas_agents.agents.options import AgentSettings, TurnOptions
from atlas_agents.agents.run import Run
from atlas_agents.agents.runtime import RESERVED_TOOLS, AgentRuntime, choose_turn_function
from atlas_agents.core.aio import invoke
from atlas_agents.core.approvals import Answer, Question
from atlas_agents.core.errors import AtlasError, ConfigError
from atlas_agents.core.events import Usage
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, Status, ToolCall, ToolResult
from atlas_agents.core.store import Store
from atlas_agents.testing.replay import (
    Agents,
    create_copied_run,
    find_run_agent,
    open_scratch_store,
    read_agents,
    read_run,
)
from atlas_agents.testing.run_record import RecordedStep, ReplayError, RunRecord
from atlas_agents.tools.approvals import Approvals, Approve
from atlas_agents.tools.governance import Approved
from atlas_agents.tools.journal import Journal
from atlas_agents.tools.policy import Policy

CallSource: TypeAlias = Literal["recorded", "simulated", "not in the record", "run"]
_NOT_SIMULATED = (
    "This call was not run: the turn is a simulation, and its record has no such call with these arguments. Go on "
    "without it, or answer with what you know."
)


class ForkPoint(msgspec.Struct, frozen=True):
    """A step of a run from which it can be forked.

    Attributes:
        number: Number of the step; a fork from it uses the steps before it.
        at: When it was recorded, in milliseconds since 1970.
        kind: Kind of the step in the journal.
        text: Description of the step.
    """

    number: int
    at: int
    kind: str
    text: str


class ForkedCall(msgspec.Struct, frozen=True):
    """A tool call after the fork.

    Attributes:
        tool: Name of the tool.
        arguments: Arguments of the call.
        status: `ok`, `error` or `unknown`.
        result: The result.
        source: Where the result comes from: `recorded` before the fork, `simulated` from the record of the same call,
            `not in the record`, or `run` if the tool was allowed to run or the call was refused.
    """

    tool: str
    arguments: dict[str, Any]
    status: Status
    result: Any
    source: CallSource


class ForkResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a fork.

    Attributes:
        run_id: Id of the run that was forked.
        step: Step from which it continued live.
        answer: Text of the answer; empty if there is none.
        error: Why there is no answer; None if there is one.
        calls: The tool calls of the whole turn.
        usage: Tokens and cost of the whole turn, including the recorded part before the fork.
    """

    run_id: str
    step: int
    answer: str
    error: str | None
    calls: tuple[ForkedCall, ...]
    usage: Usage


def list_steps(record: RunRecord) -> list[ForkPoint]:
    """Return the steps of a run, with the numbers that `fork` takes."""
    return [
        ForkPoint(number, step.at, step.kind, _describe(step, record)) for number, step in enumerate(record.steps, 1)
    ]


def _describe(step: RecordedStep, record: RunRecord) -> str:
    match step.kind:
        case "accepted":
            return "; ".join([Message.from_json(bytes(body)).text for body in record.first_messages])
        case "reply":
            reply, sent = step.decode(Message), read_request_record(bytes(step.payload))
            shown = [*([reply.text] if reply.text else []), *[_show_call(call) for call in reply.tool_calls]]
            return " ".join([*[f"[{failed}]" for failed in (sent.failed if sent else ())], *shown])
        case "intent":
            return _show_call(step.decode(ToolCall))
        case "outcome":
            result = step.decode(ToolResult)
            shown = result.result if isinstance(result.result, str) else encode(result.result).decode()
            return f"{result.status}: {shown}"
        case "asked":
            question = step.decode(Question)
            return f"{question.tool} {encode(question.arguments).decode()}"
        case "answered":
            return step.decode(Answer).decision
        case "ended":
            failed = [f"[{failed}]" for failed in record.end.failed]
            return " ".join(filter(None, (*failed, record.status, record.error)))
        case _:
            return ""


def _show_call(call: ToolCall) -> str:
    return f"→ {call.name} {encode(call.arguments).decode()}"


class ToolSimulation:
    """Answers tool calls with the results that the same calls had in the record, in order."""

    def __init__(self, record: RunRecord, allowed: Iterable[str], approve: Approve | None) -> None:
        self._allowed = frozenset(allowed)
        self._approve = approve
        self._results: dict[bytes, list[ToolResult]] = {}
        self._answers: dict[bytes, Answer] = {}
        self.sources: dict[str, CallSource] = {}
        outcomes = {step.key: step.decode(ToolResult) for step in record.of_kind("outcome")}
        for step in record.of_kind("intent"):
            call = step.decode(ToolCall)
            if call.id in outcomes:
                self._results.setdefault(_identify(call.name, call.arguments), []).append(outcomes[call.id])
        answers = {step.key: step.decode(Answer) for step in record.of_kind("answered")}
        for step in record.of_kind("asked"):
            question = step.decode(Question)
            if step.key in answers:
                self._answers[_identify(question.tool, question.arguments)] = answers[step.key]

    def may_run(self, tool: str) -> bool:
        return tool in self._allowed or tool in RESERVED_TOOLS

    def result(self, call: ToolCall) -> ToolResult:
        """Return the recorded result of the same call; the last one is repeated."""
        found = self._results.get(_identify(call.name, call.arguments))
        if not found:
            self.sources[call.id] = "not in the record"
            return ToolResult(call.id, "error", _NOT_SIMULATED, "failed")
        self.sources[call.id] = "simulated"
        result = found.pop(0) if len(found) > 1 else found[0]
        return msgspec.structs.replace(result, call_id=call.id)

    async def approve(self, question: Question) -> Any:
        """Ask about a tool that is allowed to run; a simulated call gets the recorded answer, or is approved."""
        if question.tool not in self._allowed:
            return self._answers.get(_identify(question.tool, question.arguments), Answer("once", by="simulation"))
        if self._approve is None:
            return Answer("no", reason="no one can be asked")
        return await invoke(self._approve, question)


def _identify(tool: str, arguments: dict[str, Any]) -> bytes:
    return msgspec.json.encode((tool, arguments), order="deterministic")


class ForkJournal(Journal):
    """Journal of a forked run. Calls that are not recorded are simulated, except those of allowed tools."""

    def __init__(self, simulation: ToolSimulation, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._simulation = simulation

    def outcome_of(self, decision: Any) -> ToolResult | None:
        recorded = super().outcome_of(decision)
        if recorded is not None:
            self._simulation.sources[decision.call.id] = "recorded"
        if recorded is not None or not isinstance(decision, Approved) or self._simulation.may_run(decision.tool.name):
            return recorded
        return self._simulation.result(decision.call)


class ForkRuntime(AgentRuntime):
    """Runtime of a fork, in which one agent may have another system prompt."""

    def __init__(self, agent_id: str, system_prompt_of_agent: str | None, **options: Any) -> None:
        super().__init__(**options)
        self._replaced = agent_id, system_prompt_of_agent

    def _settings_of(self, agent: Any, options: TurnOptions) -> AgentSettings:
        settings, (agent_id, prompt) = super()._settings_of(agent, options), self._replaced
        if prompt is None or settings.id != agent_id:
            return settings
        return msgspec.structs.replace(settings, system_prompt=prompt)


async def fork(
    run: Any,
    atlas: Agents,
    step: int,
    *,
    model: str = "",
    system_prompt: str | None = None,
    policy: Policy | None = None,
    allow_tools: Iterable[str] = (),
    approve: Callable[[Question], Any] | None = None,
    store: Store | None = None,
    tenant: str = "",
    deps: Any = None,
) -> ForkResult:
    """Continue live from a step of a finished run, in a scratch session: nothing is written to the store of the run.

    A tool call gets the result that the same call with the same arguments had in the record, and otherwise an error for
    the model. Tools in `allow_tools` are run, under the policy and with approvals.

    Budgets and limits of the Atlas apply to the usage of the fork alone: earlier usage does not count, and usage of the
    fork does not count for later turns.

    Args:
        run: Id of a run in the store, the path of a saved run, or a `RunRecord`.
        atlas: An `Atlas`, an agent or several agents.
        step: Number of the first step that is not taken from the record; see `list_steps`.
        model: Reference of the model that continues; the agent's by default.
        system_prompt: System prompt in place of the agent's.
        policy: Policy in place of that of the Atlas.
        allow_tools: Names of tools that are run.
        approve: Function that is asked about calls of these tools that need approval; without it they are refused.
        store: The store that has the run; that of the Atlas by default.
        tenant: Owner of the run; that of the Atlas by default.
        deps: Passed to tools, prompts, rules and hooks, if the turn was sent with `deps`.
    """
    atlas = read_agents(atlas)
    record = await read_run(run, store or atlas.store, tenant or atlas.tenant)
    agent, last = find_run_agent(atlas, record), len(record.steps)
    if not 2 <= step <= last:
        raise ReplayError(f"invalid step {step} of run {record.id!r}: expected 2 to {last}; list them with --list")
    simulation, scratch = ToolSimulation(record, _find_tools(agent, allow_tools), approve), open_scratch_store()
    row = await record.seed(scratch, upto=step)
    changes: dict[str, Any] = {"policy": policy} if policy is not None else {}
    runtime = atlas.derive_runtime(
        partial(ForkRuntime, record.agent_id, system_prompt),
        **{"tenant": record.tenant, "store": scratch, "approve": Approvals(simulation.approve), **changes},
        create_journal=partial(ForkJournal, simulation),
    )
    try:
        forked = create_copied_run(runtime, record, row, deps, **({"model": model} if model else {}))
        return await _go_on(forked, step, simulation.sources)
    finally:
        await runtime.close()


async def _go_on(forked: Run, step: int, sources: Mapping[str, CallSource]) -> ForkResult:
    """Run the rest of the turn, and return its result."""
    try:
        answer, error = (await run_turn(forked, None, choose_turn_function(forked))).text, None
    except AtlasError as failure:
        answer, error = "", str(failure)
    calls = [
        ForkedCall(call.name, call.arguments, result.status, result.result, sources.get(call.id, "run"))
        for call, result in _pairs(forked.added)
    ]
    return ForkResult(run_id=forked.id, step=step, answer=answer, error=error, calls=tuple(calls), usage=forked.usage)


def _pairs(messages: list[Message]) -> list[tuple[ToolCall, ToolResult]]:
    results = {result.call_id: result for message in messages for result in message.tool_results}
    calls = [call for message in messages for call in message.tool_calls]
    return [(call, results[call.id]) for call in calls if call.id in results]


def _find_tools(agent: Agent, given: Iterable[str]) -> list[str]:
    """Return the names of an agent's tools; each may be given by the name that models see."""
    known = {name: tool.name for tool in agent.context.tools for name in (tool.wire_name, tool.name)}
    names = tuple(given)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"unknown tool {unknown[0]!r}: agent {agent.id!r} has {', '.join(sorted(known)) or 'none'}")
    return [known[name] for name in names]
