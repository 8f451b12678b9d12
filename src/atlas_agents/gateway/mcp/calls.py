"""Tool calls of MCP clients: progress, log messages, questions to the user (elicitation) and results."""

import asyncio
import base64
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import quote

import mcp_types as types
import msgspec
from mcp.server.connection import allowed_log_levels
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.options import TurnOptions
from atlas_agents.agents.run import describe_answer
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.approvals import Answer, Decision, Field, Question
from atlas_agents.core.errors import BadArguments, Cancelled, ConfigError, Conflict, NotFound
from atlas_agents.core.events import ApprovalAnswered, ApprovalAsked, Event, ToolCalled, ToolProgress
from atlas_agents.core.json import encode
from atlas_agents.core.messages import File, Image, Message, ToolResult, extract_images, new_id, user
from atlas_agents.core.store import OPEN, RunRow, RunStatus
from atlas_agents.core.telemetry import read_trace_context
from atlas_agents.core.text import wire_name
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.tools.schema import compile_check
from atlas_agents.tools.tool import Tool

logger = logging.getLogger(__name__)
RequestContext = ServerRequestContext[Any, Any]
Elicits: TypeAlias = Literal["", "request", "result"]
"""How a client's user is asked: not at all, by a request on the stream of the call, or by a result that the client
answers with a repeated call."""
_ASK = "ask_"
_PROGRESS_INTERVAL = 10.0
"""Seconds between progress notifications; many clients time out on a call without progress."""
TASK_PREFIX = "task:"
"""Prefix of the key of a call that is a task."""
_TASK_INTERVAL = 0.2
_POLL_INTERVAL = 2000
"""Polling interval in milliseconds that is suggested to clients of tasks."""
_MAX_TRIES = 3
"""Maximum number of times a client is asked the same question after invalid answers; then it stays open elsewhere."""
_MAX_SHOWN = 4000
_MAX_DEPTH = 20
_MAX_FILES = 20
_TITLED_ENUMS = "2025-11-25"
"""First protocol version with titles of choices and with several choices."""
_FORMATS = ("email", "uri", "date", "date-time")
_DECISIONS: dict[Decision, str] = {
    "once": "Allow once",
    "session": "Allow in this conversation",
    "always": "Always allow exactly this call",
    "no": "Deny",
}
_ASK_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "The message to the agent."},
        "session": {
            "type": "string",
            "description": "A name for the conversation, to continue it later; without one, each question stands "
            "alone.",
            "maxLength": 100,
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}


class McpTool(msgspec.Struct, frozen=True):
    """A tool as an MCP client sees it. The hints say what a call may do; clients decide with them when to ask."""

    name: str
    title: str
    description: str
    parameters: dict[str, Any]
    result: dict[str, Any] | None = None
    """JSON schema of the results, if they have one."""
    read_only: bool = False
    """Whether calls change nothing. Other tools count as destructive and not idempotent."""
    open_world: bool | None = None
    """Whether calls reach people or systems outside; None if unknown."""


class ToolOutcome(msgspec.Struct, frozen=True):
    """The result of a call."""

    text: str
    structure: dict[str, Any] | None = None
    failed: bool = False
    media: tuple[Image | File, ...] = ()

    @property
    def content(self) -> list[types.ContentBlock]:
        """The text, and the images, audio and files beside it."""
        return [types.TextContent(text=self.text), *(_to_content(each) for each in self.media)]


class InputNeeded(msgspec.Struct, frozen=True):
    """A call that waits for answers. It continues when the client repeats the call with them under the same key."""

    key: str
    questions: tuple[Question, ...]
    problems: dict[str, str]
    """Problems with the last answers, by the ids of the questions."""


