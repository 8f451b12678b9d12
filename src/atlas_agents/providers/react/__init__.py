"""ReAct provider: tools for models without tool calling, as Thought, Action, Action Input, Observation and Final
Answer."""

import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeAlias, cast

import msgspec

from atlas_agents.core.errors import ProviderError
from atlas_agents.core.events import Usage
from atlas_agents.core.json import parse_object
from atlas_agents.core.messages import File, Image, Message, Part, Text, Thinking, ToolCall, ToolResult, ToolSpec, memo
from atlas_agents.core.paths import Secret
from atlas_agents.core.text import clean, wire_name
from atlas_agents.providers import base

Section: TypeAlias = Literal["bare", "thought", "action", "input", "observation", "final"]
PieceKind: TypeAlias = Literal["reasoning", "answer", "misread"]

_LABELS: dict[str, Section] = {
    "thought": "thought",
    "action": "action",
    "action input": "input",
    "observation": "observation",
    "final answer": "final",
    "actioninput": "input",
    "finalanswer": "final",
}
_DECORATION = " \t>*_#`-"
_NAMES = r"(thought|action[ _]?input|action|observation|final[ _]?answer)"
_LABEL = re.compile(
    rf"[ \t>*_#`-]{{0,24}}{_NAMES}[ \t]{{0,2}}\d{{0,4}}[ \t]{{0,2}}[*_`]{{0,3}}[ \t]{{0,2}}:[*_`]{{0,3}}[ \t]?",
    re.IGNORECASE,
)
_INLINE_LABEL = re.compile(rf"\b{_NAMES}[ \t]*\d*:[ \t]*", re.IGNORECASE)
_FENCE = "```"
NO_TOOL_NAMES = frozenset(("", "none", "n/a", "na", "no action", "nothing", "no tool", "null"))
_MAX_LABEL = 60
"""Length of the buffer for labels, at least that of the longest text that `_LABEL` matches."""
_TYPE_EXAMPLES = {"string": '"…"', "integer": "0", "number": "0.0", "boolean": "true or false"}
_LIMITS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
    "minLength": "characters at least",
    "maxLength": "characters at most",
    "pattern": "matches",
    "format": "as",
    "default": "by default",
}


_INSTRUCTIONS = """\
You can use tools. Work in steps, and write each step in exactly this form:

Thought: what you think should be done next
Action: the name of one of the tools
Action Input: the tool's input, as a JSON object

Then stop. You are given the result as a line that begins with `Observation:`. Never write an observation yourself.
Go on in this way until you know enough, or at once if you need no tool. Then write:

Thought: why this is enough
Final Answer: your answer to the user

Tools:
{tools}"""
_ONE_TOOL = "\n\nIn your next step you must use the tool {name}."
_ANY_TOOL = "\n\nIn your next step you must use a tool."
_REPAIR = (
    "You wrote neither an Action nor a Final Answer. Go on with a line `Action:` and a line `Action Input:`, or with a "
    "line `Final Answer:` and your answer."
)
_STOP = "\nObservation:"
_MAX_STOPS = 4
_MAX_INPUT = 200_000
_TOKEN = re.compile(
    r"""
      (?P<space>\s+|//[^\n]*|/\*.*?\*/|\#[^\n]*)
    | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))
    | (?P<word>[A-Za-z_$][\w$-]*)
    | (?P<mark>[{}\[\],:])
    """,
    re.VERBOSE | re.DOTALL,
)
_LITERALS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PLAIN_ESCAPES = frozenset('"\\/bfnrtu')
_FINISH_NAMES = frozenset(("final answer", "finish", "answer", "final", "respond", "done"))
_INLINE = re.compile(r"([\w./-]+)\s*(?:\((.*)\)|\[(.*)\]|(\{.*\}))\s*\Z", re.DOTALL)
_FENCED = re.compile(r"\A\s*```[\w-]*\s*\n?(.*?)\n?\s*```.*\Z", re.DOTALL)
_SCHEMA_KEYS = frozenset(("type", "properties", "required", "additionalProperties", "title", "description", "$schema"))
_QUOTES = " \t\r\n`'\"*.:,<>"
_REPAIRS = 2


