"""What the model of a gateway that is killed replies, round by round."""

PAUSE = 0.003
WORDS = "The quick brown fox jumps over the lazy dog and then it sleeps until noon."
SCRIPTS = {
    "text": [WORDS],
    "tool": ["Let me see. !one", WORDS],
    "tools": ["!one", "And again. !two", WORDS],
    "approval": ["I would like to try. ?three", WORDS],
}
"""Replies to a message by name of the script. `!name` calls a tool, `?name` one that requires approval."""


def whole_text(script: str) -> str:
    """Return the text of all replies to a message."""
    return "".join(reply.partition("!")[0].partition("?")[0] for reply in SCRIPTS[script])
