"""Methods `chat.*`, `approvals.*`, `exec.*` and `runs.*`: turns, their approvals and their recorded steps."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any, cast

import msgspec

from atlas_agents.agents.history import PINNED
from atlas_agents.agents.options import TurnOptions
from atlas_agents.core.aio import TimeSlices
from atlas_agents.core.approvals import Answer, Question
from atlas_agents.core.budgets import Budget
from atlas_agents.core.errors import BadArguments, BadTool, ConfigError, Conflict, NotFound
from atlas_agents.core.events import Usage
from atlas_agents.core.messages import TIMING, UNTRUSTED, Message, Text, user
from atlas_agents.core.store import JournalKind, JournalRow, RunRow
from atlas_agents.core.telemetry import read_trace_context
from atlas_agents.core.text import one_line
from atlas_agents.gateway import convert
from atlas_agents.gateway.connection import ClientConnection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol import chat as wire
from atlas_agents.gateway.protocol.frames import ProtocolError, not_found
from atlas_agents.gateway.protocol.sessions import (
    ApprovalOutcome,
    ApprovalsResolve,
    ApprovalsResolved,
    ApprovalsResolveMany,
    ApprovalsResult,
    ExecAnswer,
)
from atlas_agents.gateway.protocol.types import Ack, NoParams
from atlas_agents.gateway.runs import read_outcomes
from atlas_agents.providers.settings import ModelSettings
from atlas_agents.tools.client_tools import ClientResult, ClientTools
from atlas_agents.tools.journal import read_answering_run

_PAGE = 500
_SESSIONS = 100
_questions = msgspec.json.Decoder(Question)


class _Reply(msgspec.Struct, frozen=True):
    """A recorded reply, decoded only as far as needed to find it in its session."""

    id: str


def add_methods(methods: Methods) -> None:
    methods.add("chat.send", send_message)
    methods.add("chat.postResults", post_results)
    methods.add("chat.abort", abort_runs)
    methods.add("chat.history", get_history)
    methods.add("chat.wait", wait_for_run)
    methods.add("approvals.list", list_approvals)
    methods.add("approvals.resolve", resolve_approval)
    methods.add("approvals.resolveMany", resolve_approvals)
    methods.add("exec.approve", approve)
    methods.add("exec.deny", deny)
    methods.add("runs.list", list_runs)
    methods.add("runs.get", get_run)


async def send_message(caller: ClientConnection, params: wire.ChatSend) -> wire.Sent:
    """Start a turn and acknowledge it once it is stored. The answer follows as events to the session's subscribers.

    For a repeated idempotency key, a connection that has received nothing of the run receives all its events.
    """
    hub, session = caller.hub, caller.grant.prefix + params.session_key
    agent = await hub.resolve_agent(session, params.agent_id)
    if params.model is not None:
        hub.check_model(caller.grant, params.model, "chat.send: model")
    accepted, _ = await hub.submit_turn(
        agent,
        _build_message(params),
        session=session,
        user=caller.grant.principal.id,
        options=TurnOptions(
            model=params.model or "",
            mode=params.mode or "",
            requested=_read_settings(caller, params),
            when_busy=params.when_busy or "queue",
            idempotency_key=params.idempotency_key or "",
            budget=_read_budget(params.budget),
            client_tools=_read_client_tools(hub, params.client_tools),
            traceparent=read_trace_context(params.traceparent, params.tracestate) or msgspec.UNSET,
        ),
    )
    if caller.grant.allows("read"):
        await caller.receive_run(session, accepted.run_id, new=accepted.status in ("started", "queued"))
    if params.on_disconnect == "cancel":
        caller.on_close.add(partial(_cancel_run, hub, accepted.run_id))
    return wire.Sent(accepted.run_id, accepted.status if caller.full else None)


async def post_results(caller: ClientConnection, params: wire.PostResults) -> Ack:
    """Post results of tools that the client ran. The turn continues once all calls of its last reply have one."""
    results = [ClientResult(each.call_id, each.result, each.error) for each in params.results]
    try:
        await caller.hub.atlas.post_results(results, user=caller.grant.principal.id)
    except NotFound as error:
        raise ProtocolError("INVALID_PARAMS", f"chat.postResults: {error}") from None
    except Conflict as error:
        raise ProtocolError("CONFLICT", f"chat.postResults: {error}") from None
    return Ack(True)


def _cancel_run(hub: Hub, run_id: str) -> None:
    stream = hub.atlas.stream(run_id)
    if stream is not None:
        stream.cancel()


async def abort_runs(caller: ClientConnection, params: wire.ChatAbort) -> wire.Aborted:
    """Cancel a run, or all running and queued runs of a session."""
    atlas = caller.hub.atlas
    if params.run_id is not None:
        ids = [(await _require_run(caller, params.run_id)).id]
    elif params.session_key is not None:
        session = caller.grant.prefix + params.session_key
        ids = [row.id for row in await caller.hub.store.runs(atlas.tenant, session, open_only=True)]
    else:
        raise ProtocolError("INVALID_PARAMS", "chat.abort: expected a runId or a sessionKey")
    return wire.Aborted(tuple([id for id in ids if await atlas.cancel(id)]))


async def get_history(caller: ClientConnection, params: wire.ChatHistory) -> wire.ChatHistoryPage:
    """Return the last messages, or those before a given one."""
    sessions, key = caller.hub.atlas.sessions, caller.grant.prefix + params.session_key
    try:
        before = params.before
        if isinstance(before, str):
            before = await _find_seq(caller, key, before)
        rows = await sessions.messages(key, before=before, limit=params.limit + 1, last=True)
    except NotFound:
        raise not_found("SESSION") from None
    shown = convert.fit_in_frame(rows, params.limit)
    hub = caller.hub
    outcomes = await read_outcomes(hub.store, hub.atlas.tenant, shown, hub.atlas.hide)
    return wire.ChatHistoryPage(tuple(map(convert.stored_message_shape, shown)), len(rows) > len(shown), outcomes)


async def _find_seq(caller: ClientConnection, key: str, message_id: str) -> int:
    """Return the sequence number of a message in its session."""
    await caller.hub.atlas.sessions.get(key)
    found = await caller.hub.store.message(caller.hub.atlas.tenant, key, message_id)
    if found is None:
        raise ProtocolError("INVALID_PARAMS", f"chat.history: unknown message {message_id!r}")
    return found.seq


async def wait_for_run(caller: ClientConnection, params: wire.ChatWait) -> wire.Waited:
    """Return the status of a run once it has ended or the timeout has passed."""
    row = await _require_run(caller, params.run_id)
    try:
        async with asyncio.timeout(params.timeout_ms / 1000):
            row = await _wait_ended(caller, row)
            answering = await read_answering_run(caller.hub.store, row)
            row = row if answering.id == row.id else await _wait_ended(caller, answering)
    except TimeoutError:
        row = await read_answering_run(caller.hub.store, await _require_run(caller, params.run_id))
    if row.status != "done":
        return wire.Waited(row.status, error=caller.hub.atlas.hide(row.error) if row.error else None)
    reply = await _find_reply(caller.hub, row)
    return wire.Waited(row.status, convert.message_shape(reply, row.id) if reply is not None else None)


async def _wait_ended(caller: ClientConnection, row: RunRow) -> RunRow:
    """Wait until a run has ended and return its row."""
    await caller.hub.runs.follow_remote([row])
    await caller.hub.runs.wait_ended(row.id)
    return await _require_run(caller, row.id)


async def _find_reply(hub: Hub, row: RunRow) -> Message | None:
    """Return the last reply of a run. Without its journal, it is searched from the end of the session."""
    steps = await hub.store.journal(hub.atlas.tenant, row.id)
    recorded = next((step.payload for step in reversed(steps) if step.kind == "reply"), None)
    if recorded is not None:
        with suppress(msgspec.DecodeError):
            id = msgspec.json.decode(recorded, type=_Reply).id
            found = await hub.store.message(hub.atlas.tenant, row.session, id)
            if found is not None and found.run_id == row.id:
                return found.message
    before: int | None = None
    while rows := await hub.store.messages(hub.atlas.tenant, row.session, before=before, limit=_PAGE, last=True):
        for each in reversed(rows):
            if each.run_id == row.id and (message := each.message).role == "assistant":
                return message
        before = rows[0].seq
    return None


async def _require_run(caller: ClientConnection, run_id: str) -> RunRow:
    """Return a run that the caller may access; raise 'not found' otherwise."""
    row = await caller.hub.store.run(caller.hub.atlas.tenant, run_id)
    if row is None or not row.session.startswith(caller.grant.prefix):
        raise not_found("RUN")
    return row


def _read_settings(caller: ClientConnection, params: wire.ChatSend) -> ModelSettings | None:
    """Return the model settings that a client requests; without the scope `admin`, not a more expensive tier."""
    if params.settings is None:
        return None
    if problem := caller.grant.check_service_tier(params.settings.service_tier):
        raise ProtocolError("FORBIDDEN", f"chat.send: settings.serviceTier: {problem}")
    return ModelSettings(**msgspec.structs.asdict(params.settings))


def _read_budget(limits: wire.TurnLimits | None) -> tuple[Budget, ...] | msgspec.UnsetType:
    """Return the budget that a client sets for its turn. It can only tighten the budgets that apply anyway."""
    if limits is None:
        return msgspec.UNSET
    try:
        return (Budget(**msgspec.structs.asdict(limits)),)
    except ConfigError as error:
        raise ProtocolError("INVALID_PARAMS", f"chat.send: budget: {error}") from None


def _read_client_tools(hub: Hub, given: wire.ClientToolsShape | None) -> ClientTools | msgspec.UnsetType:
    """Return the tools that the client runs; None if it offers none."""
    if given is None:
        return msgspec.UNSET
    offer = msgspec.convert(given, ClientTools, from_attributes=True)
    try:
        hub.atlas.check_client_tools(offer)
    except BadTool as error:
        raise ProtocolError("INVALID_PARAMS", f"chat.send: clientTools: {error}") from None
    return offer


def _build_message(params: wire.ChatSend) -> Message:
    content = params.message
    parts = [Text(content)] if isinstance(content, str) else [convert.core_part(part) for part in content]
    metadata: dict[str, Any] = {UNTRUSTED: [one_line(params.untrusted, 200)]} if params.untrusted else {}
    if params.pinned:
        metadata[PINNED] = True
    if params.channel:
        metadata["channel"] = params.channel
    message = user(*parts, *(convert.core_part(part) for part in params.attachments or ()), **metadata)
    if not message.parts:
        raise ProtocolError("INVALID_PARAMS", "chat.send: the message is empty")
    return message


async def list_approvals(caller: ClientConnection, _: NoParams) -> ApprovalsResult:
    """List the pending approvals of the caller's sessions, oldest first."""
    prefix = caller.grant.prefix
    found = [each for each in await caller.hub.atlas.pending() if each.session.startswith(prefix)]
    return ApprovalsResult(tuple([convert.approval_shape(each, each.session.removeprefix(prefix)) for each in found]))


