"""A model's message while it is being written."""

from atlas_agents.core.messages import Opaque, Part, Text, Thinking, ToolCall


class Draft:
    """Gathers chunks into parts, in the order they came. `words` is the text that is not yet a part."""

    __slots__ = ("_parts", "words")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self.words: list[str] = []

    def think(self, text: str, signature: str) -> None:
        """Go on with the thought under way, or begin one."""
        last = self._parts[-1] if self._parts and not self.words else None
        if isinstance(last, Thinking) and not last.signature:
            self._parts[-1] = Thinking(last.text + text, signature)
        else:
            self.put(Thinking(text, signature))

    def put(self, part: Thinking | ToolCall | Opaque) -> None:
        """Add a part; the text before it becomes one of its own."""
        self._close()
        self._parts.append(part)

    def withdraw(self) -> None:
        self._parts.clear()
        self.words.clear()

    def finish(self) -> tuple[Part, ...]:
        self._close()
        return tuple(self._parts)

    def spoken(self) -> tuple[Text | Thinking, ...]:
        """What of it was said, and no call: of a message that is never completed, what stays."""
        self._close()
        return tuple([part for part in self._parts if isinstance(part, Text | Thinking)])

    @property
    def text(self) -> str:
        return "".join([part.text for part in self._parts if isinstance(part, Text)]) + "".join(self.words)

    def _close(self) -> None:
        if self.words:
            self._parts.append(Text("".join(self.words)))
            self.words.clear()
