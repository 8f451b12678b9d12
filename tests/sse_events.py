"""Server-sent events of the APIs: one method per event, so that a test reads like the stream it sends."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

_EMPTY_TEXT: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
Calls = list[tuple[str, str, str]]
"""(id, name, raw arguments) of each call."""


def _data(value: object) -> bytes:
    """Encode as UTF-8; lone surrogates, which have no UTF-8 form, are escaped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        encoded = json.dumps(value, separators=(",", ":")).encode()
    return b"data: " + encoded + b"\n\n"


def _joined(texts: Iterable[str]) -> str:
    """Join pieces of text as a reader does; halves of a surrogate pair become one character."""
    return "".join(texts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class OpenAIEvents:
    """Chat completion chunks."""

    done = b"data: [DONE]\n\n"
    comment = b": keep-alive\n\n"

    def event(self, **fields: Any) -> bytes:
        return _data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m-1", **fields})

    def delta(self, delta: object, finish: str | None = None) -> bytes:
        return self.event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])

    def text(self, text: str) -> bytes:
        return self.delta({"content": text})

    def call(self, index: int | None, id: str | None, name: str | None, arguments: Any = "") -> bytes:
        """A piece of a call; a field that is None is omitted."""
        function = {"name": name, "arguments": arguments} if name is not None else {"arguments": arguments}
        fields = {"index": index, "id": id, "type": "function", "function": function}
        return self.delta({"tool_calls": [{key: value for key, value in fields.items() if value is not None}]})

    def finish(self, reason: str = "stop") -> bytes:
        return self.delta({}, reason)

    def usage(self, input: int = 7, output: int = 5) -> bytes:
        counts = {"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}
        return self.event(choices=[], usage=counts)

    def error(self, type: str, message: str = "no luck", code: object = None) -> bytes:
        return _data({"error": {"message": message, "type": type, "param": None, "code": code}})

    def says(self, *texts: str) -> list[bytes]:
        """A complete text reply."""
        return [self.delta({"role": "assistant", "content": ""}), *map(self.text, texts), *self.end_with("stop")]

    def calls(self, *calls: tuple[str, str, str], says: str = "") -> list[bytes]:
        """A complete reply with tool calls, the arguments of each in two pieces."""
        pieces: list[bytes] = [self.text(says)] if says else []
        for index, (id, name, arguments) in enumerate(calls):
            half = len(arguments) // 2
            pieces += [self.call(index, id, name), self.call(index, None, None, arguments[:half])]
            pieces += [self.call(index, None, None, arguments[half:])]
        return [*pieces, *self.end_with("tool_calls")]

    def end_with(self, reason: str) -> list[bytes]:
        return [self.finish(reason), self.usage(), self.done]


class AnthropicEvents:
    """Events of the Messages API."""

    ping = b'event: ping\ndata: {"type":"ping"}\n\n'
    comment = b": keep-alive\n\n"

    def event(self, type: str, **fields: Any) -> bytes:
        return f"event: {type}\n".encode() + _data({"type": type, **fields})

    def start(self, input: int = 7) -> bytes:
        usage = {"input_tokens": input, "output_tokens": 1}
        message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m-1", "content": []}
        return self.event(
            "message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": usage}
        )

    def open(self, index: int, type: str = "text", **fields: Any) -> bytes:
        initial: dict[str, dict[str, Any]] = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}
        return self.event(
            "content_block_start", index=index, content_block={"type": type, **initial.get(type, {}), **fields}
        )

    def tool(self, index: int, id: Any, name: str) -> bytes:
        return self.open(index, "tool_use", id=id, name=name, input={})

    def delta(self, index: int, type: str, **fields: Any) -> bytes:
        return self.event("content_block_delta", index=index, delta={"type": type, **fields})

    def text(self, text: str, index: int = 0) -> bytes:
        return self.delta(index, "text_delta", text=text)

    def json(self, index: int, piece: str) -> bytes:
        return self.delta(index, "input_json_delta", partial_json=piece)

    def thinking(self, index: int, text: str) -> bytes:
        return self.delta(index, "thinking_delta", thinking=text)

    def signature(self, index: int, signature: str) -> bytes:
        return self.delta(index, "signature_delta", signature=signature)

    def close(self, index: int) -> bytes:
        return self.event("content_block_stop", index=index)

    def stop(self, reason: str | None, output: int | None = 5) -> bytes:
        usage: dict[str, Any] = {} if output is None else {"usage": {"output_tokens": output}}
        return self.event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, **usage)

    @property
    def end(self) -> bytes:
        return self.event("message_stop")

    def error(self, type: str, message: str = "no luck") -> bytes:
        return self.event("error", error={"type": type, "message": message})

    def block(self, index: int, *texts: str) -> list[bytes]:
        """A complete text block."""
        return [self.open(index), *(self.text(text, index) for text in texts), self.close(index)]

    def tool_block(self, index: int, id: Any, name: str, arguments: str) -> list[bytes]:
        """A complete tool call, its arguments in two pieces."""
        half = len(arguments) // 2
        pieces = [self.json(index, piece) for piece in ("", arguments[:half], arguments[half:])]
        return [self.tool(index, id, name), *pieces, self.close(index)]

    def says(self, *texts: str) -> list[bytes]:
        """A complete text reply."""
        return [self.start(), *self.block(0, *texts), *self.end_with("end_turn")]

    def calls(self, *calls: tuple[str, str, str], says: str = "") -> list[bytes]:
        """A complete reply with tool calls."""
        pieces = self.block(0, says) if says else []
        for index, (id, name, arguments) in enumerate(calls, 1 if says else 0):
            pieces += self.tool_block(index, id, name, arguments)
        return [self.start(), *pieces, *self.end_with("tool_use")]

    def end_with(self, reason: str) -> list[bytes]:
        return [self.stop(reason), self.end]