async def resolve_approval(caller: ClientConnection, params: ApprovalsResolve) -> Ack:
    """Resolve an approval, once. Requires a token with the scope `approve`; agents have none."""
    hub, question = caller.hub, await _require_question(caller, params.approval_id)
    if params.digest is not None and params.digest != convert.approval_digest(question):
        raise ProtocolError("CONFLICT", "the request differs from what you saw: read it again; nothing was resolved")
    answer = Answer(convert.ANSWERS[params.decision], params.arguments, caller.grant.principal.id, params.reason)
    try:
        await hub.atlas.answer(params.approval_id, answer)
    except NotFound:
        raise not_found("APPROVAL") from None
    except Conflict as error:
        raise ProtocolError("APPROVAL_NOT_FOUND", f"already resolved: {error}") from None
    return Ack(True)


async def _require_question(caller: ClientConnection, approval_id: str) -> Question:
    """Return the question of an approval that the caller may access; raise 'not found' otherwise."""
    row = await caller.hub.store.approval(caller.hub.atlas.tenant, approval_id)
    if row is None or not row.session.startswith(caller.grant.prefix):
        raise not_found("APPROVAL")
    return _questions.decode(row.question)


async def resolve_approvals(caller: ClientConnection, params: ApprovalsResolveMany) -> ApprovalsResolved:
    """Resolve several approvals that a person saw. Each is resolved or not on its own, and has its own audit row."""
    outcomes: list[ApprovalOutcome] = []
    for each in params.approvals:
        one = ApprovalsResolve(each.approval_id, params.decision, params.reason, digest=each.digest)
        try:
            if params.decision != "deny" and (await _require_question(caller, each.approval_id)).form is not None:
                raise ProtocolError("INVALID_PARAMS", "a form is filled in on its own: use approvals.resolve")
            await resolve_approval(caller, one)
            outcomes.append(ApprovalOutcome(each.approval_id, ok=True))
        except (ProtocolError, BadArguments) as error:
            kind = error.kind if isinstance(error, ProtocolError) else "INVALID_PARAMS"
            outcomes.append(ApprovalOutcome(each.approval_id, ok=False, error=str(error), kind=kind))
    return ApprovalsResolved(tuple(outcomes))


