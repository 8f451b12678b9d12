"""Redaction: removes secrets from logs, stored data and results, by field name, by known value and by pattern."""

import base64
import json
import math
import os
import re
import traceback
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote, quote_plus, urlsplit

from atlas_agents.core.json import encode
from atlas_agents.core.text import clean

REDACTED = "[REDACTED]"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    (
        *("password", "passwd", "passphrase", "passcode", "pass", "pwd", "pw", "secret", "secrets", "token", "tokens"),
        *("key", "keys", "apikey", "auth", "authorization", "authentication", "cookie", "cookies", "credential"),
        *("credentials", "creds", "cred", "conn", "dsn", "jwt", "otp", "bearer", "privatekey"),
    )
)
_SECRET_ENDINGS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "privatekey",
    "connstr",
)
_SECRET_PHRASES = ("connectionstring", "databaseurl", "sessionid", "sessionkey")
_MAX_CACHED_NAME = 200

_PATTERNS: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (
        ("-----begin",),
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        REDACTED,
    ),
    (("eyj",), re.compile(r"(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}"), REDACTED),
    (("k-",), re.compile(r"\b[spr]k-[\w-]{16,}"), REDACTED),
    (("gh", "github_"), re.compile(r"\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}"), REDACTED),
    (("xox",), re.compile(r"\bxox[abprs]-[\w-]{10,}"), REDACTED),
    (("akia",), re.compile(r"\bAKIA[0-9A-Z]{16}\b"), REDACTED),
    (("://",), re.compile(r"://[^/\s:@]*:[^/\s@]+@"), f"://{REDACTED}@"),
    (  # requires a digit, a capital or "=", so that "basic information" is not matched
        ("bearer ", "basic "),
        re.compile(r"\b((?i:bearer|basic)) (?=\S{1,200}?[0-9A-Z=])[\w.~+/-]{8,}=*"),
        rf"\1 {REDACTED}",
    ),
    (
        ("key", "token", "secret", "passw", "passphrase", "pwd"),
        re.compile(
            r"(?i)((?:(?:api|access|private)[_-]?key|token|secret|passw(?:or)?d|passphrase|pwd)(?:=|[\"']\s*:\s*))"
            r"(?:\"[^\"\n]+\"|'[^'\n]+'|[^\s\"'&,;<>(){}\[\]]{6,})"
        ),
        rf"\1{REDACTED}",
    ),
)
"""Patterns of secrets: lowercase substrings of which one must occur (a fast pre-check), the pattern, the replacement.
No pattern may start again inside what it has read in vain: texts can be long."""