class CallClient:
    """The client of a call: it receives progress and log messages, and its user can be asked."""

    def __init__(self, ctx: RequestContext, level: types.LoggingLevel | None, gone: asyncio.Event) -> None:
        self._ctx = ctx
        self.gone = gone
        """Set when the client has closed the connection of the call."""
        meta = ctx.meta or {}
        self.trace_context = read_trace_context(meta.get("traceparent"), meta.get("tracestate"))
        self._is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        levels = allowed_log_levels(ctx.protocol_version, ctx.meta)
        self._levels = levels if self._is_modern else _levels_from(level)
        declared = ctx.session.client_capabilities
        self._elicitation = declared.elicitation if declared is not None else None

    def elicits(self, question: Question) -> Elicits:
        """Return the way in which the client can be asked a question."""
        found, form = self._elicitation, question.form
        if found is None or not (self._is_modern or self._ctx.session.can_send_request):
            return ""
        if form is not None and form.url:
            supported = found.url is not None
        else:
            supported = found.form is not None or found.url is None
        if form is not None and self._ctx.protocol_version < _TITLED_ENUMS:
            supported = supported and all(field.kind != "choices" for field in form.fields)
        return ("result" if self._is_modern else "request") if supported else ""

    def elicitation(self, question: Question, problem: str = "") -> types.ElicitRequest:
        """Return the elicitation request for a question; `problem` describes an invalid last answer."""
        return _to_elicitation(question, problem, titled=self._ctx.protocol_version >= _TITLED_ENUMS)

    async def elicit(self, question: Question, problem: str) -> types.ElicitResult:
        """Ask on the stream of the call, and wait for the answer."""
        return await self._ctx.session.send_request(
            self.elicitation(question, problem),
            types.ElicitResult,
            metadata=ServerMessageMetadata(related_request_id=self._ctx.request_id),
        )

    async def report(self, step: int, text: str) -> None:
        """Send a progress notification, if the client requested them."""
        await self._ctx.session.report_progress(float(step), None, text)

    async def log(self, level: types.LoggingLevel, source: str, text: str) -> None:
        """Send a log message, if the client wants those of this level."""
        if level in self._levels:
            params = types.LoggingMessageNotificationParams(level=level, logger=source, data=text)
            message = types.LoggingMessageNotification(params=params)
            await self._ctx.session.send_notification(message, self._ctx.request_id)


