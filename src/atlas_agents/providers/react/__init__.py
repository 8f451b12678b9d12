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
from atlas_agents.providers.base import (
    Capabilities,
    Chunk,
    DoneChunk,
    Provider,
    Request,
    ResetChunk,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    encoded,
    keys_of,
    spoken,
)

Section: TypeAlias = Literal["bare", "thought", "action", "input", "observation", "final"]
Voice: TypeAlias = Literal["thought", "words", "misread"]

_LABELS: dict[str, Section] = {
    "thought": "thought",
    "action": "action",
    "action input": "input",
    "observation": "observation",
    "final answer": "final",
}
_DECORATION = " \t>*_#`-"
_NAMES = r"(thought|action[ _]?input|action|observation|final[ _]?answer)"
_LABEL = re.compile(rf"[ \t>*_#`-]*{_NAMES}[ \t]*\d*[ \t]*[*_`]*[ \t]*:[*_`]*[ \t]?", re.IGNORECASE)
_ANYWHERE = re.compile(rf"\b{_NAMES}[ \t]*\d*:[ \t]*", re.IGNORECASE)
_FENCE = "```"
NONE = frozenset(("", "none", "n/a", "na", "no action", "nothing", "no tool", "null"))
_LONGEST_LABEL = 40


class Piece(msgspec.Struct, frozen=True):
    """A piece of text and its kind: reasoning or answer. `misread` if text emitted as answer so far was reasoning."""

    voice: Voice
    text: str = ""


class Action(msgspec.Struct):
    """An action of the model: the tool's name from the first line after `Action:`, and its `Action Input:`."""

    name: str = ""
    input: str = ""

    @property
    def is_none(self) -> bool:
        """Whether the model states that it needs no tool."""
        return self.name.strip(" \t\r\n`'\"*.").lower() in NONE


class ReactParser:
    """Parser of one reply. Text before any label counts as the answer until a label shows that it was reasoning."""

    def __init__(self) -> None:
        self.raw = ""
        self.actions: list[Action] = []
        self.section: Section = "bare"
        self.stopped = False
        """The model started to invent an observation; everything after that is ignored."""
        self.answered = False
        self._held = ""
        self._gap = ""
        self._fresh = True
        self._opening = ""  # a leading code fence: around the whole reply, or part of the answer
        self._fenced = False
        self._begun = False

    def feed(self, text: str) -> list[Piece]:
        """Parse more text and return the new pieces."""
        self.raw += text
        self._held += text
        pieces: list[Piece] = []
        while self._held and not self.stopped:
            if self._fresh and self._undecided():
                break
            if self._fresh and (match := self._label()):
                pieces += self._begin(match)
                continue
            line, newline, rest = self._held.partition("\n")
            self._held, self._fresh = rest, bool(newline)
            pieces += self._take(line + newline)
        return pieces

    def end(self) -> list[Piece]:
        """Finish the reply and return the buffered pieces."""
        if self.stopped:
            return []
        match = self._label() if self._fresh else None
        pieces = self._begin(match) if match else []
        pieces += self._take(self._held)
        if not self.actions and not self.answered and _ANYWHERE.search(self.raw):
            pieces += self._read_anywhere()
        return pieces

    @property
    def said_something(self) -> bool:
        """Whether there is an answer or an action."""
        return bool(self.actions) or self.answered or (self.section == "bare" and self._begun)

    def _undecided(self) -> bool:
        """Return whether the current line may still become a label, or a fence around everything."""
        if self.section == "final":
            return self._fenced and "\n" not in self._held and _FENCE.startswith(self._held.strip()[: len(_FENCE)])
        start = self._held
        if "\n" in start or len(start) > _LONGEST_LABEL:
            return False
        match = _LABEL.match(start)
        if match:
            return match.end() == len(start)  # more decoration may follow
        bare = start.strip(_DECORATION).lower().replace("_", " ")
        return any(label.startswith(bare) or _only_decorated(bare, label) for label in (*_LABELS, _FENCE))

    def _label(self) -> re.Match[str] | None:
        return None if self.section == "final" else _LABEL.match(self._held)

    def _begin(self, label: re.Match[str]) -> list[Piece]:
        """Start the section of this label."""
        misread = self.section == "bare" and self._begun
        section = _section(label[1])
        self._held, self._fresh = self._held[label.end() :], False
        self._fenced = self._fenced or bool(self._opening)
        self.section, self._gap, self._begun, self._opening = section, "", False, ""
        if section != "input":
            self.actions = [action for action in self.actions if not action.is_none]
        if section == "observation":
            self.stopped = True
        elif section == "action" or (section == "input" and not self.actions):
            self.actions.append(Action())
        return [Piece("misread")] if misread else []

    def _take(self, text: str) -> list[Piece]:
        match self.section:
            case "action":
                self.actions[-1].name += text
            case "input":
                self.actions[-1].input += text
            case "thought":
                return self._say("thought", text)
            case "bare":
                if not self._begun and not self._opening and _is_fence(text):
                    self._opening = text
                    return []
                text, self._opening = self._opening + text, ""
                return self._say("words", text)
            case "final" if not self.actions:
                if self._fenced and _is_fence(text):
                    self._gap += text  # counts only if more text follows
                    return []
                self.answered = self.answered or bool(text.strip())
                return self._say("words", text)
            case _:
                pass  # an answer beside an action is ignored: its observation is still missing
        return []

    def _say(self, voice: Voice, text: str) -> list[Piece]:
        """Emit text without the blank space at the ends of its section."""
        if not self._begun:
            text = text.lstrip()
        words = text.rstrip()
        if not words:
            self._gap += text if self._begun else ""
            return []
        said, self._gap, self._begun = self._gap + words, text[len(words) :], True
        return [Piece(voice, said)]

    def _read_anywhere(self) -> list[Piece]:
        """Accept labels in the middle of lines if there are no others."""
        found = [match for match in _ANYWHERE.finditer(self.raw) if _section(match[1]) != "thought"]
        pieces = [Piece("misread")] if self.section == "bare" and found else []
        for place, match in enumerate(found):
            end = found[place + 1].start() if place + 1 < len(found) else len(self.raw)
            text = self.raw[match.end() : end].strip()
            match _section(match[1]):
                case "final" if not self.actions:
                    self.answered = bool(text)
                    return [*pieces, Piece("words", text)] if text else pieces
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


