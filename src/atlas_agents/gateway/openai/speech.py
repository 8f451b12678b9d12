"""What a turn says, as one text: tools are not heard, and the messages between them are paragraphs."""

from atlas_agents.core.events import Event, StreamChunk, StreamEnd, StreamReset, ToolCalled, Usage
from atlas_agents.core.messages import Message
from atlas_agents.gateway.openai.shapes import FinishReason, InputDetails, UsageShape

_BETWEEN = "\n\n"
_ENDINGS: dict[object, FinishReason] = {"length": "length", "refusal": "content_filter"}


class Speech:
    """Listens to a turn. `withdrawn` once words were taken back that somebody may have read already."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.withdrawn = False
        self._messages: list[str] = []
        self._words: list[str] = []

    def hear(self, event: Event) -> str:
        """The words that come with an event."""
        match event:
            case StreamChunk(_, text):
                said = _BETWEEN + text if self._messages and not self._words else text
                self._words.append(said)
                return said
            case StreamReset():
                self.withdrawn = self.withdrawn or bool(self._words)
                self._words.clear()
            case ToolCalled() if self._words:
                self._messages.append("".join(self._words))
                self._words.clear()
            case StreamEnd(_, usage):
                self.usage = usage
            case _:
                pass
        return ""

    @property
    def text(self) -> str:
        return "".join(self._messages) + "".join(self._words)


def finish_reason(reply: Message) -> FinishReason:
    """Why the answer ends here. An agent whose rounds were used up has not come to its end either."""
    if reply.tool_calls:
        return "length"
    return _ENDINGS.get(reply.metadata.get("stop_reason"), "stop")


def usage_shape(usage: Usage) -> UsageShape:
    total = usage.input_tokens + usage.output_tokens
    return UsageShape(usage.input_tokens, usage.output_tokens, total, InputDetails(usage.cached_tokens))