class McpCall:
    """One tool call of a client. If the client cancels the request or disconnects, the call is cancelled too.

    With a `key`, a repeated call continues the first one instead of starting another.
    """

    def __init__(self, hub: Hub, grant: Grant, client: CallClient, key: str = "") -> None:
        self._hub = hub
        self._grant = grant
        self._client = client
        self._key = key or new_id()
        self._steps = 0
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._problems: dict[str, str] = {}

    async def run(
        self, agent: Agent, name: str, arguments: dict[str, Any], answers: Mapping[str, types.ElicitResult]
    ) -> ToolOutcome | InputNeeded:
        """Call a tool of the agent by its wire name, or ask an agent; `answers` are those to its questions by id."""
        try:
            stream = await self._start(agent, name, arguments)
            await self._give_answers(stream, answers)
            if questions := await self._follow(stream):
                return InputNeeded(self._key, questions, self._problems)
            return _read_reply(agent, name, await stream.reply())
        except (ProtocolError, Cancelled) as fault:
            return ToolOutcome(str(fault), failed=True)

    async def start_task(self, agent: Agent, name: str, arguments: dict[str, Any]) -> RunRow:
        """Start a call that goes on without its client, and return its stored run, which is the task."""
        self._key = TASK_PREFIX + self._key
        accepted = await (await self._start(agent, name, arguments)).accepted()
        return await find_task(self._hub, self._grant, accepted.run_id)

    async def finish_task(self, row: RunRow) -> ToolOutcome:
        """Wait until a task has ended, asking its questions, and return its result. It goes on if the client leaves."""
        atlas, store = self._hub.atlas, self._hub.store
        while row.status in OPEN:
            stream = await atlas.follow(row.id)
            if stream is not None:
                await self._follow(stream, cancels=False)
            else:
                await asyncio.sleep(_TASK_INTERVAL)  # it ended just now, or another process is about to resume it
            row = await find_task(self._hub, self._grant, row.id)
        if row.status != "done":
            return ToolOutcome("the call was cancelled" if row.status == "cancelled" else row.error or "", failed=True)
        messages = [each.message for each in await store.messages(atlas.tenant, row.session) if each.run_id == row.id]
        if not messages:
            return ToolOutcome("the result was deleted", failed=True)
        agent, calls = self._hub.agent(row.agent_id), [call.name for each in messages for call in each.tool_calls]
        return _read_reply(agent, calls[-1] if calls else "", messages[-1])

    async def _start(self, agent: Agent, name: str, arguments: dict[str, Any]) -> AtlasStream:
        if name not in agent.context.tool_map():
            target = next((each for each in self._hub.atlas.agents if _ask_tool_name(each) == name), None)
            if target is not None:
                return await self._start_turn(target, arguments)
        return await self._hub.call_tool(
            self._grant, agent, name, arguments, idempotency_key=self._key, trace_context=self._client.trace_context
        )

    async def _start_turn(self, agent: Agent, arguments: dict[str, Any]) -> AtlasStream:
        message, name = arguments.get("message"), arguments.get("session") or f"mcp-{self._key}"
        if not isinstance(message, str) or not message.strip() or not isinstance(name, str) or len(name) > 100:
            raise BadArguments("expected 'message' to be a text and 'session' a short name")
        _, stream = await self._hub.submit_turn(
            agent,
            user(message),
            session=self._grant.prefix + name,
            user=self._grant.principal.id,
            options=TurnOptions(
                idempotency_key=f"mcp:{self._key}", traceparent=self._client.trace_context or msgspec.UNSET
            ),
        )
        return stream

    async def _follow(self, stream: AtlasStream, *, cancels: bool = True) -> tuple[Question, ...]:
        """Report progress until the call ends, or until its client must answer questions, which are returned.

        Unless it is a task, the call is cancelled if the client disconnects or its token is revoked.
        """
        status = "working"
        try:
            async with aclosing(_with_timeouts(stream, self._client.gone)) as events:
                async for event in events:
                    if not self._hub.is_authorized(self._grant):
                        raise ConfigError("the token was revoked: connect with a valid one")
                    if isinstance(event, ApprovalAsked | ApprovalAnswered) and (found := await self._ask(event)):
                        return found
                    if event is not None:
                        status = await self._log(event) or status
                    if event is None or _describe_event(event):
                        self._steps += 1
                        await self._client.report(self._steps, status)
        except BaseException:
            if cancels:
                stream.cancel()
            raise
        finally:
            for task in self._asking.values():
                task.cancel()
            await asyncio.gather(*self._asking.values(), return_exceptions=True)
        return ()

    async def _log(self, event: Event) -> str:
        """Send an event as a log message and return its text; empty for most events."""
        if found := _describe_event(event):
            level, source, text = found
            await self._client.log(level, source, text)
            return text
        return ""

    async def _ask(self, event: ApprovalAsked | ApprovalAnswered) -> tuple[Question, ...]:
        """Ask the client a new question, or end one that was answered elsewhere.

        Returns the open questions of the turn if the client answers them with a repeated call.
        """
        if isinstance(event, ApprovalAnswered):
            if task := self._asking.get(event.approval_id):
                task.cancel()
            return ()
        how = self._client.elicits(event.question) if self._may_answer(event.question) else ""
        if how == "request":
            self._asking[event.question.id] = asyncio.create_task(self._elicit(event.question))
        return await self._open_questions(event.question.run_id) if how == "result" else ()

    def _may_answer(self, question: Question) -> bool:
        """Return whether the client's user may answer: with the scope `approve`, and not alone if two must agree."""
        allowed = self._hub.atlas.can_approve(question, self._grant.principal.id)
        return self._grant.allows("approve") and allowed

    async def _open_questions(self, run_id: str) -> tuple[Question, ...]:
        pending = [each for each in await self._hub.atlas.pending() if each.run_id == run_id]
        return tuple([each for each in pending if self._may_answer(each) and self._client.elicits(each)])

    async def _elicit(self, question: Question) -> None:
        """Ask until the answer is valid. A client that fails to ask leaves the question to the web UI."""
        problem = ""
        for _ in range(_MAX_TRIES):
            try:
                given = await self._client.elicit(question, problem)
            except (MCPError, ValidationError) as error:
                logger.info("MCP client did not ask its user: tool=%s error=%s", question.tool, error)
                return
            problem = await self._answer(question, given)
            if not problem:
                return

    async def _give_answers(self, stream: AtlasStream, answers: Mapping[str, types.ElicitResult]) -> None:
        """Resolve the questions that a repeated call answers; invalid and missing answers are asked for again."""
        if answers:
            run_id = (await stream.accepted()).run_id
            for question in await self._open_questions(run_id):
                if question.id in answers:
                    self._problems[question.id] = await self._answer(question, answers[question.id])

    async def _answer(self, question: Question, given: types.ElicitResult) -> str:
        """Resolve a question and return the problem with the answer; empty if it is valid."""
        by, values = self._grant.principal.id, {k: v for k, v in (given.content or {}).items() if v is not None}
        answer = Answer("no" if given.action == "decline" else "dismiss", by=by)
        if given.action == "accept" and question.form is not None:
            answer = Answer("once", values, by=by)
        elif given.action == "accept":
            options: dict[Any, Decision] = {each: each for each in _decisions(question)}
            decision = options.get(values.get("decision"))
            if decision is None:
                return f"expected 'decision' to be one of {', '.join(options)}"
            answer = Answer(decision, by=by)
        try:
            await self._hub.atlas.answer(question.id, answer)
        except BadArguments as error:
            return str(error)
        except (Conflict, NotFound):
            logger.debug("question was answered elsewhere: id=%s", question.id)
        return ""


