"""What a person is shown before they say yes: all that is there, and nothing that could pass for something else."""

import json
import unicodedata
from typing import Any

_NO_INK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")


def exact(value: Any) -> str:
    """A value as JSON in which every character that is not seen, or not seen as what it is, stands as its escape.

    It is still JSON for the same value, so that it can be edited and read back.
    """
    return "".join(map(_seen, json.dumps(value, ensure_ascii=False, default=str)))


def seen(text: str) -> str:
    """Lines of text in which nothing can hide: all but tabs and ends of lines stand as what is seen, or escaped."""
    return "".join(char if char in "\n\t" else _seen(char) for char in text)


def _seen(char: str) -> str:
    if char.isprintable() and char not in _NO_INK and not _varies(char):
        return char
    return "".join(f"\\u{unit:04x}" for unit in _units(char))


def _varies(char: str) -> bool:
    """Chooses another look for the character before it; a model reads it, a person does not see it."""
    return 0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF or unicodedata.category(char) == "Me"


def _units(char: str) -> list[int]:
    code = ord(char)
    if code < 0x10000:
        return [code]
    return [0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF)]
