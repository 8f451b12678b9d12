"""Server-sent events of both vendors: one method per event, so that a test reads like the stream it sends."""

import json
from typing import Any, Protocol

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


class EventBuilder(Protocol):
    """Methods that both classes have."""

    comment: bytes

    def says(self, *texts: str) -> list[bytes]: ...

    def calls(self, *calls: tuple[str, str, str], says: str = "") -> list[bytes]: ...

    def error(self, type: str, message: str = "no luck") -> bytes: ...


o = OpenAIEvents()
a = AnthropicEvents()