async def find_task(hub: Hub, grant: Grant, id: str) -> RunRow:
    """Return the run of a task of this user; NotFound if there is none, also if it is of another user."""
    row = await hub.store.run(hub.atlas.tenant, id)
    if row is None or TASK_PREFIX not in row.idempotency_key:
        raise NotFound(f"not found: task {id[:80]!r}")
    if row.user != grant.principal.id or not row.session.startswith(grant.prefix):
        raise NotFound(f"not found: task {id[:80]!r}")
    return row


async def describe_task(hub: Hub, row: RunRow) -> types.Task:
    """Return the state of a task. It is kept as long as the session of its run, whatever the client asked for."""
    ended: dict[RunStatus, types.TaskStatus] = {"done": "completed", "failed": "failed", "cancelled": "cancelled"}
    waits = row.status in OPEN and any(each.run_id == row.id for each in await hub.atlas.pending())
    changed = row.ended_at or row.created_at
    return types.Task(
        task_id=row.id,
        status="input_required" if waits else ended.get(row.status, "working"),
        status_message=row.error,
        created_at=_to_iso(row.created_at),
        last_updated_at=_to_iso(changed),
        ttl=None,
        poll_interval=_POLL_INTERVAL,
    )


def _to_iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def list_tools(hub: Hub, agent: Agent, grant: Grant) -> list[McpTool]:
    """Return the agent's tools that this user may call, and a tool to ask each agent."""
    allowed = [tool for tool in agent.tools if hub.atlas.verdict(agent, tool, grant.principal.id).cell != "no"]
    found = [_describe_tool(tool) for tool in allowed]
    names = {each.name for each in found}
    ask_tools = [
        McpTool(_ask_tool_name(each), f"Ask {each.name}", _describe_agent(each), _ASK_PARAMETERS, open_world=True)
        for each in hub.atlas.agents
    ]
    return [*found, *(each for each in ask_tools if each.name not in names)]


def _describe_tool(tool: Tool) -> McpTool:
    source, _, name = tool.name.rpartition("/")
    words = " ".join(name.replace("_", " ").replace("-", " ").split()) or tool.name
    title = words[:1].upper() + words[1:] + (f" ({source})" if source else "")
    return McpTool(
        tool.wire_name,
        title,
        tool.description.strip() or title,
        tool.parameters,
        tool.output_schema,
        read_only=tool.effect == "pure",
        open_world=True if tool.sends or tool.untrusted else None,
    )