def _section(label: str) -> Section:
    name = label.lower().replace("_", " ")
    return _LABELS[{"actioninput": "action input", "finalanswer": "final answer"}.get(name, name)]


def _only_decorated(bare: str, label: str) -> bool:
    """Return whether the text may still become a label, for example `thought 2 **`."""
    return bare.startswith(label) and not bare[len(label) :].strip(" \t*_`0123456789")


_TYPE_EXAMPLES = {"string": '"…"', "integer": "0", "number": "0.0", "boolean": "true or false"}


def shape(schema: dict[str, Any]) -> str:
    """Describe a schema by example: `{"city": "…" (which one), "days": 0 (optional)}`; other schemas stay JSON."""
    properties: dict[str, dict[str, Any]] = schema.get("properties") or {}
    if not all(map(_is_plain, properties.values())) or (not properties and schema.get("additionalProperties", True)):
        return json.dumps(schema, ensure_ascii=False)
    required = schema.get("required") or ()
    return "{" + ", ".join(_field(name, each, name in required) for name, each in properties.items()) + "}"


def _is_plain(each: dict[str, Any]) -> bool:
    kind = each.get("type")
    return "enum" in each or (isinstance(kind, str) and kind in _TYPE_EXAMPLES)


def _field(name: str, each: dict[str, Any], required: bool) -> str:
    one_of = each.get("enum")
    value = (
        " or ".join(json.dumps(one, ensure_ascii=False) for one in one_of) if one_of else _TYPE_EXAMPLES[each["type"]]
    )
    limits = [f"{word} {each[key]}" for key, word in _LIMITS.items() if key in each]
    said = [each.get("description", "").strip().rstrip("."), *limits, "" if required else "optional"]
    note = "; ".join(filter(None, said))
    return f"{json.dumps(name, ensure_ascii=False)}: {value}" + (f" ({note})" if note else "")


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