_MIN_SECRET = 6
_LONG_TEXT = 256
_MARGIN = 10_000
_MAX_DEPTH = 64
_MAX_TRACE = 100_000
_NOT_SECRET = frozenset(("PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "KRB5CCNAME"))
_COMMON_VALUES = frozenset(
    (
        *("password", "secret", "token", "default", "localhost", "production", "development", "staging", "testing"),
        *("example", "public", "private", "enabled", "disabled", "required", "optional", "bearer", "oauth2", "google"),
        *("github", "gitlab", "postgres", "postgresql", "sqlite", "mongodb", "username", "anonymous", "administrator"),
    )
)
_PLAIN_SETTING = re.compile(r"[A-Za-z]+(?:[ _-][A-Za-z]+)*|[\d.,:]+|\w+://[^@?\s]*|(?:[\w-]+\.)+[A-Za-z]{2,}(?::\d+)?")
"""Words, numbers and addresses: values of settings such as `AUTH_MODE`, `MAX_TOKENS` or `COOKIE_DOMAIN`."""


def is_secret_name(name: str) -> bool:
    """Return whether a field with this name holds a secret: `DB_PASS` and `apiKey` do, `monkey` and `keyboard` do
    not."""
    return _is_secret_name(name) if len(name) <= _MAX_CACHED_NAME else _is_secret_name.__wrapped__(name)


@lru_cache(maxsize=4096)
def _is_secret_name(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    whole = "".join(words)
    return (
        not _SECRET_WORDS.isdisjoint(words)
        or whole.endswith(_SECRET_ENDINGS)
        or any(p in whole for p in _SECRET_PHRASES)
    )


class Redactor:
    """Removes secrets from texts and data, including known values and those of environment variables."""

    def __init__(self, secrets: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._known: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        found = os.environ if environment is None else environment
        self.add_secrets(*secrets, *(value for name, value in found.items() if _is_secret_variable(name, value)))

    def add_secrets(self, *secrets: str) -> None:
        """Redact these values from now on, also in URL, JSON, hex and base64 encoding."""
        known = set(self._known)
        for secret in secrets:
            for part in _parts(secret.strip()):
                if len(part) >= _MIN_SECRET:
                    known |= _encodings(part)
        if len(known) != len(self._known):
            self._known = tuple(sorted(known, key=len, reverse=True))
            self._pattern = re.compile("|".join(re.escape(secret) for secret in self._known))

    def text(self, text: str, also: Iterable[str] = ()) -> str:
        """Return a text without secrets and without the values in `also`."""
        text = self._remove_known(text)
        for secret in also:
            text = text.replace(secret, REDACTED)
        lowercase = text.lower()
        for hints, pattern, replacement in _PATTERNS:
            for hint in hints:
                if hint in lowercase:
                    text = pattern.sub(replacement, text)
                    break
        return text

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
        `also`."""
        copied = _RedactedCopy(self, size).copy(value)
        text = copied if isinstance(copied, str) else encode(copied).decode()
        for secret in also:
            text = text.replace(secret, REDACTED)
        return text[:size]

    def trace(self, error: BaseException, also: Iterable[str] = ()) -> str:
        """Return the redacted traceback of an error, including its causes."""
        return self.head("".join(traceback.format_exception(error)), _MAX_TRACE, also)

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


class _RedactedCopy:
    """Copies plain data without secrets, down to a maximum depth, until `budget` characters are used up."""

    def __init__(self, redactor: Redactor, budget: float = math.inf) -> None:
        self._redactor = redactor
        self._budget = budget

    def copy(self, value: Any, levels: int = _MAX_DEPTH) -> Any:
        self._budget -= 1
        if isinstance(value, str):
            return self._string(value, levels)
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if not levels:
            return "…"
        if isinstance(value, Mapping):
            return self._mapping(cast(Mapping[Any, Any], value), levels - 1)
        if isinstance(value, list | tuple):
            return self._list(cast(list[Any], value), levels - 1)
        return f"<{type(value).__name__}>"

    def _list(self, items: list[Any], levels: int) -> list[Any]:
        if len(items) == 2 and isinstance(items[0], str) and is_secret_name(items[0]):
            return [self._redactor.text(clean(items[0])), REDACTED]  # a list of pairs
        copied: list[Any] = []
        for item in items:
            if self._budget <= 0:
                break
            copied.append(self.copy(item, levels))
        return copied

    def _mapping(self, value: Mapping[Any, Any], levels: int) -> dict[str, Any]:
        named = value.get("name") or value.get("key")
        pair = isinstance(named, str) and "value" in value and is_secret_name(named)
        redacted: dict[str, Any] = {}
        for key, item in value.items():
            if self._budget <= 0:
                break
            name = self._string(str(key), 0)
            if pair:
                secret = key == "value"
            else:
                secret = is_secret_name(str(key)) and item is not None and not isinstance(item, bool)
            redacted[name] = REDACTED if secret else self.copy(item, levels)
        return redacted

    def _string(self, text: str, levels: int) -> str:
        """Redact a string. If it contains JSON, that is redacted as data; JSON without secrets stays unchanged."""
        if _is_too_short(text):
            self._budget -= len(text)
            return text
        if self._budget < len(text):
            text = text[: int(self._budget) + _MARGIN]
        found = self._redactor.text(clean(text))
        ends = text.strip()
        if levels and ends[:1] in ("{", "[") and ends[-1:] in ("}", "]"):
            try:
                inner = json.loads(text)
            except (ValueError, RecursionError):
                inner = None
            redacted = self.copy(inner, levels - 1)
            if redacted != inner:
                found = clean(json.dumps(redacted, ensure_ascii=False))
        self._budget -= len(found)
        return found


def _is_too_short(text: str) -> bool:
    """Return whether a text is too short to hold a secret, as most field names and many values are."""
    return len(text) < _MIN_SECRET and text.isascii()


def find_secrets(value: Any, named: bool = False, levels: int = _MAX_DEPTH) -> list[str]:
    """Return the strings under secret names in plain data."""
    if isinstance(value, str):
        return [value] if named and len(value) >= _MIN_SECRET else []
    if isinstance(value, Mapping) and levels:
        items = cast(Mapping[Any, Any], value).items()
        return [
            found for key, item in items for found in find_secrets(item, named or is_secret_name(str(key)), levels - 1)
        ]
    if isinstance(value, list | tuple) and levels:
        return [found for item in cast(list[Any], value) for found in find_secrets(item, named, levels - 1)]
    return []


def _is_secret_variable(name: str, value: str) -> bool:
    """Return whether an environment variable holds a secret, and not a path, a common word or a plain setting."""
    if (
        not is_secret_name(name)
        or name in _NOT_SECRET
        or value.startswith("/")
        or value.strip().lower() in _COMMON_VALUES
    ):
        return False
    last = next((word.lower() for word in reversed(_WORDS.findall(name)) if word.isalpha()), "")
    is_secret = (last in _SECRET_WORDS and last not in ("tokens", "keys")) or last.endswith(_SECRET_ENDINGS)
    return is_secret or not _PLAIN_SETTING.fullmatch(value.strip())


def _parts(secret: str) -> Iterable[str]:
    """Yield a secret, the password in it if it is a URL, and its lines if it has several."""
    yield secret
    if "://" in secret and (password := _password_in(secret)):
        yield password
    if "\n" in secret:
        yield from (line.strip() for line in secret.splitlines() if len(line) >= 16 and "-----" not in line)


def _password_in(address: str) -> str | None:
    try:
        return urlsplit(address).password
    except ValueError:
        return None


def _encodings(secret: str) -> set[str]:
    """Return the forms in which a secret may appear: plain, in a URL, in JSON, in hex, and inside base64 text."""
    raw = secret.encode("utf-8", "replace")
    plain = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret)}
    written = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    encoded = {raw.hex(), raw.hex().upper()}
    for shift, skipped in enumerate((0, 2, 3)):  # letters at both ends depend on the neighbouring bytes
        letters = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        certain = letters[skipped : -1 if (shift + len(raw)) % 3 else None]
        encoded |= {certain, certain.replace("+", "-").replace("/", "_")}
    return plain | written | encoded
