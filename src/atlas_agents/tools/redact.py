"""Secrets taken out of what is logged, kept or shown: by the name of a field, by a known value, and by its looks."""

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

HIDDEN = "[REDACTED]"
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
_LONG_NAME = 200

_LOOKS: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (
        ("-----begin",),
        re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        HIDDEN,
    ),
    (("eyj",), re.compile(r"(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}"), HIDDEN),
    (("k-",), re.compile(r"\b[spr]k-[\w-]{16,}"), HIDDEN),
    (("gh", "github_"), re.compile(r"\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}"), HIDDEN),
    (("xox",), re.compile(r"\bxox[abprs]-[\w-]{10,}"), HIDDEN),
    (("akia",), re.compile(r"\bAKIA[0-9A-Z]{16}\b"), HIDDEN),
    (("://",), re.compile(r"://[^/\s:@]*:[^/\s@]+@"), f"://{HIDDEN}@"),
    (  # not so "basic information": no letters of both kinds, no number
        ("bearer ", "basic "),
        re.compile(r"\b((?i:bearer|basic)) (?=\S{1,200}?[0-9A-Z=])[\w.~+/-]{8,}=*"),
        rf"\1 {HIDDEN}",
    ),
    (
        ("key", "token", "secret", "passw", "passphrase", "pwd"),
        re.compile(
            r"(?i)((?:(?:api|access|private)[_-]?key|token|secret|passw(?:or)?d|passphrase|pwd)(?:=|[\"']\s*:\s*))"
            r"(?:\"[^\"\n]+\"|'[^'\n]+'|[^\s\"'&,;<>(){}\[\]]{6,})"
        ),
        rf"\1{HIDDEN}",
    ),
)
"""What a secret looks like: words of which one, in small letters, stands in it and is found fast; how; and what then
stands there. None of the patterns may begin again inside of what it has just read in vain: a text may be long."""