class Piece(msgspec.Struct, frozen=True):
    """A piece of text and its kind: reasoning or answer. `misread` if text emitted as answer so far was reasoning."""

    kind: PieceKind
    text: str = ""


class Action(msgspec.Struct):
    """An action of the model: the tool's name from the first line after `Action:`, and its `Action Input:`."""

    name: str = ""
    input: str = ""

    @property
    def is_none(self) -> bool:
        """Whether the model states that it needs no tool."""
        return self.name.strip(" \t\r\n`'\"*.").lower() in NO_TOOL_NAMES


class ReactParser:
    """Parser of one reply. Text before any label counts as the answer until a label shows that it was reasoning."""

    def __init__(self) -> None:
        self.raw = ""
        self.actions: list[Action] = []
        self.section: Section = "bare"
        self.stopped = False
        """The model started to invent an observation; everything after that is ignored."""
        self.answered = False
        self._buffer = ""
        self._blank = ""
        self._at_line_start = True
        self._opening_fence = ""  # a leading code fence: around the whole reply, or part of the answer
        self._fenced = False
        self._has_text = False

    def feed(self, text: str) -> list[Piece]:
        """Parse more text and return the new pieces."""
        self.raw += text
        self._buffer += text
        pieces: list[Piece] = []
        while self._buffer and not self.stopped:
            if self._at_line_start and self._may_become_label():
                break
            if self._at_line_start and (match := self._match_label()):
                pieces += self._start_section(match)
                continue
            line, newline, rest = self._buffer.partition("\n")
            self._buffer, self._at_line_start = rest, bool(newline)
            pieces += self._add(line + newline)
        return pieces

    def end(self) -> list[Piece]:
        """Finish the reply and return the buffered pieces."""
        if self.stopped:
            return []
        match = self._match_label() if self._at_line_start else None
        pieces = self._start_section(match) if match else []
        pieces += self._add(self._buffer)
        if not self.actions and not self.answered and _INLINE_LABEL.search(self.raw):
            pieces += self._parse_inline_labels()
        return pieces

    @property
    def has_content(self) -> bool:
        """Whether there is an answer or an action."""
        return bool(self.actions) or self.answered or (self.section == "bare" and self._has_text)

    def _may_become_label(self) -> bool:
        """Return whether the current line may still become a label, or a fence around everything."""
        if self.section == "final":
            return self._fenced and "\n" not in self._buffer and _FENCE.startswith(self._buffer.strip()[: len(_FENCE)])
        start = self._buffer
        if "\n" in start or len(start) > _MAX_LABEL:
            return False
        match = _LABEL.match(start)
        if match:
            return match.end() == len(start)  # more decoration may follow
        plain = start.strip(_DECORATION).lower().replace("_", " ")
        return any(label.startswith(plain) or _is_partial_label(plain, label) for label in (*_LABELS, _FENCE))

    def _match_label(self) -> re.Match[str] | None:
        return None if self.section == "final" else _LABEL.match(self._buffer)

    def _start_section(self, label: re.Match[str]) -> list[Piece]:
        """Start the section of this label."""
        misread = self.section == "bare" and self._has_text
        section = _parse_section(label[1])
        self._buffer, self._at_line_start = self._buffer[label.end() :], False
        self._fenced = self._fenced or bool(self._opening_fence)
        self.section, self._blank, self._has_text, self._opening_fence = section, "", False, ""
        if section != "input":
            self.actions = [action for action in self.actions if not action.is_none]
        if section == "observation":
            self.stopped = True
        elif section == "action" or (section == "input" and not self.actions):
            self.actions.append(Action())
        return [Piece("misread")] if misread else []

    def _add(self, text: str) -> list[Piece]:
        match self.section:
            case "action":
                self.actions[-1].name += text
            case "input":
                self.actions[-1].input += text
            case "thought":
                return self._emit("reasoning", text)
            case "bare":
                if not self._has_text and not self._opening_fence and _is_fence(text):
                    self._opening_fence = text
                    return []
                text, self._opening_fence = self._opening_fence + text, ""
                return self._emit("answer", text)
            case "final" if not self.actions:
                if self._fenced and _is_fence(text):
                    self._blank += text  # counts only if more text follows
                    return []
                self.answered = self.answered or bool(text.strip())
                return self._emit("answer", text)
            case _:
                pass  # an answer beside an action is ignored: its observation is still missing
        return []

    def _emit(self, kind: PieceKind, text: str) -> list[Piece]:
        """Emit text without the blank space at the ends of its section."""
        if not self._has_text:
            text = text.lstrip()
        stripped = text.rstrip()
        if not stripped:
            self._blank += text if self._has_text else ""
            return []
        piece, self._blank, self._has_text = Piece(kind, self._blank + stripped), text[len(stripped) :], True
        return [piece]

    def _parse_inline_labels(self) -> list[Piece]:
        """Accept labels in the middle of lines if there are no others."""
        found = [match for match in _INLINE_LABEL.finditer(self.raw) if _parse_section(match[1]) != "thought"]
        pieces = [Piece("misread")] if self.section == "bare" and found else []
        for index, match in enumerate(found):
            end = found[index + 1].start() if index + 1 < len(found) else len(self.raw)
            text = self.raw[match.end() : end].strip()
            match _parse_section(match[1]):
                case "final" if not self.actions:
                    self.answered = bool(text)
                    return [*pieces, Piece("answer", text)] if text else pieces
                case "action":
                    self.actions.append(Action(text))
                case "input" if self.actions:
                    self.actions[-1].input = text
                case _:
                    break
        return pieces