class ResponsesEvents:
    """Events of the Responses API. `sequence_number` is always 0: readers do not use it."""

    comment = b": keep-alive\n\n"

    def event(self, type: str, **fields: Any) -> bytes:
        return f"event: {type}\n".encode() + _data({"type": type, **fields, "sequence_number": 0})

    def response(self, status: str, output: Sequence[Any] = (), **fields: Any) -> dict[str, Any]:
        """A response object with the fields that the SDK needs."""
        known = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m-1", "status": status}
        options: dict[str, Any] = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return {**known, **options, "error": None, "usage": None, "output": list(output), **fields}

    def start(self) -> bytes:
        return self.event("response.created", response=self.response("in_progress"))

    def added(self, index: int, item: dict[str, Any]) -> bytes:
        return self.event("response.output_item.added", output_index=index, item=item)

    def done(self, index: int, item: dict[str, Any]) -> bytes:
        return self.event("response.output_item.done", output_index=index, item=item)

    def delta(self, kind: str, index: int, id: str, delta: str, **fields: Any) -> bytes:
        return self.event(f"response.{kind}.delta", item_id=id, output_index=index, **fields, delta=delta)

    def text(self, text: str, index: int = 0) -> bytes:
        return self.delta("output_text", index, f"msg_{index}", text, content_index=0, logprobs=[])

    def message(self, index: int, *texts: str, **fields: Any) -> list[bytes]:
        """A complete message item."""
        id = f"msg_{index}"
        part = {**_EMPTY_TEXT, "text": _joined(texts)}
        return [
            *self.open_message(index, **fields),
            *(self.text(text, index) for text in texts),
            self.event(
                "response.output_text.done",
                item_id=id,
                output_index=index,
                content_index=0,
                logprobs=[],
                text=_joined(texts),
            ),
            self.event(
                "response.content_part.done",
                item_id=id,
                output_index=index,
                content_index=0,
                part=part,
            ),
            self.done(index, self.message_item(index, *texts, **fields)),
        ]

    def open_message(self, index: int = 0, **fields: Any) -> list[bytes]:
        item: dict[str, Any] = {"id": f"msg_{index}", "type": "message", "status": "in_progress", "role": "assistant"}
        place: dict[str, Any] = {"item_id": f"msg_{index}", "output_index": index, "content_index": 0}
        opened = self.event("response.content_part.added", **place, part=_EMPTY_TEXT)
        return [self.added(index, {**item, "content": [], **fields}), opened]

    def message_item(self, index: int, *texts: str, **fields: Any) -> dict[str, Any]:
        item = {"id": f"msg_{index}", "type": "message", "status": "completed", "role": "assistant"}
        return {**item, "content": [{**_EMPTY_TEXT, "text": _joined(texts)}], **fields}

    def call(self, index: int, id: Any, name: str, arguments: str) -> list[bytes]:
        """A complete call, its arguments in two pieces."""
        half = len(arguments) // 2
        place: dict[str, Any] = {"item_id": f"fc_{index}", "output_index": index}
        return [
            self.open_call(index, id, name),
            *(
                self.delta("function_call_arguments", index, f"fc_{index}", piece)
                for piece in (arguments[:half], arguments[half:])
            ),
            self.event("response.function_call_arguments.done", **place, name=name, arguments=arguments),
            self.done(index, self.call_item(index, id, name, arguments)),
        ]

    def open_call(self, index: int, id: Any, name: str) -> bytes:
        return self.added(index, self.call_item(index, id, name, "", status="in_progress"))

    def call_item(self, index: int, id: Any, name: str, arguments: Any, **fields: Any) -> dict[str, Any]:
        item = {"id": f"fc_{index}", "type": "function_call", "status": "completed", "call_id": id, "name": name}
        return {**item, "arguments": arguments, **fields}

    def reasoning(self, index: int, *summaries: str, encrypted: str = "b3BhcXVl") -> list[bytes]:
        """A complete reasoning item, each summary in two pieces. The first copy of its content is incomplete."""
        id, events = f"rs_{index}", list[bytes]()
        opened: dict[str, Any] = {"id": id, "type": "reasoning", "encrypted_content": encrypted[:2]}
        events.append(self.added(index, {**opened, "summary": []}))
        for number, summary in enumerate(summaries):
            place: dict[str, Any] = {"item_id": id, "output_index": index, "summary_index": number}
            part = {"type": "summary_text", "text": ""}
            events.append(self.event("response.reasoning_summary_part.added", **place, part=part))
            half = len(summary) // 2
            for piece in (summary[:half], summary[half:]):
                events.append(self.event("response.reasoning_summary_text.delta", **place, delta=piece))
            events.append(self.event("response.reasoning_summary_text.done", **place, text=summary))
        return [*events, self.done(index, self.reasoning_item(index, *summaries, encrypted=encrypted))]

    def reasoning_item(self, index: int, *summaries: str, encrypted: str = "b3BhcXVl") -> dict[str, Any]:
        parts = [{"type": "summary_text", "text": summary} for summary in summaries]
        return {"id": f"rs_{index}", "type": "reasoning", "summary": parts, "encrypted_content": encrypted}

    def usage(self, input: int = 7, output: int = 5) -> dict[str, Any]:
        read, written = {"cached_tokens": 0, "cache_write_tokens": 0}, {"reasoning_tokens": 0}
        counts = {"input_tokens": input, "output_tokens": output, "total_tokens": input + output}
        return {**counts, "input_tokens_details": read, "output_tokens_details": written}

    def end(self, output: Sequence[Any] = (), status: str = "completed", **fields: Any) -> bytes:
        response = self.response(status, output, **{"usage": self.usage(), **fields})
        return self.event(f"response.{status}", response=response)

    def stop(self, reason: str, output: Sequence[Any] = ()) -> bytes:
        """The end of an incomplete response."""
        return self.end(output, "incomplete", incomplete_details={"reason": reason})

    def fail(self, code: str, message: str = "no luck") -> bytes:
        return self.end((), "failed", error={"code": code, "message": message}, usage=None)

    def error(self, type: str, message: str = "no luck") -> bytes:
        return self.event("error", code=type, message=message, param=None)

    def complete(self, *items: list[bytes]) -> list[bytes]:
        """A complete response of these items; its end repeats them."""
        output = [json.loads(events[-1].partition(b"data: ")[2])["item"] for events in items]
        return [self.start(), *(event for events in items for event in events), self.end(output)]

    def says(self, *texts: str) -> list[bytes]:
        """A complete text reply."""
        return self.complete(self.message(0, *texts))

    def calls(self, *calls: tuple[str, str, str], says: str = "") -> list[bytes]:
        """A complete reply with tool calls."""
        items = [self.message(0, says)] if says else []
        items += [self.call(index, *call) for index, call in enumerate(calls, len(items))]
        return self.complete(*items)