_SHORTEST = 6
_LONG = 256
_MARGIN = 10_000
_DEEPEST = 64
_LONGEST_TRACE = 100_000
_NO_SECRETS = frozenset(("PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "KRB5CCNAME"))
_ORDINARY = frozenset(
    (
        *("password", "secret", "token", "default", "localhost", "production", "development", "staging", "testing"),
        *("example", "public", "private", "enabled", "disabled", "required", "optional", "bearer", "oauth2", "google"),
        *("github", "gitlab", "postgres", "postgresql", "sqlite", "mongodb", "username", "anonymous", "administrator"),
    )
)
_ABOUT_ONE = re.compile(r"[A-Za-z]+(?:[ _-][A-Za-z]+)*|[\d.,:]+|\w+://[^@?\s]*|(?:[\w-]+\.)+[A-Za-z]{2,}(?::\d+)?")
"""Words, numbers and addresses: what `AUTH_MODE`, `MAX_TOKENS` or `COOKIE_DOMAIN` may hold."""


def is_secret_name(name: str) -> bool:
    """Whether a field of that name holds a secret: `DB_PASS` and `apiKey` do, `monkey` and `keyboard` don't."""
    return _is_secret_name(name) if len(name) <= _LONG_NAME else _is_secret_name.__wrapped__(name)


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
    """Knows secrets by value, too: those it was told, and those of the environment."""

    def __init__(self, secrets: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._known: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        found = os.environ if environment is None else environment
        self.learn(*secrets, *(value for name, value in found.items() if _is_secret(name, value)))

    def learn(self, *secrets: str) -> None:
        """Hide these from now on, also where they stand encoded or in part."""
        known = set(self._known)
        for secret in secrets:
            for piece in _pieces(secret.strip()):
                if len(piece) >= _SHORTEST:
                    known |= _disguises(piece)
        if len(known) != len(self._known):
            self._known = tuple(sorted(known, key=len, reverse=True))
            self._pattern = re.compile("|".join(re.escape(secret) for secret in self._known))

    def text(self, text: str, also: Iterable[str] = ()) -> str:
        """The same text without the secrets in it, nor `also` these."""
        text = self._without_known(text)
        for secret in also:
            text = text.replace(secret, HIDDEN)
        small = text.lower()
        for marks, pattern, instead in _LOOKS:
            for mark in marks:
                if mark in small:
                    text = pattern.sub(instead, text)
                    break
        return text

    def known_in(self, value: Any) -> Any:
        """The same data without known values, wherever they stand in it."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self._without_known(value)
        if isinstance(value, dict):
            return {self.known_in(key): self.known_in(item) for key, item in cast(dict[Any, Any], value).items()}
        return [self.known_in(item) for item in cast(list[Any], value)] if isinstance(value, list) else value

    def value(self, value: Any) -> Any:
        """A copy of plain data in which secrets are hidden, by name and by value; JSON can always be made of it."""
        return _Copy(self).of(value)

    def head(self, value: Any, size: int, also: Iterable[str] = ()) -> str:
        """The first characters of a text, or of the JSON of other data, without secrets, nor `also` these."""
        copied = _Copy(self, size).of(value)
        text = copied if isinstance(copied, str) else encode(copied).decode()
        for secret in also:
            text = text.replace(secret, HIDDEN)
        return text[:size]

    def trace(self, error: BaseException, also: Iterable[str] = ()) -> str:
        """An error's traceback, with all that led to it."""
        return self.head("".join(traceback.format_exception(error)), _LONGEST_TRACE, also)

    def _without_known(self, text: str) -> str:
        """Trying all at each place is faster in a short text, looking for each in turn in a long one."""
        if self._pattern is None or len(text) < _SHORTEST:
            return text
        if len(text) < _LONG:
            return self._pattern.sub(HIDDEN, text)
        for secret in self._known:
            text = text.replace(secret, HIDDEN)
        return text


class _Copy:
    """Copies plain data without the secrets in it, as deep as is reasonable and as far as there is room."""

    def __init__(self, redactor: Redactor, room: float = math.inf) -> None:
        self._redactor = redactor
        self._room = room

    def of(self, value: Any, levels: int = _DEEPEST) -> Any:
        self._room -= 1
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
            return [self._redactor.text(clean(items[0])), HIDDEN]  # a list of pairs
        copied: list[Any] = []
        for item in items:
            if self._room <= 0:
                break
            copied.append(self.of(item, levels))
        return copied

    def _mapping(self, value: Mapping[Any, Any], levels: int) -> dict[str, Any]:
        named = value.get("name") or value.get("key")
        pair = isinstance(named, str) and "value" in value and is_secret_name(named)
        hidden: dict[str, Any] = {}
        for key, item in value.items():
            if self._room <= 0:
                break
            name = self._string(str(key), 0)
            if pair:
                secret = key == "value"
            else:
                secret = is_secret_name(str(key)) and item is not None and not isinstance(item, bool)
            hidden[name] = HIDDEN if secret else self.of(item, levels)
        return hidden

    def _string(self, text: str, levels: int) -> str:
        """JSON inside a string is data, too; where nothing in it is hidden, it stays as it was written."""
        if _is_too_short(text):
            self._room -= len(text)
            return text
        if self._room < len(text):
            text = text[: int(self._room) + _MARGIN]
        found = self._redactor.text(clean(text))
        ends = text.strip()
        if levels and ends[:1] in ("{", "[") and ends[-1:] in ("}", "]"):
            try:
                inner = json.loads(text)
            except (ValueError, RecursionError):
                inner = None
            hidden = self.of(inner, levels - 1)
            if hidden != inner:
                found = clean(json.dumps(hidden, ensure_ascii=False))
        self._room -= len(found)
        return found


def _is_too_short(text: str) -> bool:
    """Whether it can hold no secret that is looked for; most names of fields, and many values."""
    return len(text) < _SHORTEST and text.isascii()


def secrets_in(value: Any, named: bool = False, levels: int = _DEEPEST) -> list[str]:
    """The strings that stand under a secret's name in plain data."""
    if isinstance(value, str):
        return [value] if named and len(value) >= _SHORTEST else []
    if isinstance(value, Mapping) and levels:
        items = cast(Mapping[Any, Any], value).items()
        return [
            found for key, item in items for found in secrets_in(item, named or is_secret_name(str(key)), levels - 1)
        ]
    if isinstance(value, list | tuple) and levels:
        return [found for item in cast(list[Any], value) for found in secrets_in(item, named, levels - 1)]
    return []


def _is_secret(name: str, value: str) -> bool:
    """Whether a variable holds one, and not a path, an ordinary word or something about one, which many texts have."""
    if not is_secret_name(name) or name in _NO_SECRETS or value.startswith("/") or value.strip().lower() in _ORDINARY:
        return False
    last = next((word.lower() for word in reversed(_WORDS.findall(name)) if word.isalpha()), "")
    holds_one = (last in _SECRET_WORDS and last not in ("tokens", "keys")) or last.endswith(_SECRET_ENDINGS)
    return holds_one or not _ABOUT_ONE.fullmatch(value.strip())


def _pieces(secret: str) -> Iterable[str]:
    """A secret, the password if it is an address with one, and its lines if it has several."""
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


def _disguises(secret: str) -> set[str]:
    """A secret as it may stand in a text: plain, in a URL, in JSON, in hex, and in base64 with anything around it."""
    raw = secret.encode("utf-8", "replace")
    plain = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret)}
    written = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    encoded = {raw.hex(), raw.hex().upper()}
    for shift, unsure in enumerate((0, 2, 3)):  # three bytes are four letters; those at the ends depend on neighbours
        letters = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        sure = letters[unsure : -1 if (shift + len(raw)) % 3 else None]
        encoded |= {sure, sure.replace("+", "-").replace("/", "_")}
    return plain | written | encoded