def _is_fence(text: str) -> bool:
    line = text.strip()
    return line.startswith(_FENCE) and "\n" not in line and " " not in line


def _parse_section(label: str) -> Section:
    return _LABELS[label.lower().replace("_", " ")]


def _is_partial_label(plain: str, label: str) -> bool:
    """Return whether the text may still become a label, for example `thought 2 **`."""
    return plain.startswith(label) and not plain[len(label) :].strip(" \t*_`0123456789")


def describe_schema(schema: dict[str, Any]) -> str:
    """Describe a schema by example: `{"city": "…" (which one), "days": 0 (optional)}`; other schemas stay JSON."""
    properties: dict[str, dict[str, Any]] = schema.get("properties") or {}
    if not all(map(_is_plain, properties.values())) or (not properties and schema.get("additionalProperties", True)):
        return json.dumps(schema, ensure_ascii=False)
    required = schema.get("required") or ()
    return "{" + ", ".join(_describe_property(name, each, name in required) for name, each in properties.items()) + "}"


def _is_plain(each: dict[str, Any]) -> bool:
    kind = each.get("type")
    return "enum" in each or (isinstance(kind, str) and kind in _TYPE_EXAMPLES)


def _describe_property(name: str, each: dict[str, Any], required: bool) -> str:
    one_of = each.get("enum")
    value = (
        " or ".join(json.dumps(one, ensure_ascii=False) for one in one_of) if one_of else _TYPE_EXAMPLES[each["type"]]
    )
    limits = [f"{word} {each[key]}" for key, word in _LIMITS.items() if key in each]
    notes = [each.get("description", "").strip().rstrip("."), *limits, "" if required else "optional"]
    note = "; ".join(filter(None, notes))
    return f"{json.dumps(name, ensure_ascii=False)}: {value}" + (f" ({note})" if note else "")


def offered_tools(request: base.Request) -> tuple[ToolSpec, ...]:
    """Return the tools that may be called in this reply."""
    if request.tool_choice in ("auto", "required"):
        return request.tools
    return tuple(tool for tool in request.tools if request.tool_choice in (tool.name, wire_name(tool.name)))


