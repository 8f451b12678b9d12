"""Redaction: removes secrets from logs, stored data and results, by field name, by known value and by pattern."""

import base64
import html
import json
import math
import os
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache, partial
from itertools import islice
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import quote, quote_plus, unquote, urlsplit

from atlas_agents.core.json import encode
from atlas_agents.core.text import clean, is_distinctive
from atlas_agents.tools import secret_rules as rules

REDACTED = "[REDACTED]"
NameClass: TypeAlias = Literal["secret", "unclear", "harmless"]
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_MAX_CACHED, _MAX_FIELDS = 200, 4096
_MIN_SECRET = 5
_LONG_TEXT = 256
_MARGIN = 4_000
"""Characters read after the last one returned, so that a secret at the end is recognized."""
_MAX_DEPTH = 64
_MAX_TRACE = 100_000
_MIN_BASE64 = 24
_MAX_ENCODED = 16_000
_MAX_LINES = 500
"""Longer than the file of any key."""
_MAX_SEARCHED = 200
"""Maximum number of secrets of one text that are searched for elsewhere, and of one call in other encodings."""
_MIN_HELD, _MAX_HELD, _TAIL = 4, 8_192, 64
"""Characters of a stream that are held back as a possible start of a secret, and characters that are remembered."""
_NOT_SECRET = frozenset(("PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "KRB5CCNAME", "pwd"))
"""Names of variables that contain paths, not secrets."""
_PLAIN_SETTING = re.compile(r"[A-Za-z]+(?:[ _-][A-Za-z]+)*|[\d.,:]+|\w+://[^@?\s]*|(?:[\w-]+\.)+[A-Za-z]{2,}(?::\d+)?")
"""Words, numbers and addresses: values of settings such as `AUTH_MODE`, `MAX_TOKENS` or `COOKIE_DOMAIN`."""
_BOT_ID = re.compile(r"\d{6}:")
_KEY_END = "-----END"
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_BASE64 = re.compile(rf"[A-Za-z0-9+/_-]{{{_MIN_BASE64},}}={{0,2}}")
_PLACEHOLDER = re.compile(
    r"\$(?:[A-Z_][A-Z0-9_]*|[{(].*)|<[\w .-]*>|\{.*\}|%\w+%|[.…*xX]{2,}|\[REDACTED\]"
    r"|[Nn]one|[Nn]ull|[Tt]rue|[Ff]alse|undefined|str|int|bytes|string"
)
"""Values that stand for a secret: variables, templates, types and asterisks."""
_CODE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|_\w+")
"""Attributes and private names in source code."""
_REST = re.compile(r"[^\s\"'\\&,;<>(){}\[\]|]*")
_NAME_START = re.compile(r"[\w.-]*\Z")
_NAME_HINT = re.compile("key|token|secret|pass|pwd|auth|cookie|cred|jwt|dsn|conn|otp")
_ASSIGNMENT = re.compile(
    rf"(?:{_NAME_HINT.pattern})(?P<rest>[\w-]{{0,40}})"
    r"(?P<separator>\\*[\"']\s*[:=]\s*|\s*=\s*|:[ \t]+|[ \t]+)\\*"
    r"(?:\"(?P<double>[^\"\\\n]+)|'(?P<single>[^'\\\n]+)|(?P<bare>[^\s\"'\\&,;<>(){}\[\]|=]{4,512}))"
)
"""`name=value`, `"name": value`, `name: value` and `--name value` in lowercase; the name may start before the match."""

_ASSIGNMENT_IN_ANY_CASE = re.compile(_ASSIGNMENT.pattern, re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Return whether a field with this name holds a secret: `DB_PASS` and `apiKey` do, `monkey` and `primary_key` do
    not."""
    return classify_name(name) == "secret"


def classify_name(name: str) -> NameClass:
    """Return whether a field holds a secret by its name. For `unclear` names, such as `key`, the value decides."""
    return _classify_name(name) if len(name) <= _MAX_CACHED else _classify_name.__wrapped__(name)


@lru_cache(maxsize=4096)
def _classify_name(name: str) -> NameClass:
    words = [word.lower() for word in _WORDS.findall(name)]
    whole: str = "".join(words)
    if not words or whole in rules.HARMLESS_NAMES:
        return "harmless"
    if any(phrase in whole for phrase in rules.SECRET_PHRASES):
        return "secret"
    is_secret = not rules.SECRET_WORDS.isdisjoint(words) or whole.endswith(rules.SECRET_ENDINGS)
    is_key = not _KEYS.isdisjoint(words)
    if not is_secret and not is_key:
        return "harmless"
    if words[-1] in rules.DESCRIBING_WORDS:
        return "unclear"
    names_key = ("key" in words or "keys" in words) and not rules.KEY_WORDS.isdisjoint(words)
    return "secret" if is_secret or names_key else "unclear"


_KEYS = frozenset(("key", "keys", "tokens"))


def looks_random(value: str) -> bool:
    """Return whether a value looks like a generated key rather than words, numbers, a UUID or an address."""
    if len(value) < rules.MIN_TOKEN or any(char.isspace() for char in value) or _UUID.fullmatch(value):
        return False
    pieces = _WORDS.findall(value, 0, 256)
    has_both = any(piece.isdigit() for piece in pieces) and any(piece.isalpha() for piece in pieces)
    return has_both and sum(map(len, pieces)) < 3 * len(pieces) and not _PLAIN_SETTING.fullmatch(value)


def holds_secret(name: str, value: object) -> bool:
    """Return whether a field holds a secret, by its name and, if the name is unclear, by its value."""
    if value is None or isinstance(value, bool) or (name in _NOT_SECRET and str(value).startswith("/")):
        return False
    found = classify_name(name)
    return found == "secret" or (found == "unclear" and isinstance(value, str) and looks_random(value))


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _replace(match: re.Match[str], removed: list[str] | None) -> str:
    """Redact the group `secret` of a match, or all of it. A placeholder such as `$TOKEN` stays."""
    named = "secret" in match.re.groupindex
    secret = match["secret"] if named else match[0]
    if named and _PLACEHOLDER.fullmatch(secret):
        return match[0]
    if removed is not None:
        removed.append(secret)
    start, end = match.span("secret" if named else 0)
    return match.string[match.start() : start] + REDACTED + match.string[end : match.end()]


def _apply(found: Iterable[rules.SecretRule], text: str, searched: str, removed: list[str] | None) -> str:
    """Apply the rules of which a hint occurs in `searched`."""
    for rule in found:
        for hint in rule.hints:
            if hint in searched:
                text = _compile(rule.pattern).sub(partial(_replace, removed=removed), text)
                break
    return text


def _redact_formats(text: str, levels: int = 1, removed: list[str] | None = None) -> str:
    """Remove text that looks like a secret: tokens of vendors, also in base64, passwords in commands, and values after
    secret names. Removed secrets are added to `removed`, except base64."""
    if not _may_hold_secret(text):
        return text
    text = _apply(rules.TEXT_RULES, text, text, removed)
    words = [word for word in text.split() if len(word) >= rules.MIN_TOKEN]
    if words:
        if _vendor_hint().search(joined := " ".join(words)):
            text = _apply(rules.VENDOR_RULES, text, joined, removed)
        if levels:
            text = _redact_base64(text, words)
    if "=" not in text and ":" not in text and " " not in text:
        return text
    lowercase = text.lower()
    text = _apply(rules.HEADER_RULES, text, lowercase, removed)
    if " -" in text:
        text = _apply(rules.COMMAND_RULES, text, lowercase, removed)
    if ("=" in text or ":" in text or " --" in text) and _NAME_HINT.search(lowercase):
        text = _redact_assignments(text, removed)
    return text


@cache
def _vendor_hint() -> re.Pattern[str]:
    """Return a pattern of all hints of vendors. Grouped by their first letter, they are found in a tenth of the time
    of a search for each."""
    groups: dict[str, list[str]] = {}
    for rule in rules.VENDOR_RULES:
        for hint in rule.hints:
            groups.setdefault(hint[0], []).append(re.escape(hint[1:]))
    return re.compile("|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in groups.items()))


def _may_hold_secret(text: str) -> bool:
    """Return whether a text may match any rule of a format. This quick check is only used for short texts."""
    if len(text) < rules.MIN_TOKEN and " " not in text:  # as most names of fields
        return "=" in text or ":" in text or "-" in text
    if len(text) >= _SHORT_TEXT or not text.isascii():
        return len(text) >= _SHORT_TEXT or _MAY_HOLD_SECRET.search(text) is not None
    if "=" in text or ":" in text or "-" in text:
        return True
    lowercase = text.lower()  # the same as the pattern, in a fifth of the time
    if "bearer " in lowercase or "basic " in lowercase or "login " in lowercase:
        return True
    return len(text) >= rules.MIN_TOKEN and max(map(len, text.split()), default=0) >= rules.MIN_TOKEN


_SHORT_TEXT = 200
_MAY_HOLD_SECRET = re.compile(rf"[=:-]|\S{{{rules.MIN_TOKEN}}}|(?i:bearer|basic|login) ")
"""Pattern that every rule of a format needs. In a short text, one search is faster than the hints of all rules."""


def _redact_assignments(text: str, removed: list[str] | None = None) -> str:
    lowercase = text.lower()
    same_length = len(lowercase) == len(text)  # not for a few letters, such as U+0130
    pattern, searched = (_ASSIGNMENT, lowercase) if same_length else (_ASSIGNMENT_IN_ANY_CASE, text)
    pieces: list[str] = []
    copied = position = 0
    while match := pattern.search(searched, position):
        before = _NAME_START.search(text, max(copied, match.start() - 64), match.start())
        name = text[before.start() if before else match.start() : match.end("rest")]
        kind = match.lastgroup or "bare"
        start, end = match.span(kind)
        if _is_secret_assignment(name, match["separator"], text[start:end], _following(text, end, kind)):
            quotes = kind != "bare"
            pieces += (text[copied : start - quotes], REDACTED)
            more = _REST.match(text, end)
            copied = position = end + quotes if quotes or more is None else more.end()
            if removed is not None:
                removed.append(text[start : copied - quotes])
        else:
            position = match.end("rest")
    return "".join((*pieces, text[copied:])) if pieces else text


def _following(text: str, end: int, kind: str) -> str | None:
    """Return the character after an unquoted value; None for a quoted value."""
    return text[end : end + 1] if kind == "bare" else None


def _is_secret_assignment(name: str, separator: str, value: str, after: str | None) -> bool:
    if _PLACEHOLDER.fullmatch(value) or not holds_secret(name, value):
        return False
    if separator.isspace():  # `--password value`
        return name.startswith("--") and not value.startswith("-")
    if after is None:
        return True
    if after in ("(", "[", "{") or _CODE.fullmatch(value) or value.startswith("/"):
        return False
    if separator.startswith(":") or separator != separator.strip():  # `password: value`, `password = value`
        return after in ("", "\n", "\r") and not _PLAIN_SETTING.fullmatch(value) and not value.isidentifier()
    return classify_name(value) != "secret" or not value.isidentifier()


def _may_be_token(word: str) -> bool:
    """Return whether the start of a token of a vendor is in a word."""
    hints = (hint for rule in rules.VENDOR_RULES for hint in rule.hints)
    return any(hint in word for hint in hints if len(hint) > 1) or _BOT_ID.search(word) is not None


def _redact_base64(text: str, words: list[str]) -> str:
    """Remove base64 text that contains a secret."""
    if max(map(len, words)) < _MIN_BASE64:
        return text
    return _BASE64.sub(lambda match: REDACTED if _encodes_secret(match[0]) else match[0], text)


def _encodes_secret(run: str) -> bool:
    decoded = _decode_base64(run)
    return decoded.isascii() and decoded != _redact_formats(decoded, levels=0)


class Redactor:
    """Removes secrets from texts and data, including known values and those of environment variables."""

    def __init__(self, secrets: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._known: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._starts: frozenset[str] = frozenset()
        self._longest = 0
        self._fields: dict[str, NameClass] = {}
        self.add_secrets(*secrets, *find_secret_variables(os.environ if environment is None else environment))

    def add_secrets(self, *secrets: str) -> None:
        """Redact these values from now on, also in URL, JSON, HTML, hex and base64 encoding.

        A short or common value is ignored, because it would also be found in harmless texts.
        """
        known = set(self._known).union(*map(_find_forms, secrets))
        if len(known) != len(self._known):
            self._known = tuple(sorted(known, key=len, reverse=True))
            self._starts = frozenset(secret[:_MIN_HELD] for secret in known)
            self._longest = len(self._known[0])
            self._pattern = re.compile("|".join(re.escape(secret) for secret in self._known))
            self._fields = {}  # a check that runs in another thread may still add to the old one

    def share(self, other: "Redactor") -> None:
        """Share the known values of another redactor, including those that it learns later."""
        self.__dict__ = other.__dict__

    def text(self, text: str, also: Iterable[str] = ()) -> str:
        """Return a text without secrets and without the values in `also`, in any encoding.

        A secret that is recognized in one place is removed everywhere in the text.
        """
        text = self._remove_known(text) if self._pattern is not None else text
        text = _remove_each(text, also) if also else text
        if not _may_hold_secret(text):
            return text
        removed: list[str] = []
        text = _redact_formats(text, removed=removed)
        for secret in islice(dict.fromkeys(_split_logins(removed)), _MAX_SEARCHED) if removed else ():
            if is_distinctive(secret):
                text = text.replace(secret, REDACTED)
        return text

    def piece(self, text: str) -> str:
        """Return a piece of a stream without secrets, each only where it is recognized: the rest is shown already."""
        return _redact_formats(self._remove_known(text))

    def stream(self) -> "StreamRedactor":
        """Return a redactor for texts that arrive in pieces."""
        return StreamRedactor(self)

    def held_back(self, text: str) -> int:
        """Return the number of characters at the end of a text that may be the start of a secret."""
        opened = text.rfind("-----BEGIN")
        if opened >= 0 and _KEY_END not in text[opened:]:
            return len(text) - opened
        last = len(text) - max(text.rfind(" "), text.rfind("\n")) - 1
        if last >= _MIN_HELD and ("://" in text[-last:] or _may_be_token(text[-last:])):
            return last
        for start in range(max(0, len(text) - self._longest), len(text) - _MIN_HELD + 1):
            if text[start : start + _MIN_HELD] in self._starts:
                end = text[start:]
                if any(secret.startswith(end) and secret != end for secret in self._known):
                    return len(end)
        return 0

    def remove_known(self, value: Any) -> Any:
        """Return the same data without known secrets."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self._remove_known(value)
        if isinstance(value, dict):
            return {
                self.remove_known(key): self.remove_known(item) for key, item in cast(dict[Any, Any], value).items()
            }
        return [self.remove_known(item) for item in cast(list[Any], value)] if isinstance(value, list) else value

    def value(self, value: Any) -> Any:
        """Return a copy of plain data without secrets, by name and by value. The copy can always be encoded as JSON."""
        return _RedactedCopy(self).copy(value)

    def head(self, value: Any, size: int, also: Iterable[str] = ()) -> str:
        """Return the first `size` characters of a text, or of other data as JSON, without secrets and without
        `also`, in any encoding."""
        copied = _RedactedCopy(self, size).copy(value)
        text = copied if isinstance(copied, str) else encode(copied).decode()
        return (_remove_each(text, also) if also else text)[:size]

    def trace(self, error: BaseException, also: Iterable[str] = ()) -> str:
        """Return the redacted traceback of an error, including its causes."""
        return self.head("".join(traceback.format_exception(error)), _MAX_TRACE, also)

    def field(self, name: str) -> NameClass | None:
        """Return whether a field holds a secret by its name; None for a name that itself contains a secret."""
        fields = self._fields
        found = fields.get(name)
        if found is None and len(name) <= _MAX_CACHED and self.text(clean(name)) == name:
            if len(fields) >= _MAX_FIELDS:
                fields.clear()
            found = fields[name] = classify_name(name)
        return found

    def _remove_known(self, text: str) -> str:
        """Remove known secrets. One combined pattern is faster for a short text, replacing one by one for a long
        text."""
        if self._pattern is None or len(text) < _MIN_SECRET:
            return text
        if len(text) < _LONG_TEXT:
            return self._pattern.sub(REDACTED, text)
        for secret in self._known:
            text = text.replace(secret, REDACTED)
        return text


class StreamRedactor:
    """Redacts a text that arrives in pieces, also secrets that are split over pieces.

    The start of what may be a secret is held back until the next piece.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = self._tail = ""
        self._in_key = False
        """Whether the start of a private key was redacted that is too long to be held back."""

    def add(self, piece: str) -> str:
        """Add a piece and return the redacted text that can be shown."""
        text = self._held + clean(piece)
        if self._in_key:
            end = text.find(_KEY_END)
            if end < 0:
                self._held = text[1 - len(_KEY_END) :]
                return ""
            self._in_key, self._tail, text = False, "", text[end:]
        held = min(len(text), self._redactor.held_back(self._tail + text))
        shown = len(text) - held if held <= _MAX_HELD else len(text)
        self._held, self._in_key = text[shown:], held > _MAX_HELD and _opens_key(self._tail + text)
        return self._redact(text[:shown])

    def flush(self) -> str:
        """Return the held-back text once the stream has ended."""
        text, self._held = self._held, ""
        return "" if self._in_key else self._redact(text)

    def _redact(self, text: str) -> str:
        """Redact a text together with the end of the text that was shown before it."""
        if not text:
            return ""
        whole = self._tail + text
        shown, redacted = self._redactor.piece(self._tail), self._redactor.piece(whole)
        self._tail = whole[-_TAIL:]
        same = next((n for n, (a, b) in enumerate(zip(shown, redacted, strict=False)) if a != b), len(shown))
        return redacted[same:]


class _RedactedCopy:
    """Copies plain data without secrets, down to a maximum depth, until `budget` characters are used up."""

    def __init__(self, redactor: Redactor, budget: float = math.inf) -> None:
        self._redactor = redactor
        self._budget = budget

    def copy(self, value: Any, levels: int = _MAX_DEPTH) -> Any:
        self._budget -= 1
        kind = type(value)
        if kind is dict and levels:  # as below, but faster
            return self._mapping(cast(dict[Any, Any], value), levels - 1)
        if kind is list and levels:
            return self._list(cast(list[Any], value), levels - 1)
        if isinstance(value, str):
            return self._string(value, levels)
        if value is None or isinstance(value, int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if not levels:
            return "…"
        if isinstance(value, Mapping):
            return self._mapping(cast(Mapping[Any, Any], value), levels - 1)
        if isinstance(value, (list, tuple)):
            return self._list(cast(list[Any], value), levels - 1)
        return f"<{type(value).__name__}>"

    def _list(self, items: list[Any], levels: int) -> list[Any]:
        if len(items) == 2 and isinstance(items[0], str) and holds_secret(items[0], items[1]):
            return [self._redactor.text(clean(items[0])), REDACTED]  # a list of pairs
        copied: list[Any] = []
        option, in_key = "", False
        for item in items:
            if self._budget <= 0:
                break
            if in_key:  # the lines of a private key
                copied.append(REDACTED)
                option, in_key = "", not (isinstance(item, str) and _KEY_END in item)
                continue
            copied.append(self._argument(items[0], option, item) if option else self.copy(item, levels))
            if isinstance(item, str):
                in_key = "-----BEGIN" in item and _opens_key(item)
                option = item if item.startswith("-") and isinstance(items[0], str) else ""
            else:
                option = ""
        return copied

    def _argument(self, program: str, option: str, value: Any) -> Any:
        """Copy the value of an option in the arguments of a program, such as `["curl", "-u", "ana:tiger-7"]`."""
        copied = self.copy(value)
        if not isinstance(value, str) or value.startswith("-"):
            return copied
        before = f"{program} {option} "
        redacted = self._redactor.text(before + clean(value))
        changed = redacted.startswith(before) and redacted != before + clean(value)
        return redacted.removeprefix(before) if changed else copied

    def _mapping(self, value: Mapping[Any, Any], levels: int) -> dict[str, Any]:
        named = value.get("name") or value.get("key")
        pair = isinstance(named, str) and "value" in value and holds_secret(named, value["value"])
        redacted: dict[str, Any] = {}
        for key, item in value.items():
            if self._budget <= 0:
                break
            name = key if type(key) is str else str(key)
            kind = self._redactor.field(name)
            if kind == "harmless" and not pair:
                self._budget -= len(name)
                redacted[name] = self.copy(item, levels)
                continue
            shown = self._string(name, 0)
            secret = key == "value" if pair else holds_secret(name, item)
            redacted[shown] = REDACTED if secret else self._field(name, item, levels)
        return redacted

    def _field(self, name: str, value: Any, levels: int) -> Any:
        if isinstance(value, list) and classify_name(name) == "unclear":
            value = [REDACTED if holds_secret(name, each) else each for each in cast(list[Any], value)]
        return self.copy(value, levels)

    def _string(self, text: str, levels: int) -> str:
        """Redact a string. If it contains JSON, that is redacted as data; JSON without secrets stays unchanged."""
        if len(text) < _MIN_SECRET and text.isascii():  # as `_is_too_short`
            self._budget -= len(text)
            return text
        if self._budget < len(text):
            text = text[: int(self._budget) + _MARGIN]
        found = self._redactor.text(clean(text))
        if levels and ("{" in text or "[" in text) and (inner := _read_json(text)) is not None:
            redacted = self.copy(inner, levels - 1)
            if redacted != inner:
                found = clean(json.dumps(redacted, ensure_ascii=False))
        self._budget -= len(found)
        return found


def _opens_key(text: str) -> bool:
    """Return whether a private key begins in a text, and does not end in it."""
    begun = text.rfind("-----BEGIN")
    return begun >= 0 and "PRIVATE KEY" in text[begun : begun + 80] and _KEY_END not in text[begun:]


def _is_too_short(text: str) -> bool:
    """Return whether a text is too short to hold a secret, as most field names and many values are."""
    return len(text) < _MIN_SECRET and text.isascii()


def find_secrets(value: Any, name: str = "", levels: int = _MAX_DEPTH) -> list[str]:
    """Return the secrets in plain data that can be searched for in a text.

    They are the strings under secret names, also in pairs of a name and a value and in JSON, and the passwords in URLs,
    headers, settings and commands.
    """
    if isinstance(value, str):
        found = [value] if name and holds_secret(name, value) else _find_in_text(value, levels)
        return [part for each in found for part in _parts(each.strip()) if is_distinctive(part)]
    if not levels:
        return []
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value)
        named = items.get("name") or items.get("key")
        paired = str(named) if isinstance(named, str) and holds_secret(named, items.get("value")) else ""
        return [
            found
            for key, item in items.items()
            for found in find_secrets(item, name if is_secret_name(name) else _name_of(str(key), paired), levels - 1)
        ]
    if isinstance(value, (list, tuple)):
        items = cast(list[Any], value)
        if len(items) == 2 and isinstance(items[0], str) and holds_secret(items[0], items[1]):
            return find_secrets(items[1], items[0], levels - 1)
        listed = [found for item in items for found in find_secrets(item, name, levels - 1)]
        return listed + find_secrets(" ".join(items), levels=0) if _is_command(items) else listed
    return []


def _is_command(items: list[Any]) -> bool:
    """Return whether a list has the arguments of a program, such as `["curl", "-u", "ana:tiger-7"]`."""
    texts = [item for item in items if isinstance(item, str)]
    return len(texts) == len(items) and any([text.startswith("-") for text in texts[1:]])


def _name_of(key: str, paired: str) -> str:
    """Return the name of a value in a mapping; that of `value` may be in a field beside it."""
    return paired if paired and key == "value" else key


def _find_in_text(text: str, levels: int) -> list[str]:
    """Return the secrets that a text has by its format, or as JSON by the names of fields."""
    if _is_too_short(text):
        return []
    removed: list[str] = []
    _redact_formats(text, removed=removed)
    found = _split_logins(list(dict.fromkeys(removed))[:_MAX_SEARCHED])
    return found + find_secrets(_read_json(text), levels=levels - 1) if levels else found


def _split_logins(secrets: Iterable[str]) -> list[str]:
    """Return secrets and the passwords in those that have a user name, as in a URL."""
    return [part for secret in secrets for part in (secret, secret.partition(":")[2])]


def _read_json(text: str) -> Any:
    """Return the object or list that a text contains as JSON; None if it is something else."""
    ends = text.strip()
    if ends[:1] not in ("{", "[") or ends[-1:] not in ("}", "]"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def hide_named(hide: Callable[[Any], Any], data: Any) -> Callable[[Any], Any]:
    """Return a function that removes the same as `hide`, and also all values that have secret names in `data`.

    So a password in the arguments of a tool call is also removed from the texts that repeat it.
    """
    named = Redactor(find_secrets(data), environment={})
    return lambda value: hide(named.remove_known(value))


def find_secret_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the values of environment variables that are secrets."""
    names = [name for name in environment if classify_name(name) != "harmless"]  # the values of the others are not read
    return [value for name in names if _is_secret_variable(name, value := environment.get(name, ""))]


def find_stored_secrets(values: Mapping[str, str]) -> list[str]:
    """Return which of the values that a person stored by name are secrets: also those that look random.

    Others, such as folders and regions, must stay readable in the results of tools.
    """
    return [*find_secret_variables(values), *filter(looks_random, values.values())]


def _is_secret_variable(name: str, value: str) -> bool:
    """Return whether an environment variable, whose name is not harmless, holds a secret.

    A path, a common word and a plain setting are none.
    """
    if name in _NOT_SECRET or value.startswith("/") or value.strip().lower() in rules.COMMON_VALUES:
        return False
    last = next((word.lower() for word in reversed(_WORDS.findall(name)) if word.isalpha()), "")
    is_secret = last in rules.SECRET_WORDS or last == "key" or last.endswith(rules.SECRET_ENDINGS)
    return is_secret or not _PLAIN_SETTING.fullmatch(value.strip())


def _parts(secret: str) -> Iterable[str]:
    """Yield a secret, the password in it if it is a URL or a header, and its lines if it has several."""
    yield secret
    if "://" in secret and (password := _password_in(secret)):
        yield from (password, unquote(password))
    if (header := _AUTHORIZATION.fullmatch(secret)) is not None:
        yield header["value"]
        yield _decode_base64(header["value"]).partition(":")[2]
    if 0 < secret.count("\n") <= _MAX_LINES:
        yield from (line.strip() for line in secret.splitlines() if len(line) >= 16 and "-----" not in line)


_AUTHORIZATION = re.compile(r"(?i:basic|bearer|token|bot|apikey) +(?P<value>\S+)")


def _password_in(address: str) -> str | None:
    try:
        return urlsplit(address).password
    except ValueError:
        return None


def _decode_base64(text: str) -> str:
    """Decode base64 to text; empty if the content is not text."""
    letters = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(letters + "=" * (-len(letters) % 4)).decode()
    except ValueError:
        return ""


def _find_forms(secret: str) -> frozenset[str]:
    """Return every form of a secret and of its parts that is distinctive enough to be searched for."""
    return _find_cached_forms(secret) if len(secret) <= _MAX_CACHED else _find_cached_forms.__wrapped__(secret)


@lru_cache(maxsize=1024)
def _find_cached_forms(secret: str) -> frozenset[str]:
    parts = [part for part in _parts(secret.strip()) if is_distinctive(part)]
    return frozenset([form for part in parts for form in _encodings(part) if is_distinctive(form)])


def _remove_each(text: str, secrets: Iterable[str]) -> str:
    """Remove these values in every encoding, the longest first; one that is too common as it is written."""
    distinct = list(dict.fromkeys(secrets))
    found = {*distinct, *[form for secret in distinct[:_MAX_SEARCHED] for form in _find_forms(secret)]}
    for form in sorted(found, key=len, reverse=True):
        text = text.replace(form, REDACTED)
    return text


def _encodings(secret: str) -> set[str]:
    """Return the forms in which a secret may appear: plain, in a URL, in JSON, in HTML, in hex, and inside base64.

    One that is longer than any key is only searched for as it is and in JSON.
    """
    if len(secret) > _MAX_ENCODED:
        return {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    raw = secret.encode("utf-8", "replace")
    quoted = {quote(secret), quote(secret, safe=""), quote_plus(secret), quote(secret, safe="!'()*")}
    plain = {secret, *quoted, *[_ESCAPED_BYTE.sub(lambda match: match[0].lower(), each) for each in quoted]}
    written = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    written |= {each.translate(_HTML_IN_JSON) for each in written} | {each.replace("/", "\\/") for each in written}
    written |= {json.dumps(each)[1:-1] for each in written} | {repr(raw)[2:-1]}
    marked = {html.escape(secret), html.escape(secret, quote=False)}
    encoded = {raw.hex(), raw.hex().upper()}
    for shift, skipped in enumerate((0, 2, 3)):  # letters at both ends depend on the neighbouring bytes
        letters = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        certain = letters[skipped : -1 if (shift + len(raw)) % 3 else None]
        encoded |= {certain, certain.replace("+", "-").replace("/", "_")}
    return plain | written | marked | encoded


_ESCAPED_BYTE = re.compile(r"%[0-9A-F]{2}")
_HTML_IN_JSON = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}
"""Characters that some encoders escape in JSON, so that it can be embedded in a page."""