async def approve(caller: ClientConnection, params: ExecAnswer) -> Ack:
    return await resolve_approval(caller, ApprovalsResolve(params.approval_id, "allow-once", params.reason))


async def deny(caller: ClientConnection, params: ExecAnswer) -> Ack:
    return await resolve_approval(caller, ApprovalsResolve(params.approval_id, "deny", params.reason))


async def list_runs(caller: ClientConnection, params: wire.RunsList) -> wire.RunsResult:
    """List runs, latest first; without a session key, the runs of the sessions that changed last."""
    hub, prefix = caller.hub, caller.grant.prefix
    if params.session_key is not None:
        changed = {prefix + params.session_key: 0}
    else:
        listed = await hub.atlas.sessions.list(limit=_SESSIONS, prefix=prefix)
        changed = {each.key: each.updated_at for each in listed}
    rows: list[RunRow] = []
    for key, updated_at in changed.items():
        if len(rows) == params.limit and rows[-1].created_at >= updated_at:
            break  # this session, and those that follow, have no later runs
        rows += await hub.store.runs(hub.atlas.tenant, key, last=params.limit)
        rows = sorted(rows, key=lambda row: row.created_at, reverse=True)[: params.limit]
    return wire.RunsResult(tuple([_run_shape(row, prefix) for row in rows]))