def render_request(request: base.Request) -> base.Request:
    """Convert a request with tools to text: tools into instructions, calls and results into messages."""
    base.encode_messages(request.messages, "react_checked", lambda message: b"")
    tools = offered_tools(request)
    system, settings = request.system, request.settings
    if tools:
        instructions = _INSTRUCTIONS.format(tools="\n".join(map(_describe_tool, tools)))
        if request.tool_choice != "auto":
            required = request.tool_choice == "required"
            instructions += _ANY_TOOL if required else _ONE_TOOL.format(name=tools[0].name)
        system = f"{system}\n\n{instructions}" if system else instructions
        settings = msgspec.structs.replace(settings, stop=(*settings.stop[: _MAX_STOPS - 1], _STOP))
    messages = [_message_as_text(message) for message in request.messages]
    return msgspec.structs.replace(
        request, messages=messages, system=system, tools=(), tool_choice="auto", settings=settings, output=None
    )


def repair_request(request: base.Request, raw: str) -> base.Request:
    """Repeat the request after a reply that was neither an action nor an answer, with a correction."""
    reply = Message("assistant", (Text(raw.strip() or "Thought:"),))
    return msgspec.structs.replace(request, messages=[*request.messages, reply, Message("user", (Text(_REPAIR),))])


def _describe_tool(tool: ToolSpec) -> str:
    return f"- {tool.name}: {tool.description.strip()}\n  Action Input: {describe_schema(tool.parameters)}"


def _message_as_text(message: Message) -> Message:
    """Convert a message to text, cached per message."""
    if message.role in ("user", "system"):
        return message
    cached: Message | None = memo(message).get("react_text")
    if cached is None:
        role = "user" if message.role == "tool" else "assistant"
        cached = memo(message)["react_text"] = msgspec.structs.replace(message, role=role, parts=_parts(message))
    return cached


def _parts(message: Message) -> tuple[Part, ...]:
    lines: list[str] = []
    shown: list[Part] = []
    last = "" if message.tool_calls else "Final Answer: "
    for part in message.parts:
        match part:
            case Thinking(text) if text.strip():
                lines.append(f"Thought: {text.strip()}")
            case Text(text) if text.strip():
                lines.append(f"{last or 'Thought: '}{text.strip()}")
                last = last and "\n"
            case ToolCall():
                lines.append(f"Action: {part.name}\nAction Input: {_input(part)}")
            case ToolResult():
                lines.append(f"Observation: {base.render_result_text(part)}")
            case Image() | File():
                shown.append(part)
            case _:
                pass
    return (Text("\n".join(lines)), *shown)


def _input(call: ToolCall) -> str:
    return json.dumps(call.arguments, ensure_ascii=False) if call.malformed is None else call.malformed


def parse_lenient_object(text: str) -> dict[str, Any]:
    """Parse the first object in a text leniently; ValueError if it is ambiguous. Valid JSON is parsed as JSON."""
    start = text.find("{")
    if start < 0 or len(text) > _MAX_INPUT:
        raise ValueError("no object found")
    text = text[start:]
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return parse_object(_as_json(text))
    return parse_object(text[:end])


def _as_json(text: str) -> str:
    """Convert the object at the start of the text to JSON, token by token."""
    pieces: list[str] = []
    position = depth = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ValueError(f"unexpected {text[position]!r}")
        position = token.end()
        if token.lastgroup == "space":
            continue
        mark = token[0] if token.lastgroup == "mark" else ""
        if mark in ("}", "]") and pieces and pieces[-1] == ",":
            pieces.pop()  # a trailing comma
        pieces.append(_token_as_json(token, text, position))
        depth += (mark in ("{", "[")) - (mark in ("}", "]"))
        if mark and depth == 0:
            return "".join(pieces)
    raise ValueError("unterminated object")


def _token_as_json(token: re.Match[str], text: str, end: int) -> str:
    found = token[0]
    match token.lastgroup:
        case "string":
            return _string_as_json(found)
        case "number":
            return _number_as_json(found)
        case "word":
            is_key = text[end:].lstrip()[:1] == ":"
            if not is_key and found not in _LITERALS:
                raise ValueError(f"missing quotes around {found!r}")
            return json.dumps(found) if is_key else _LITERALS[found]
        case _:
            return found


def _string_as_json(found: str) -> str:
    inner = found[1:-1]
    if found[0] == "'":
        inner = inner.replace("\\'", "'")
        inner = re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', inner)
    inner = _ESCAPED.sub(lambda match: match[0] if match[1] in _PLAIN_ESCAPES else match[1], inner)
    inner = inner.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f'"{inner}"'