class GeminiEvents:
    """Responses of `streamGenerateContent`: each event is a whole one, and nothing marks the end but `finishReason`."""

    comment = b": keep-alive\n\n"
    _errors: ClassVar = {"server_error": (500, "INTERNAL"), "UNAVAILABLE": (503, "UNAVAILABLE")}

    def event(self, **fields: Any) -> bytes:
        return _data({**fields, "modelVersion": "m-1", "responseId": "r-1"})

    def parts(self, *parts: dict[str, Any], **candidate: Any) -> bytes:
        return self.event(candidates=[{"content": {"role": "model", "parts": list(parts)}, "index": 0, **candidate}])

    def text(self, text: str, **fields: Any) -> bytes:
        return self.parts({"text": text, **fields})

    def call(self, id: Any, name: str, arguments: str = "{}", **fields: Any) -> bytes:
        """A call, its arguments exactly as given; what is not JSON is sent as a string."""
        call = {"id": id, "name": name, "args": "@"} if id is not None else {"name": name, "args": "@"}
        try:
            json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = json.dumps(arguments)
        return self.parts({"functionCall": call, **fields}).replace(b'"@"', arguments.encode())

    def finish(self, reason: str = "STOP", *, input: int | None = 7, output: int = 5, **candidate: Any) -> bytes:
        """The last event, which has no content; with `input=None` it has no usage either."""
        usage: dict[str, Any] = {"usageMetadata": {"promptTokenCount": input, "candidatesTokenCount": output}}
        return self.event(
            candidates=[{"finishReason": reason, "index": 0, **candidate}], **(usage if input is not None else {})
        )

    def error(self, type: str, message: str = "no luck") -> bytes:
        code, status = self._errors.get(type, (400, type))
        return _data({"error": {"code": code, "message": message, "status": status}})

    def says(self, *texts: str) -> list[bytes]:
        """A complete text reply."""
        return [*map(self.text, texts), self.finish()]

    def calls(self, *calls: tuple[str, str, str], says: str = "") -> list[bytes]:
        """A complete reply with tool calls, of which the first one is signed."""
        signed = [
            self.call(*call, **({} if index else {"thoughtSignature": "c2ln"})) for index, call in enumerate(calls)
        ]
        return [*([self.text(says)] if says else []), *signed, self.finish()]


class EventBuilder(Protocol):
    """Methods that all of these classes have."""

    comment: bytes

    def says(self, *texts: str) -> list[bytes]: ...

    def calls(self, *calls: tuple[str, str, str], says: str = "") -> list[bytes]: ...

    def error(self, type: str, message: str = "no luck") -> bytes: ...


o = OpenAIEvents()
a = AnthropicEvents()
r = ResponsesEvents()
g = GeminiEvents()