async def get_run(caller: ClientConnection, params: wire.OneRun) -> wire.RunDetails:
    row = await _require_run(caller, params.run_id)
    journal = await caller.hub.store.journal(caller.hub.atlas.tenant, row.id)
    steps, slices = list[wire.RunStep](), TimeSlices()
    for each in journal:
        steps.append(_step_shape(each))
        await slices.pause()
    return wire.RunDetails(_run_shape(row, caller.grant.prefix), tuple(steps))


def _run_shape(row: RunRow, prefix: str) -> wire.RunShape:
    return wire.RunShape(
        run_id=row.id,
        session_key=row.session.removeprefix(prefix),
        agent_id=row.agent_id,
        status=row.status,
        created_at=row.created_at,
        ended_at=row.ended_at,
        error=row.error,
        user=row.user,
    )


def _step_shape(row: JournalRow) -> wire.RunStep:
    """Convert a journal row without its content: messages are in the session, arguments in the audit log."""
    more: dict[str, Any]
    try:
        more = _step_details(row.kind, msgspec.json.decode(row.payload) if row.payload else None)
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        more = {"error": "this step cannot be read; run: atlas store check"}
    return wire.RunStep(row.seq, row.kind, row.key, row.at, **more)


def _step_details(kind: JournalKind, found: Any) -> dict[str, Any]:
    match kind:
        case "reply":
            metadata = found.get("metadata", {})
            timing: dict[str, int] = metadata.get(TIMING) or {}
            return {
                "name": str(metadata.get("model") or metadata.get("provider") or ""),
                "usage": convert.usage_shape(Usage.from_metadata(metadata)) if metadata.get("usage") else None,
                "status": str(metadata.get("stop_reason") or ""),
                "cost": metadata.get("cost"),
                "first_ms": timing.get("first"),
                "total_ms": timing.get("total"),
            }
        case "hook":
            *_, last = found["actions"]
            return {"name": last["hook"], "status": last["did"]}
        case "steer":
            return {"name": ", ".join(found["runs"])}
        case "intent":
            return {"name": found["name"], "call_id": found["id"]}
        case "outcome":
            result: Any = found.get("result")
            job = str(cast(dict[str, Any], result).get("job_id") or "") if isinstance(result, dict) else ""
            return {"call_id": found["call_id"], "status": found["status"], "error": found.get("error"), "job_id": job}
        case "asked":
            return {"name": found["tool"], "call_id": found["call_id"]}
        case "answered":
            decision = convert.DECISIONS[found["decision"]]
            return {"status": decision, "by": found.get("by", ""), "reason": found.get("reason", "")}
        case "ended":
            return {"status": found["status"], "error": found.get("error")}
        case _:
            return {}