def _number_as_json(found: str) -> str:
    sign, digits = ("-", found[1:]) if found[0] == "-" else ("", found.lstrip("+"))
    if digits[:2] in ("0x", "0X"):
        return f"{sign}{int(digits, 16)}"
    digits = f"0{digits}" if digits.startswith(".") else digits
    return f"{sign}{digits}0" if digits.endswith(".") else f"{sign}{digits}"


def parse_calls(actions: Sequence[Action], tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], str | None]:
    """Return the requested calls, and the answer if an action is named `Final Answer`."""
    calls: list[ToolCall] = []
    for action in actions:
        name, raw = _split_action(action, tools)
        is_tool = any(tool.name == name for tool in tools)
        if not is_tool and action.is_none:
            continue
        if not is_tool and name.lower().replace("_", " ") in _FINISH_NAMES:
            return calls, None if calls else raw.strip()
        calls.append(_call(name, raw, tools))
    return calls, None


def _split_action(action: Action, tools: Sequence[ToolSpec]) -> tuple[str, str]:
    """Split an action into name and input; `search("cats")` and `search[cats]` contain both."""
    line, _, below = action.name.strip().partition("\n")
    raw = action.input if action.input.strip() else below
    if not raw.strip() and (inline := _INLINE.match(line.strip("`* "))):
        line, raw = inline[1], next(part for part in inline.groups()[1:] if part is not None)
    name = line.strip(_QUOTES).removeprefix("functions.")
    return _match_tool_name(name, tools), _FENCED.sub(r"\1", raw).strip()


def _match_tool_name(name: str, tools: Sequence[ToolSpec]) -> str:
    """Return the tool whose name differs only in case, spaces and hyphens."""
    folded = {re.sub(r"[\s_-]+", "_", tool.name).lower(): tool.name for tool in tools}
    return folded.get(re.sub(r"[\s_-]+", "_", name).lower(), clean(name[:64]))


def _call(name: str, raw: str, tools: Sequence[ToolSpec]) -> ToolCall:
    raw = clean(raw)
    if not raw or raw.lower() in NO_TOOL_NAMES:
        return ToolCall("", name, {})
    tool = next((tool for tool in tools if tool.name == name), None)
    try:
        return ToolCall("", name, _unwrap_schema(parse_lenient_object(raw), tool))
    except ValueError:
        pass
    only = _single_text_parameter(tool) if tool else None
    if only and not raw.lstrip().startswith(("{", "[")):
        return ToolCall("", name, {only: _unquote(raw)})
    return ToolCall("", name, {}, malformed=raw)


def _unwrap_schema(given: dict[str, Any], tool: ToolSpec | None) -> dict[str, Any]:
    """Extract the values from an input written like a schema, `{"type": "object", "properties": {…}}`."""
    inner = given.get("properties")
    if tool is None or not isinstance(inner, dict) or not given.keys() <= _SCHEMA_KEYS:
        return given
    if given.keys() & (tool.parameters.get("properties") or {}).keys():
        return given
    values = cast(dict[str, Any], inner)
    return given if any(isinstance(value, dict) for value in values.values()) else values


def _single_text_parameter(tool: ToolSpec) -> str | None:
    """Return the only parameter that plain text can be meant for."""
    properties: dict[str, Any] = tool.parameters.get("properties") or {}
    wanted: list[str] = list(tool.parameters.get("required") or ()) or list(properties)
    if len(wanted) != 1 or not isinstance(properties.get(wanted[0]), dict):
        return None
    return wanted[0] if cast(dict[str, Any], properties[wanted[0]]).get("type") == "string" else None


