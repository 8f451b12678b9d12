"""JSON as models write it: single quotes, bare keys, trailing commas, comments, Python's words. Then read strictly."""

import json
import re
from typing import Any

from atlas_agents.core.json import parse_object

_MOST = 200_000
_TOKEN = re.compile(
    r"""
      (?P<space>\s+|//[^\n]*|/\*.*?\*/|\#[^\n]*)
    | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))
    | (?P<word>[A-Za-z_$][\w$-]*)
    | (?P<mark>[{}\[\],:])
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PLAIN_ESCAPES = frozenset('"\\/bfnrtu')


def read_object(text: str) -> dict[str, Any]:
    """The first object in a text, or ValueError. What is JSON is read as JSON, and nothing follows from a guess:
    whatever the text could mean in two ways is an error."""
    start = text.find("{")
    if start < 0 or len(text) > _MOST:
        raise ValueError("there is no object")
    text = text[start:]
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return parse_object(_as_json(text))
    return parse_object(text[:end])


def _as_json(text: str) -> str:
    """The object at the beginning of the text, token by token, as JSON."""
    made: list[str] = []
    place = depth = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise ValueError(f"unexpected {text[place]!r}")
        place = token.end()
        if token.lastgroup == "space":
            continue
        mark = token[0] if token.lastgroup == "mark" else ""
        if mark in ("}", "]") and made and made[-1] == ",":
            made.pop()  # a trailing comma
        made.append(_written(token, text, place))
        depth += (mark in ("{", "[")) - (mark in ("}", "]"))
        if mark and depth == 0:
            return "".join(made)
    raise ValueError("the object has no end")


def _written(token: re.Match[str], text: str, end: int) -> str:
    found = token[0]
    match token.lastgroup:
        case "string":
            return _string(found)
        case "number":
            return _number(found)
        case "word":
            is_key = text[end:].lstrip()[:1] == ":"
            if not is_key and found not in _WORDS:
                raise ValueError(f"{found!r} has no quotes")
            return json.dumps(found) if is_key else _WORDS[found]
        case _:
            return found


def _string(found: str) -> str:
    inner = found[1:-1]
    if found[0] == "'":
        inner = inner.replace("\\'", "'")
        inner = re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', inner)
    inner = _ESCAPED.sub(lambda match: match[0] if match[1] in _PLAIN_ESCAPES else match[1], inner)
    inner = inner.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f'"{inner}"'


def _number(found: str) -> str:
    sign, digits = ("-", found[1:]) if found[0] == "-" else ("", found.lstrip("+"))
    if digits[:2] in ("0x", "0X"):
        return f"{sign}{int(digits, 16)}"
    digits = f"0{digits}" if digits.startswith(".") else digits
    return f"{sign}{digits}0" if digits.endswith(".") else f"{sign}{digits}"