def _ask_tool_name(agent: Agent) -> str:
    return wire_name(_ASK + agent.id)


def _describe_agent(agent: Agent) -> str:
    description = f": {agent.description}" if agent.description else ""
    return f"Ask the agent {agent.name}{description}. It answers with text and may use its own tools."


def _read_reply(agent: Agent | None, name: str, reply: Message) -> ToolOutcome:
    """Return the outcome of a turn: the result of its call of the named tool, or the answer of an agent."""
    result = next((part for part in reply.parts if isinstance(part, ToolResult)), None)
    if result is None:
        return ToolOutcome(describe_answer(reply), failed=bool(reply.refusal) or reply.is_unfinished)
    tool = agent.context.tool_map().get(name) if agent is not None else None
    return _to_outcome(result, tool.output_schema if tool is not None else None)


async def _with_timeouts(stream: AtlasStream, gone: asyncio.Event) -> AsyncGenerator[Event | None, None]:
    """Yield the events of a stream, and None after each interval without one; Cancelled if the client is `gone`."""
    events = aiter(stream)
    upcoming, leaving = asyncio.ensure_future(anext(events)), asyncio.ensure_future(gone.wait())
    try:
        while True:
            await asyncio.wait((upcoming, leaving), timeout=_PROGRESS_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
            if not upcoming.done() and leaving.done():
                raise Cancelled("the client disconnected")
            if not upcoming.done():
                yield None
                continue
            try:
                event = upcoming.result()
            except StopAsyncIteration:
                return
            upcoming = asyncio.ensure_future(anext(events))
            yield event
    finally:
        upcoming.cancel()
        leaving.cancel()
        await asyncio.gather(upcoming, leaving, return_exceptions=True)
        await events.aclose()


def _levels_from(level: types.LoggingLevel | None) -> frozenset[types.LoggingLevel]:
    """Return the log levels from one on; none if the client has not set any."""
    known: tuple[types.LoggingLevel, ...] = (
        *("debug", "info", "notice", "warning"),
        *("error", "critical", "alert", "emergency"),
    )
    return frozenset(known[known.index(level) :]) if level is not None else frozenset()


def _describe_event(event: Event) -> tuple[types.LoggingLevel, str, str] | None:
    """Return the level, the source and the text of an event that clients are notified of; None for most events."""
    match event:
        case ApprovalAsked(_, question) if question.form is not None:
            asked = f"waiting for input requested by {question.form.asker}"
            return "notice", question.tool, f"{asked}: answer in the web UI or with `atlas approvals`"
        case ApprovalAsked(_, question):
            asked = f"waiting for approval of {question.tool}"
            return "notice", question.tool, f"{asked}: answer in the web UI or with `atlas approvals`"
        case ToolProgress(_, name, _, message):
            return "info", name, f"{name}: {message}"
        case ToolCalled(_, name):
            return "debug", name, f"calling {name}"
        case _:
            return None


def _decisions(question: Question) -> tuple[Decision, ...]:
    return tuple([each for each in question.options if each in _DECISIONS])


def _to_elicitation(question: Question, problem: str, *, titled: bool) -> types.ElicitRequest:
    """Return the request that shows a question: its own form, or the planned action with the possible decisions."""
    note = f"The last answer was invalid: {problem}\n\n" if problem else ""
    form = question.form
    if form is not None and form.url:
        url = types.ElicitRequestURLParams(message=note + form.message, url=form.url, elicitation_id=question.id)
        return types.ElicitRequest(params=url)
    if form is not None:
        shown = f"{note}{form.message}"
        properties = {field.name: _field_schema(field, titled=titled) for field in form.fields}
        required = [field.name for field in form.fields if field.required]
    else:
        details = question.preview or encode(question.arguments).decode()
        lines = [question.title, question.reason, question.message, details]
        shown = note + "\n\n".join(dict.fromkeys(line for line in lines if line))[:_MAX_SHOWN]
        options: list[tuple[str, str]] = [(each, _DECISIONS[each]) for each in _decisions(question)]
        properties, required = {"decision": {"title": "Decision", **_enum(options, titled=titled)}}, ["decision"]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=shown, requested_schema=schema))


