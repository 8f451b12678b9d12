"""History limits: which messages of a conversation the model is sent.

A tool call is never separated from its result, and the newest user message is always included.
"""

from collections.abc import Callable, Sequence

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.messages import Message, ToolCall, ToolResult, approximate_tokens, find_unpaired, tool

_INTERRUPTED = "This call was interrupted; it may have happened. It was not retried."


class History(msgspec.Struct, frozen=True):
    """Limits on the messages sent to the model; stored conversations stay complete. `count` counts tokens."""

    max_messages: int | None = None
    max_tokens: int | None = None
    count: Callable[[Message], int] = approximate_tokens

    def __post_init__(self) -> None:
        for name, limit in (("max_messages", self.max_messages), ("max_tokens", self.max_tokens)):
            if limit is not None and limit < 1:
                raise ConfigError(f"History({name}=…) must be at least 1, got {limit}")

    def select(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the newest messages within the limits, always with the newest user message and the newest unit."""
        if self.max_messages is None and self.max_tokens is None:
            return messages
        units = split_units(messages)
        question = next((index for index in reversed(range(len(units))) if _is_user_message(units[index][0])), -1)
        required = {question, len(units) - 1} - {-1}
        messages_left = _or_infinite(self.max_messages) - sum(len(units[index]) for index in required)
        tokens_left = _or_infinite(self.max_tokens) - sum(self._tokens(units[index]) for index in required)
        selected = set(required)
        for index in reversed(range(len(units))):
            if index in required:
                continue
            messages_left -= len(units[index])
            tokens_left -= self._tokens(units[index])
            if messages_left < 0 or tokens_left < 0:
                break
            selected.add(index)
        return _drop_leading_replies(units, sorted(selected))

    def halved(self, messages: Sequence[Message]) -> "History":
        """Return limits at half the tokens of this conversation, for a model that rejected it as too long."""
        half = sum(self.count(message) for message in self.select(messages)) // 2
        return msgspec.structs.replace(self, max_tokens=max(1, half))

    def _tokens(self, unit: Sequence[Message]) -> int:
        return sum(self.count(message) for message in unit) if self.max_tokens is not None else 0


def _is_user_message(message: Message) -> bool:
    """Return whether a person wrote the message; synthetic messages are instructions of the loop itself."""
    return message.role == "user" and not message.metadata.get("synthetic")


def split_units(messages: Sequence[Message]) -> list[list[Message]]:
    """Group messages that must stay together: one with tool calls and its results; any other stands alone."""
    units: list[list[Message]] = []
    for message in messages:
        if message.role == "tool" and units and units[-1][-1].tool_calls:
            units[-1].append(message)
        else:
            units.append([message])
    return units


def repair_history(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with a result right after every call, and no result without a call.

    Turns always leave it so; imported or edited conversations may not be.
    """
    if find_unpaired(messages) is None:
        return list(messages)
    repaired: list[Message] = []
    for index, message in enumerate(messages):
        remaining = _without_stray_parts(message) if message.role != "tool" else None
        if remaining is not None:
            repaired.append(remaining)
            if remaining.tool_calls:
                repaired.append(_results_for(remaining, messages, index + 1))
    return repaired


def _without_stray_parts(message: Message) -> Message | None:
    """Remove calls from messages that are not the model's, and results; None if nothing remains."""
    strays = ToolResult if message.role == "assistant" else ToolResult | ToolCall
    parts = tuple([part for part in message.parts if not isinstance(part, strays)])
    if len(parts) == len(message.parts):
        return message
    return msgspec.structs.replace(message, parts=parts) if parts else None


def _results_for(message: Message, messages: Sequence[Message], start: int) -> Message:
    """Return the next message if it answers all calls; else build one from results before the model's next message."""
    wanted = [call.id for call in message.tool_calls]
    after = messages[start] if start < len(messages) else message
    if [result.call_id for result in after.tool_results] == wanted and after.role == "tool" and not after.tool_calls:
        return after
    found: dict[str, ToolResult] = {}
    for later in messages[start:]:
        if later.role == "assistant":
            break
        found.update({result.call_id: result for result in later.tool_results})
    return tool(*(found.get(id) or ToolResult(id, "unknown", _INTERRUPTED, "unknown") for id in wanted))


def _drop_leading_replies(units: list[list[Message]], selected: list[int]) -> list[Message]:
    """Start at a user or system message: a reply without its question only confuses the model."""
    start = next((start for start, index in enumerate(selected) if units[index][0].role in ("user", "system")), 0)
    return [message for index in selected[start:] for message in units[index]]


def _or_infinite(limit: int | None) -> float:
    return float("inf") if limit is None else limit
