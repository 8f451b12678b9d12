"""What a run has said so far, put together from its events."""

from atlas_agents.client.feed import SessionEvent
from atlas_agents.gateway.protocol.events import ChatDelta, ChatError, ChatFinal, ChatMessage, ChatReset
from atlas_agents.gateway.protocol.sessions import RunPosition
from atlas_agents.gateway.protocol.shapes import MessageShape, Part, TextPart, ToolCallPart


class Words:
    """Messages that are complete, and the one under way. `over` when nothing more comes."""

    def __init__(self) -> None:
        self.over = False
        self._complete: dict[str, str] = {}
        self._now = ""
        self._remark = ""

    @property
    def text(self) -> str:
        pieces = [*self._complete.values(), self._now, self._remark]
        return "\n\n".join(piece for piece in map(str.strip, pieces) if piece)

    def hear(self, event: SessionEvent) -> None:
        match event:
            case ChatDelta(text=text):
                self._now += text
            case ChatReset():
                self._now = ""
            case RunPosition(parts=parts):
                self._now = _text(parts or ())
            case ChatMessage(message=message):
                self._add(message)
            case ChatFinal():
                self._end(event)
            case ChatError(message=words):
                self.over, self._remark = True, f"(It failed: {words})"
            case _:
                pass

    def _add(self, message: MessageShape) -> None:
        if message.role == "assistant":
            self._complete[message.id] = _text(message.parts)
            self._now = ""

    def _end(self, last: ChatFinal) -> None:
        self.over = True
        if last.message is not None:
            self._add(last.message)
            if any(isinstance(part, ToolCallPart) for part in last.message.parts):
                self._remark = "(It stopped here: all its rounds are spent.)"
        if last.cancelled:
            self._remark = "(Stopped.)"
        elif not self.text:
            self._remark = "(There is no answer.)"


def _text(parts: tuple[Part, ...]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))
