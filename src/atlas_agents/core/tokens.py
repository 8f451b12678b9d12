"""How long a message is for a model, before the model has said so."""

from atlas_agents.core.json import encode
from atlas_agents.core.memo import memo
from atlas_agents.core.messages import Message

_CHARACTERS_PER_TOKEN = 3.6
_TOKENS = "approximate_tokens"


def approximate_tokens(message: Message) -> int:
    """A message's tokens by the length of its JSON; counted once per message."""
    found: int | None = getattr(message, _TOKENS, None)
    if found is None:
        found = memo(message)[_TOKENS] = round(len(encode(message.parts)) / _CHARACTERS_PER_TOKEN) + 4
    return found