def _field_schema(field: Field, *, titled: bool) -> dict[str, Any]:
    """Return the schema of a field in the few forms that clients support; other constraints are checked here."""
    schema = field.schema
    options = [(choice.value, choice.title or choice.value) for choice in field.choices]
    if field.kind == "choice":
        schema = _enum(options, titled=titled)
    elif field.kind == "choices":
        schema.pop("uniqueItems")
        schema["items"] = _enum(options, titled=titled, several=True)
    if schema.get("format") not in _FORMATS:
        schema.pop("format", None)
    schema.pop("pattern", None)
    about = {"title": field.title, "description": field.description, "default": field.default}
    return {**schema, **{key: value for key, value in about.items() if value not in ("", None)}}


def _enum(options: list[tuple[str, str]], *, titled: bool, several: bool = False) -> dict[str, Any]:
    values = [value for value, _ in options]
    if all(value == title for value, title in options):
        return {"type": "string", "enum": values}
    if not titled:
        return {"type": "string", "enum": values, "enumNames": [title for _, title in options]}
    listed = [{"const": value, "title": title} for value, title in options]
    return {"anyOf": listed} if several else {"type": "string", "oneOf": listed}


def _to_outcome(result: ToolResult, schema: dict[str, Any] | None = None) -> ToolOutcome:
    """Convert the result of a call. One that does not match the tool's output schema is an error, as clients check it.

    Images and files are sent beside the structure, with a note in their place, unless the schema has them.
    """
    failed, files = result.status != "ok", list[File]()
    value, images = extract_images(_extract_files(result.result, files))
    media = (*images, *files)
    text = value if isinstance(value, str) else encode(value).decode()
    if result.error == "declined" and value == {"cancelled": True}:
        text = "The call was denied, or it was not approved in time. Nothing was done."
    if failed:
        return ToolOutcome(text, failed=True, media=media)
    structure = cast(dict[str, Any], value) if isinstance(value, dict) else None
    if schema is not None:
        structure = next((each for each in (cast(Any, value), result.result) if _matches(schema, each)), None)
        if structure is None:
            note = "The call succeeded, but its result does not match the tool's output schema: "
            return ToolOutcome(note + text, failed=True, media=media)
    return ToolOutcome(text, structure, media=media)


def _extract_files(value: Any, found: list[File], depth: int = 0) -> Any:
    """Return a result with a note in place of each file, and add the files to `found`."""
    if depth > _MAX_DEPTH or len(found) >= _MAX_FILES:
        return value
    if isinstance(value, list):
        return [_extract_files(each, found, depth + 1) for each in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    fields = cast(dict[str, Any], value)
    if fields.get("type") != "file" or not fields.get("data"):
        return {key: _extract_files(each, found, depth + 1) for key, each in fields.items()}
    try:
        file = msgspec.convert(fields, File)
    except msgspec.ValidationError:
        return fields
    found.append(file)
    return f"({file.name}, {file.media_type}, {len(file.data) * 3 // 4:,} bytes)"


def _to_content(media: Image | File) -> types.ContentBlock:
    if isinstance(media, Image):
        return types.ImageContent(data=media.data, mime_type=media.media_type)
    if media.media_type.startswith("audio/"):
        return types.AudioContent(data=media.data, mime_type=media.media_type)
    uri = media.name if "://" in media.name else f"file:///{quote(media.name)}"
    try:
        if not media.media_type.startswith("text/") and media.media_type != "application/json":
            raise ValueError("not text")
        text = base64.b64decode(media.data, validate=True).decode()
    except ValueError:
        blob = types.BlobResourceContents(uri=uri, mime_type=media.media_type, blob=media.data)
        return types.EmbeddedResource(resource=blob)
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=media.media_type, text=text))


def _matches(schema: dict[str, Any], value: Any) -> bool:
    try:
        compile_check("result", schema)(value)
    except BadArguments:
        return False
    return isinstance(value, dict)
