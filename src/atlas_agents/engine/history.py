"""How much of a conversation a model is shown: never half of a call and its result, never without the last question."""

from collections.abc import Callable, Sequence

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.messages import Message, ToolCall, ToolResult, broken_at, tool
from atlas_agents.core.tokens import approximate_tokens

_LOST = "This call was interrupted; it may have happened. It was not retried."


class History(msgspec.Struct, frozen=True):
    """Limits on what is sent; what is stored stays whole. `count` tells the tokens of a message."""

    max_messages: int | None = None
    max_tokens: int | None = None
    count: Callable[[Message], int] = approximate_tokens

    def __post_init__(self) -> None:
        for name, limit in (("max_messages", self.max_messages), ("max_tokens", self.max_tokens)):
            if limit is not None and limit < 1:
                raise ConfigError(f"History({name}=…) must be at least 1, not {limit}")

    def shown(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The end of a conversation that fits: whole units, the newest question and the newest unit in any case."""
        if self.max_messages is None and self.max_tokens is None:
            return messages
        found = units(messages)
        question = next((place for place in reversed(range(len(found))) if _asks(found[place][0])), -1)
        must = {question, len(found) - 1} - {-1}
        messages_left = _or_endless(self.max_messages) - sum(len(found[place]) for place in must)
        tokens_left = _or_endless(self.max_tokens) - sum(self._weigh(found[place]) for place in must)
        kept = set(must)
        for place in reversed(range(len(found))):
            if place in must:
                continue
            messages_left -= len(found[place])
            tokens_left -= self._weigh(found[place])
            if messages_left < 0 or tokens_left < 0:
                break
            kept.add(place)
        return _from_a_question(found, sorted(kept))

    def halved(self, messages: Sequence[Message]) -> "History":
        """Limits at half of what this conversation takes: for a model that said it was too much."""
        half = sum(self.count(message) for message in self.shown(messages)) // 2
        return msgspec.structs.replace(self, max_tokens=max(1, half))

    def _weigh(self, unit: Sequence[Message]) -> int:
        return sum(self.count(message) for message in unit) if self.max_tokens is not None else 0


def _asks(message: Message) -> bool:
    """A person's words; what the engine itself says in a turn is not what the turn is about."""
    return message.role == "user" and not message.metadata.get("synthetic")


def units(messages: Sequence[Message]) -> list[list[Message]]:
    """What must stay together: a message with calls and its results are one, every other message is one by itself."""
    found: list[list[Message]] = []
    for message in messages:
        if message.role == "tool" and found and found[-1][-1].tool_calls:
            found[-1].append(message)
        else:
            found.append([message])
    return found


def mended(messages: Sequence[Message]) -> list[Message]:
    """The same conversation with every call answered right after it and no answer without a call.

    What a turn of ours leaves is already so; what was imported or edited may not be.
    """
    if broken_at(messages) is None:
        return list(messages)
    whole: list[Message] = []
    for place, message in enumerate(messages):
        kept = _in_place(message) if message.role != "tool" else None
        if kept is not None:
            whole.append(kept)
            if kept.tool_calls:
                whole.append(_answers(kept, messages, place + 1))
    return whole


def _in_place(message: Message) -> Message | None:
    """Without calls that are not the model's and results outside a tool message; None when nothing else is in it."""
    strays = ToolResult if message.role == "assistant" else ToolResult | ToolCall
    parts = tuple([part for part in message.parts if not isinstance(part, strays)])
    if len(parts) == len(message.parts):
        return message
    return msgspec.structs.replace(message, parts=parts) if parts else None


def _answers(message: Message, messages: Sequence[Message], start: int) -> Message:
    """The message right after if it answers all calls; else what is found before the model speaks again."""
    wanted = [call.id for call in message.tool_calls]
    after = messages[start] if start < len(messages) else message
    if [result.call_id for result in after.tool_results] == wanted and after.role == "tool" and not after.tool_calls:
        return after
    given: dict[str, ToolResult] = {}
    for later in messages[start:]:
        if later.role == "assistant":
            break
        given.update({result.call_id: result for result in later.tool_results})
    return tool(*(given.get(id) or ToolResult(id, "unknown", _LOST, "unknown") for id in wanted))


def _from_a_question(found: list[list[Message]], kept: list[int]) -> list[Message]:
    """Begin with a user's or a system message: an answer whose question was cut off only confuses."""
    start = next((place for place, unit in enumerate(kept) if found[unit][0].role in ("user", "system")), 0)
    return [message for unit in kept[start:] for message in found[unit]]


def _or_endless(limit: int | None) -> float:
    return float("inf") if limit is None else limit
