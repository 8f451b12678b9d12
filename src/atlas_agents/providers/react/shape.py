"""A tool's parameters as an object to be filled in. A model that is shown a JSON schema tends to write one back."""

import json
from typing import Any

_WORDS = {"string": '"…"', "integer": "0", "number": "0.0", "boolean": "true or false"}


def shape(schema: dict[str, Any]) -> str:
    """`{"city": "…" (which one), "days": 0 (optional)}`; what cannot be said in this way stays a schema."""
    properties: dict[str, dict[str, Any]] = schema.get("properties") or {}
    if not all(map(_is_plain, properties.values())) or (not properties and schema.get("additionalProperties", True)):
        return json.dumps(schema, ensure_ascii=False)
    required = schema.get("required") or ()
    return "{" + ", ".join(_field(name, each, name in required) for name, each in properties.items()) + "}"


def _is_plain(each: dict[str, Any]) -> bool:
    kind = each.get("type")
    return "enum" in each or (isinstance(kind, str) and kind in _WORDS)


def _field(name: str, each: dict[str, Any], required: bool) -> str:
    one_of = each.get("enum")
    value = " or ".join(json.dumps(one, ensure_ascii=False) for one in one_of) if one_of else _WORDS[each["type"]]
    limits = [f"{word} {each[key]}" for key, word in _LIMITS.items() if key in each]
    said = [each.get("description", "").strip().rstrip("."), *limits, "" if required else "optional"]
    note = "; ".join(filter(None, said))
    return f"{json.dumps(name, ensure_ascii=False)}: {value}" + (f" ({note})" if note else "")


_LIMITS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
    "minLength": "characters at least",
    "maxLength": "characters at most",
    "pattern": "matches",
    "format": "as",
    "default": "by default",
}