def _unquote(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text


class React:
    """Wraps a provider without tool calling. Thoughts become thinking, the final answer text, actions tool calls.

    A reply that is neither an action nor an answer is requested again, at most twice.
    """

    def __init__(self, inner: base.Provider) -> None:
        self.inner = inner

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def model(self) -> str | None:
        return getattr(self.inner, "model", None)

    @property
    def keys(self) -> tuple[Secret, ...]:
        return base.collect_keys(self.inner)

    @property
    def capabilities(self) -> base.Capabilities:
        return base.Capabilities(streaming=self.inner.capabilities.streaming, tools=True, structured=False)

    async def close(self) -> None:
        if (close := getattr(self.inner, "close", None)) is not None:
            await close()

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        text_request, tools = render_request(request), offered_tools(request)
        if not tools:
            async with aclosing(self.inner.stream(text_request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        usage = Usage()
        for attempt in range(_REPAIRS + 1):
            decoder = _ReplyDecoder(tools, attempt, usage)
            async with aclosing(decoder.stream(self.inner, text_request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if decoder.complete or not decoder.ended:
                return
            usage = decoder.usage
            yield base.ResetChunk(attempt + 1)
            text_request = repair_request(text_request, decoder.parser.raw)
        raise ProviderError("the model wrote neither an action nor an answer, even after two corrections", "protocol")

    def __repr__(self) -> str:
        return f"React({self.inner!r})"


class _ReplyDecoder:
    """Decoder of one reply, from its first chunk to the resulting calls."""

    def __init__(self, tools: Sequence[ToolSpec], attempt: int, usage: Usage) -> None:
        self.parser = ReactParser()
        self.complete = self.ended = False
        self.usage = usage
        """Usage, including earlier replies."""
        self._tools = tools
        self._attempt = attempt
        self._emitted: list[base.Chunk] = []  # chunks that remain valid after a withdrawal
        self._done: base.DoneChunk | None = None

    async def stream(self, inner: base.Provider, text_request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        """Yield chunks as a provider with tool calling would."""
        async with aclosing(inner.stream(text_request)) as chunks:
            async for chunk in chunks:
                for decoded in self._add(chunk):
                    yield decoded
                if self.parser.stopped:
                    break
        self.ended = self._done is not None or self.parser.stopped
        if not self.ended:
            return  # the caller detects the missing end
        for chunk in self._finish():
            yield chunk

    def _add(self, chunk: base.Chunk) -> list[base.Chunk]:
        match chunk:
            case base.TextChunk(text):
                return self._to_chunks(self.parser.feed(text))
            case base.DoneChunk():
                self._done = chunk
                return []
            case base.ResetChunk():
                self.parser = ReactParser()
                self._emitted.clear()
                return [chunk]
            case _:
                self._emitted.append(chunk)
                return [chunk]

    def _to_chunks(self, pieces: list[Piece]) -> list[base.Chunk]:
        found: list[base.Chunk] = []
        for piece in pieces:
            if piece.kind == "misread":
                self._emitted = [*map(_as_thought, self._emitted), base.ThinkingChunk("\n")]
                found += [base.ResetChunk(self._attempt + 1), *self._emitted]
                continue
            chunk = base.TextChunk(piece.text) if piece.kind == "answer" else base.ThinkingChunk(piece.text)
            self._emitted.append(chunk)
            found.append(chunk)
        return found

    def _finish(self) -> list[base.Chunk]:
        """Return the buffered text, the calls and the end; nothing if the reply must be requested again."""
        found = self._to_chunks(self.parser.end())
        done = self._done or base.DoneChunk(Usage(0, len(self.parser.raw) // 4, estimated=True))
        self.usage += done.usage
        calls, answer = parse_calls(self.parser.actions, self._tools)
        if done.stop_reason == "length":
            calls, answer = [], ""  # truncated output is never executed, nor anything beside it
        has_answer = not self.parser.actions and self.parser.has_content
        self.complete = bool(calls or answer or has_answer) or done.stop_reason in ("length", "refusal")
        if not self.complete:
            return []
        found += [base.TextChunk(answer)] if answer else []
        found += [base.ToolCallChunk(call) for call in calls]
        reason = "tool_calls" if calls else "stop" if done.stop_reason == "tool_calls" else done.stop_reason
        return [*found, msgspec.structs.replace(done, stop_reason=reason, usage=self.usage)]


def _as_thought(chunk: base.Chunk) -> base.Chunk:
    return base.ThinkingChunk(chunk.text) if isinstance(chunk, base.TextChunk) else chunk


__all__ = ["React"]
