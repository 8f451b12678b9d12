"""Comparison of a replayed turn with its record: requests, arguments, policy verdicts and outputs."""

import difflib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.agents.history import (
    RequestContents,
    RequestOutline,
    RequestRecord,
    SentRequest,
    messages_digest,
)
from atlas_agents.core.approvals import Question
from atlas_agents.core.errors import BadArguments, ToolNotFound
from atlas_agents.core.events import FailedAttempt
from atlas_agents.core.messages import Message, ToolCall, ToolResult
from atlas_agents.core.store import RunStatus
from atlas_agents.testing.run_record import RunRecord
from atlas_agents.tools.checks import Rejected
from atlas_agents.tools.governance import Approved
from atlas_agents.tools.policy import Verdict

Kind: TypeAlias = Literal["request", "arguments", "policy verdict", "output"]
_MAX_DIFF = 60
_REFUSALS = ("not_found", "bad_arguments", "not_permitted", "declined")
"""Error kinds of calls that the checks refuse."""


class Difference(msgspec.Struct, frozen=True):
    """A difference between the replay and the record.

    Attributes:
        kind: `request`, `arguments`, `policy verdict` or `output`.
        where: The round, and the tool call if it is about one.
        summary: Description of the change, as a sentence.
        expected: The recorded value.
        actual: The current value.
    """

    kind: Kind
    where: str
    summary: str
    expected: str = ""
    actual: str = ""

    @property
    def diff(self) -> str:
        """The changed lines, marked with `-` as recorded and `+` as now."""
        lines = difflib.unified_diff(self.expected.splitlines(), self.actual.splitlines(), lineterm="", n=2)
        shown = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        more = [f"… {len(shown) - _MAX_DIFF} more lines"] if len(shown) > _MAX_DIFF else []
        return "\n".join([*shown[:_MAX_DIFF], *more])

    def __str__(self) -> str:
        changed = self.diff
        return f"{self.where}: {self.summary} ({self.kind})" + (f"\n{changed}" if changed else "")


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay.

    Attributes:
        run_id: Id of the run.
        status: How the turn ends now: `done`, `failed` or `cancelled`.
        answer: Text of the answer; empty if there is none.
        output: Value of a structured answer; None if none was requested.
        error: Why the turn has no answer; None if it has one.
        rounds: Number of recorded replies that were used.
        difference: The first difference; None if there is none.
        differences: All differences, in the order in which they were found.
        not_compared: Parts that could not be compared, with the reason.
        requests: Current request of each round.
        texts: Contents that the requests refer to, by digest.
    """

    run_id: str
    status: RunStatus
    answer: str
    output: Any
    error: str | None
    rounds: int
    difference: Difference | None
    differences: tuple[Difference, ...]
    not_compared: tuple[str, ...]
    requests: tuple[RequestRecord | None, ...]
    texts: dict[str, str]

    @property
    def same(self) -> bool:
        """Whether all compared parts are as recorded."""
        return self.difference is None

    def check(self) -> "ReplayResult":
        """Return the result, or raise an AssertionError that names the first difference."""
        if self.difference is not None:
            raise AssertionError(f"the replay of run {self.run_id} differs in {self.difference}")
        return self


class RunComparison:
    """Compares a replayed turn with its record, and collects the differences."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.redact: Callable[[str], str] = str
        self.round = 0
        self.differences: list[Difference] = []
        self.replies = record.of_kind("reply")
        self._expected = record.requests
        self._actual: list[RequestRecord | None] = []
        self._texts: dict[str, str] = {}
        self._skipped: list[str] = []
        self._tail_text: dict[str, str] = {each.tail: each.text for each in self._expected if each and each.text}
        self.intents = {step.key: step.decode(ToolCall) for step in record.of_kind("intent")}
        self.outcomes = {step.key: step.decode(ToolResult) for step in record.of_kind("outcome")}

    def add(self, kind: Kind, where: str, summary: str, expected: object = "", actual: object = "") -> None:
        self.differences.append(Difference(kind, where, summary, _to_text(expected), _to_text(actual)))

    @property
    def where(self) -> str:
        return f"round {max(self.round, 1)}"

    def where_call(self, call: ToolCall) -> str:
        return f"{self.where}, call of {call.name}"

    def expected_request(self) -> RequestRecord | None:
        return self._expected[self.round - 1] if 0 < self.round <= len(self._expected) else None

    def request(self, sent: SentRequest | None) -> None:
        """Compare the request of the current round."""
        expected = self.expected_request()
        if sent is None:
            self._actual.append(None)
            if expected is not None:
                self.add("request", self.where, "a hook answers instead of the model")
            return
        contents = RequestContents(sent, self.redact)
        previous = next((each.tail for each in reversed(self._actual) if each is not None), "")
        actual = contents.record(previous)
        if expected is not None:  # these come from the record
            actual = msgspec.structs.replace(actual, metadata=expected.metadata, failed=expected.failed)
        self._actual.append(actual)
        self._texts |= contents.texts
        self._texts |= {key: contents.tool(name) for name, key in contents.outline.tools}
        if expected is not None:
            if actual.outline != expected.outline:
                self._compare_outlines(expected, contents)
            if actual.tail != expected.tail:
                recorded = self._tail_text.get(expected.tail, "")
                self.add("request", self.where, "the system prompt has changed", recorded, contents.tail)
            if actual.messages != expected.messages:
                self._compare_messages(expected, sent.request.messages)

    def _compare_outlines(self, expected: RequestRecord, contents: RequestContents) -> None:
        texts, where = self.record.texts, self.where
        if expected.outline not in texts:
            self.add("request", where, "the prompt, the tools or the settings have changed; their texts are not stored")
            return
        before, now = msgspec.json.decode(texts[expected.outline], type=RequestOutline), contents.outline
        if before.system != now.system:
            self.add("request", where, "the system prompt has changed", texts.get(before.system, ""), contents.system)
        if before.tools != now.tools:
            self._compare_tools(dict(before.tools), contents)
        if before.tool_choice != now.tool_choice:
            self.add("request", where, "the tool choice has changed", before.tool_choice, now.tool_choice)
        if before.settings != now.settings:
            self.add("request", where, "the model settings have changed", before.settings, now.settings)
        if before.output != now.output:
            self.add("request", where, "the output schema has changed", texts.get(before.output, ""), contents.output)

    def _compare_tools(self, before: dict[str, str], contents: RequestContents) -> None:
        now, texts, where = dict(contents.outline.tools), self.record.texts, self.where
        for name in [name for name in before if name not in now]:
            self.add("request", where, f"the tool {name!r} is missing", texts.get(before[name], ""))
        for name in [name for name in now if name not in before]:
            self.add("request", where, f"the tool {name!r} is new", "", contents.tool(name))
        for name in [name for name in before if name in now and before[name] != now[name]]:
            recorded, current = texts.get(before[name], ""), contents.tool(name)
            self.add("request", where, _describe_tool_change(name, recorded, current), recorded, current)
        if before.keys() == now.keys() and [*before] != [*now]:
            self.add("request", where, "the order of the tools has changed", "\n".join(before), "\n".join(now))

    def _compare_messages(self, expected: RequestRecord, actual: Sequence[Message]) -> None:
        """Show how the messages differ, if the sent messages are those of the session."""
        reply = self.replies[self.round - 1].decode(Message).id
        before = [Message.from_json(bytes(body)) for body in self.record.history]
        for body in self.record.messages:
            message = Message.from_json(bytes(body))
            if message.id == reply:
                break
            before.append(message)
        if messages_digest(before) == expected.messages:
            changed = (_transcript(before), _transcript(actual))
        else:
            changed = (f"{expected.count} messages", f"{len(actual)} messages")
        self.add("request", self.where, "the messages that the model is sent have changed", *changed)

    def decision(self, decision: Approved | Rejected) -> ToolResult | None:
        """Compare the decision about a call; return its recorded result, or None if the checks refuse it."""
        call, where = decision.call, self.where_call(decision.call)
        recorded, intent = self.outcomes.get(call.id), self.intents.get(call.id)
        refused = intent is None and (recorded is None or recorded.error in _REFUSALS)
        if isinstance(decision, Rejected):
            if decision.error is not None and intent is not None:
                kind, summary = _describe_refusal(decision.error)
                self.add(kind, where, summary, self._recorded_verdict(call), str(decision.error))
            return None if decision.error is not None and refused else recorded or not_recorded(call)
        if refused and recorded is not None and self.record.status != "cancelled":
            summary = "the call was refused, and is allowed now"
            self.add("policy verdict", where, summary, recorded.result, _describe_verdict(decision.verdict))
        else:
            self._compare_verdict(decision, where)
        if intent is not None and intent.arguments != call.arguments:
            summary = "the tool is called with other arguments"
            self.add("arguments", where, summary, intent.arguments, call.arguments)
        return recorded or not_recorded(call)

    def _compare_verdict(self, decision: Approved, where: str) -> None:
        meta, call = self.record.verdicts.get(decision.call.id, {}), decision.call
        if meta.get("verdict") not in (None, decision.verdict.cell):
            now = _describe_verdict(decision.verdict)
            self.add("policy verdict", where, "the policy decides differently", self._recorded_verdict(call), now)
        elif meta.get("approval") and not decision.binding:
            self.add("policy verdict", where, "the call needed an approval, and needs none now")

    def _recorded_verdict(self, call: ToolCall) -> str:
        meta = self.record.verdicts.get(call.id)
        return f"{meta.get('verdict')}: {meta.get('rule')}" if meta else "allowed"

    def refusal(self, call: ToolCall, result: ToolResult) -> None:
        """Compare the result of a call that the checks refused."""
        recorded = self.outcomes.get(call.id)
        if recorded is None:
            self.add("output", self.where_call(call), "the call is not in the record", "", result.result)
        elif (recorded.status, recorded.error, recorded.result) != (result.status, result.error, result.result):
            self.add("output", self.where_call(call), "the call is refused differently", recorded.result, result.result)

    def question(self, question: Question, asked: Question | None) -> None:
        """Compare an approval request."""
        call = ToolCall(question.call_id, question.tool, question.arguments)
        if asked is None:
            reason = question.reason or "the tool requires it"
            self.add("policy verdict", self.where_call(call), "the call needs an approval, and needed none", "", reason)
        elif asked.arguments != question.arguments:
            summary = "a person is asked to approve other arguments"
            before, now = asked.arguments, question.arguments
            self.add("arguments", self.where_call(call), summary, before, now)

    @property
    def answering_model(self) -> str:
        """The model that gave the reply of the current round, after the attempts that failed."""
        return str(self.replies[self.round - 1].decode(Message).metadata.get("provider") or "")

    def attempts(self, failed: Sequence[FailedAttempt], problem: str) -> None:
        """Add a difference in the handling of failed requests to models."""
        number = self.round if self._actual and len(self._actual) == self.round else self.round + 1
        summary = f"after {'a failed attempt' if len(failed) == 1 else 'failed attempts'}, the turn goes on differently"
        self.add("request", f"round {number}", summary, "\n".join([str(each) for each in failed]), problem)

    def skip_attempts(self, failed: Sequence[FailedAttempt]) -> None:
        """Note failed requests to models that the agent does not have now."""
        if failed:
            self._skipped.append(f"failed attempts of {self.where}: the agent has other models now")

    def extra_request(self) -> None:
        """Add a difference: the model is asked more often than recorded."""
        summary = f"the model is asked again, after all {len(self.replies)} recorded replies were used"
        self.add("output", f"round {self.round + 1}", summary)

    def end(self, status: RunStatus, failure: BaseException | None) -> None:
        """Compare how the turn ended."""
        recorded = self.record.end
        if self.round < len(self.replies):
            summary = f"the turn ends after {self.round} of {len(self.replies)} recorded replies"
            self.add("output", self.where, summary, f"{recorded.status}", f"{status}: {failure or 'done'}")
        elif status != recorded.status or (status == "failed" and str(failure) != recorded.error):
            before = f"{recorded.status}{f': {recorded.error}' if recorded.error else ''}"
            now = f"{status}{f': {failure}' if status == 'failed' else ''}"
            self.add("output", self.where, "the turn ends differently", before, now)

    @property
    def _not_compared(self) -> Generator[str]:
        if any(each is None for each in self._expected) and self._actual:
            missing = [str(number) for number, each in enumerate(self._expected, 1) if each is None]
            rounds = f"round{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
            yield f"requests of {rounds}: a hook gave these replies without a request"
        if self.outcomes.keys() - self.record.verdicts.keys():
            yield "policy verdicts: the audit log has no rows of the run's calls"
        yield from self._skipped

    def result(
        self, status: RunStatus, message: Message | None, output: Any, failure: BaseException | None
    ) -> ReplayResult:
        return ReplayResult(
            run_id=self.record.id,
            status=status,
            answer=message.text if message is not None else "",
            output=output,
            error=str(failure or "the turn was cancelled") if message is None else None,
            rounds=self.round,
            difference=self.differences[0] if self.differences else None,
            differences=tuple(self.differences),
            not_compared=tuple(self._not_compared),
            requests=tuple(self._actual),
            texts=self._texts,
        )


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else _pretty(value)


def _pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2).decode()


def _transcript(messages: Sequence[Message]) -> str:
    return "\n".join([f"{each.role}: {each.text or _pretty(each.parts)}" for each in messages])


def _describe_tool_change(name: str, before: str, now: str) -> str:
    if not before:
        return f"the tool {name!r} has changed"
    old, new = msgspec.json.decode(before), msgspec.json.decode(now)
    changed = [field for field in ("description", "parameters") if old[field] != new[field]]
    verb = "has" if changed == ["description"] else "have"
    return f"the {' and the '.join(changed)} of the tool {name!r} {verb} changed"


def _describe_refusal(error: Exception) -> tuple[Kind, str]:
    if isinstance(error, ToolNotFound):
        return "policy verdict", "the tool was called, and does not exist any more"
    if isinstance(error, BadArguments):
        return "arguments", "the tool was called, and does not accept these arguments any more"
    return "policy verdict", "the call was allowed, and is refused now"


def _describe_verdict(verdict: Verdict) -> str:
    return f"{verdict.cell}: {verdict.rule}"


def not_recorded(call: ToolCall) -> ToolResult:
    """Return the error result for a call that is not in the record, and that is not run."""
    return ToolResult(call.id, "error", "The call is not in the record. It was not run.", "failed")