_FORM = """\
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
_ONE = "\n\nIn your next step you must use the tool {name}."
_ANY = "\n\nIn your next step you must use a tool."
_REPAIR = (
    "You wrote neither an Action nor a Final Answer. Go on with a line `Action:` and a line `Action Input:`, or with a "
    "line `Final Answer:` and your answer."
)
_STOP = "\nObservation:"
_MOST_STOPS = 4


def offered(request: Request) -> tuple[ToolSpec, ...]:
    """Return the tools that may be called in this reply."""
    if request.tool_choice in ("auto", "required"):
        return request.tools
    return tuple(tool for tool in request.tools if request.tool_choice in (tool.name, wire_name(tool.name)))


def as_text(request: Request) -> Request:
    """Convert a request with tools to text: tools into instructions, calls and results into messages."""
    encoded(request.messages, "react_checked", lambda message: b"")
    tools = offered(request)
    system, stop = request.system, request.stop
    if tools:
        form = _FORM.format(tools="\n".join(map(_described, tools)))
        if request.tool_choice != "auto":
            form += _ANY if request.tool_choice == "required" else _ONE.format(name=tools[0].name)
        system = f"{system}\n\n{form}" if system else form
        stop = (*stop[: _MOST_STOPS - 1], _STOP)
    messages = [_in_words(message) for message in request.messages]
    return msgspec.structs.replace(
        request, messages=messages, system=system, tools=(), tool_choice="auto", stop=stop, output=None
    )


def mended(request: Request, written: str) -> Request:
    """Repeat the request after a reply that was neither an action nor an answer, with a correction."""
    said = Message("assistant", (Text(written.strip() or "Thought:"),))
    return msgspec.structs.replace(
        request, messages=[*request.messages, said, Message("user", (Text(_REPAIR),))], stop=request.stop
    )


def _described(tool: ToolSpec) -> str:
    return f"- {tool.name}: {tool.description.strip()}\n  Action Input: {shape(tool.parameters)}"


def _in_words(message: Message) -> Message:
    """Convert a message to text, cached per message."""
    if message.role in ("user", "system"):
        return message
    known: Message | None = memo(message).get("react_words")
    if known is None:
        role = "user" if message.role == "tool" else "assistant"
        known = memo(message)["react_words"] = msgspec.structs.replace(message, role=role, parts=_parts(message))
    return known


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
                lines.append(f"Observation: {spoken(part)}")
            case Image() | File():
                shown.append(part)
            case _:
                pass
    return (Text("\n".join(lines)), *shown)


def _input(call: ToolCall) -> str:
    return json.dumps(call.arguments, ensure_ascii=False) if call.malformed is None else call.malformed


_MOST = 200_000
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


def read_object(text: str) -> dict[str, Any]:
    """Parse the first object in a text leniently; ValueError if it is ambiguous. Valid JSON is parsed as JSON."""
    start = text.find("{")
    if start < 0 or len(text) > _MOST:
        raise ValueError("no object found")
    text = text[start:]
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return parse_object(_as_json(text))
    return parse_object(text[:end])


def _as_json(text: str) -> str:
    """Convert the object at the start of the text to JSON, token by token."""
    made: list[str] = []
    place = depth = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise ValueError(f"unexpected {text[place]!r}")
        place = token.end()
        if token.lastgroup == "space":
            continue
        mark = token[0] if token.lastgroup == "mark" else ""
        if mark in ("}", "]") and made and made[-1] == ",":
            made.pop()  # a trailing comma
        made.append(_written(token, text, place))
        depth += (mark in ("{", "[")) - (mark in ("}", "]"))
        if mark and depth == 0:
            return "".join(made)
    raise ValueError("unterminated object")


def _written(token: re.Match[str], text: str, end: int) -> str:
    found = token[0]
    match token.lastgroup:
        case "string":
            return _string(found)
        case "number":
            return _number(found)
        case "word":
            is_key = text[end:].lstrip()[:1] == ":"
            if not is_key and found not in _LITERALS:
                raise ValueError(f"missing quotes around {found!r}")
            return json.dumps(found) if is_key else _LITERALS[found]
        case _:
            return found


def _string(found: str) -> str:
    inner = found[1:-1]
    if found[0] == "'":
        inner = inner.replace("\\'", "'")
        inner = re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', inner)
    inner = _ESCAPED.sub(lambda match: match[0] if match[1] in _PLAIN_ESCAPES else match[1], inner)
    inner = inner.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f'"{inner}"'


def _number(found: str) -> str:
    sign, digits = ("-", found[1:]) if found[0] == "-" else ("", found.lstrip("+"))
    if digits[:2] in ("0x", "0X"):
        return f"{sign}{int(digits, 16)}"
    digits = f"0{digits}" if digits.startswith(".") else digits
    return f"{sign}{digits}0" if digits.endswith(".") else f"{sign}{digits}"


_FINISH = frozenset(("final answer", "finish", "answer", "final", "respond", "done"))
_INLINE = re.compile(r"([\w./-]+)\s*(?:\((.*)\)|\[(.*)\]|(\{.*\}))\s*\Z", re.DOTALL)
_FENCED = re.compile(r"\A\s*```[\w-]*\s*\n?(.*?)\n?\s*```.*\Z", re.DOTALL)
_OF_A_SCHEMA = frozenset(("type", "properties", "required", "additionalProperties", "title", "description", "$schema"))
_QUOTES = " \t\r\n`'\"*.:,<>"


def as_calls(actions: Sequence[Action], tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], str | None]:
    """Return the requested calls, and the answer if an action is named `Final Answer`."""
    calls: list[ToolCall] = []
    for action in actions:
        name, written = _taken_apart(action, tools)
        known = name if any(tool.name == name for tool in tools) else ""
        if not known and action.is_none:
            continue
        if not known and name.lower().replace("_", " ") in _FINISH:
            return calls, None if calls else written.strip()
        calls.append(_call(name, written, tools))
    return calls, None


def _taken_apart(action: Action, tools: Sequence[ToolSpec]) -> tuple[str, str]:
    """Split an action into name and input; `search("cats")` and `search[cats]` contain both."""
    line, _, below = action.name.strip().partition("\n")
    written = action.input if action.input.strip() else below
    if not written.strip() and (inline := _INLINE.match(line.strip("`* "))):
        line, written = inline[1], next(part for part in inline.groups()[1:] if part is not None)
    name = line.strip(_QUOTES).removeprefix("functions.")
    return _known_as(name, tools), _FENCED.sub(r"\1", written).strip()


def _known_as(name: str, tools: Sequence[ToolSpec]) -> str:
    """Return the tool whose name differs only in case, spaces and hyphens."""
    folded = {re.sub(r"[\s_-]+", "_", tool.name).lower(): tool.name for tool in tools}
    return folded.get(re.sub(r"[\s_-]+", "_", name).lower(), clean(name[:64]))


def _call(name: str, written: str, tools: Sequence[ToolSpec]) -> ToolCall:
    written = clean(written)
    if not written or written.lower() in NONE:
        return ToolCall("", name, {})
    tool = next((tool for tool in tools if tool.name == name), None)
    try:
        return ToolCall("", name, _unwrapped(read_object(written), tool))
    except ValueError:
        pass
    only = tool and _only_text(tool)
    if only and not written.lstrip().startswith(("{", "[")):
        return ToolCall("", name, {only: _unquoted(written)})
    return ToolCall("", name, {}, malformed=written)


def _unwrapped(given: dict[str, Any], tool: ToolSpec | None) -> dict[str, Any]:
    """Extract the values from an input written like a schema, `{"type": "object", "properties": {…}}`."""
    inner = given.get("properties")
    if tool is None or not isinstance(inner, dict) or not given.keys() <= _OF_A_SCHEMA:
        return given
    if given.keys() & (tool.parameters.get("properties") or {}).keys():
        return given
    values = cast(dict[str, Any], inner)
    return given if any(isinstance(value, dict) for value in values.values()) else values


def _only_text(tool: ToolSpec) -> str | None:
    """Return the only parameter that plain text can be meant for."""
    properties: dict[str, Any] = tool.parameters.get("properties") or {}
    wanted: list[str] = list(tool.parameters.get("required") or ()) or list(properties)
    if len(wanted) != 1 or not isinstance(properties.get(wanted[0]), dict):
        return None
    return wanted[0] if cast(dict[str, Any], properties[wanted[0]]).get("type") == "string" else None


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text


_REPAIRS = 2


class React:
    """Wraps a provider without tool calling. Thoughts become thinking, the final answer text, actions tool calls.

    A reply that is neither an action nor an answer is requested again, at most twice.
    """

    def __init__(self, inner: Provider) -> None:
        self.inner = inner

    @property
    def id(self) -> str:
        return self.inner.id

    @property
    def model(self) -> str | None:
        return getattr(self.inner, "model", None)

    @property
    def keys(self) -> tuple[Secret, ...]:
        return keys_of(self.inner)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(streaming=self.inner.capabilities.streaming, tools=True, structured=False)

    async def close(self) -> None:
        if (close := getattr(self.inner, "close", None)) is not None:
            await close()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        asked, tools = as_text(request), offered(request)
        if not tools:
            async with aclosing(self.inner.stream(asked)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        spent = Usage()
        for attempt in range(_REPAIRS + 1):
            hearing = _Hearing(tools, attempt, spent)
            async with aclosing(hearing.out(self.inner, asked)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if hearing.complete or not hearing.ended:
                return
            spent = hearing.spent
            yield ResetChunk(attempt + 1)
            asked = mended(asked, hearing.reader.raw)
        raise ProviderError("the model wrote neither an action nor an answer, even after two corrections", "protocol")

    def __repr__(self) -> str:
        return f"React({self.inner!r})"


class _Hearing:
    """Decoder of one reply, from its first chunk to the resulting calls."""

    def __init__(self, tools: Sequence[ToolSpec], attempt: int, spent: Usage) -> None:
        self.reader = ReactParser()
        self.complete = self.ended = False
        self.spent = spent
        """Usage, including earlier replies."""
        self._tools = tools
        self._attempt = attempt
        self._kept: list[Chunk] = []  # chunks that remain valid after a withdrawal
        self._done: DoneChunk | None = None

    async def out(self, inner: Provider, asked: Request) -> AsyncGenerator[Chunk, None]:
        """Yield chunks as a provider with tool calling would."""
        async with aclosing(inner.stream(asked)) as chunks:
            async for chunk in chunks:
                for made in self._take(chunk):
                    yield made
                if self.reader.stopped:
                    break
        self.ended = self._done is not None or self.reader.stopped
        if not self.ended:
            return  # the caller detects the missing end
        for made in self._last():
            yield made

    def _take(self, chunk: Chunk) -> list[Chunk]:
        match chunk:
            case TextChunk(text):
                return self._told(self.reader.feed(text))
            case DoneChunk():
                self._done = chunk
                return []
            case ResetChunk():
                self.reader = ReactParser()
                self._kept.clear()
                return [chunk]
            case _:
                self._kept.append(chunk)
                return [chunk]

    def _told(self, pieces: list[Piece]) -> list[Chunk]:
        found: list[Chunk] = []
        for piece in pieces:
            if piece.voice == "misread":
                self._kept = [*map(_as_thought, self._kept), ThinkingChunk("\n")]
                found += [ResetChunk(self._attempt + 1), *self._kept]
                continue
            made = TextChunk(piece.text) if piece.voice == "words" else ThinkingChunk(piece.text)
            self._kept.append(made)
            found.append(made)
        return found

    def _last(self) -> list[Chunk]:
        """Return the buffered text, the calls and the end; nothing if the reply must be requested again."""
        found = self._told(self.reader.end())
        done = self._done or DoneChunk(Usage(0, len(self.reader.raw) // 4, estimated=True))
        self.spent += done.usage
        calls, answer = as_calls(self.reader.actions, self._tools)
        if done.stop_reason == "length":
            calls, answer = [], ""  # truncated output is never executed, nor anything beside it
        said = not self.reader.actions and self.reader.said_something
        self.complete = bool(calls or answer or said) or done.stop_reason in ("length", "refusal")
        if not self.complete:
            return []
        found += [TextChunk(answer)] if answer else []
        found += [ToolCallChunk(call) for call in calls]
        reason = "tool_calls" if calls else "stop" if done.stop_reason == "tool_calls" else done.stop_reason
        return [*found, msgspec.structs.replace(done, stop_reason=reason, usage=self.spent)]


def _as_thought(chunk: Chunk) -> Chunk:
    return ThinkingChunk(chunk.text) if isinstance(chunk, TextChunk) else chunk


__all__ = ["React"]
