"""Secrets taken out of what is logged, kept or shown: by the name of a field, by a known value, and by its looks."""

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote

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
_LOOKS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}"
    r"|\b(?:sk|pk|rk)-[\w-]{16,}|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bxox[abprs]-[\w-]{10,}|\bAKIA[0-9A-Z]{16}\b"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
    r"|(?i:(?<=\bbearer )|(?<=\bbasic ))[\w.~+/-]{8,}=*",
    re.DOTALL,
)
_MARKS = r"-----BEGIN|eyJ|[spr]k-|gh[pousr]_|github_pat_|xox|AKIA|://|(?i:bearer |basic )"
"""One of these stands in whatever `_LOOKS` finds; they are looked for much faster."""
_SHORTEST = 6
_NO_SECRETS = frozenset(("PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "KRB5CCNAME"))


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a field of that name holds a secret: `DB_PASS` and `apiKey` do, `monkey` and `keyboard` don't."""
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
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._suspect = re.compile(_MARKS)
        found = os.environ if environment is None else environment
        named = [value for name, value in found.items() if is_secret_name(name) and name not in _NO_SECRETS]
        self.learn(*secrets, *(value for value in named if _could_be_secret(value)))

    def learn(self, *secrets: str) -> None:
        """Hide these from now on, also where they stand encoded."""
        before = len(self._known)
        for secret in secrets:
            if len(secret.strip()) >= _SHORTEST:
                self._known |= _disguises(secret.strip())
        if len(self._known) != before:
            longest_first = sorted(self._known, key=len, reverse=True)
            known = "|".join(re.escape(secret) for secret in longest_first)
            self._pattern, self._suspect = re.compile(known), re.compile(f"{known}|{_MARKS}")

    def text(self, text: str, also: Iterable[str] = ()) -> str:
        """The same text without the secrets in it, nor `also` these."""
        for secret in also:
            text = text.replace(secret, HIDDEN)
        if self._suspect.search(text) is None:
            return text
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN, text)
        return _LOOKS.sub(HIDDEN, text)

    def known_in(self, value: Any) -> Any:
        """The same data without known values, wherever they stand in it."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self._pattern.sub(HIDDEN, value)
        if isinstance(value, dict):
            return {self.known_in(key): self.known_in(item) for key, item in cast(dict[Any, Any], value).items()}
        return [self.known_in(item) for item in cast(list[Any], value)] if isinstance(value, list) else value

    def value(self, value: Any) -> Any:
        """A copy of plain data in which secrets are hidden, by name and by value."""
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, Mapping):
            return self._mapping(cast(Mapping[Any, Any], value))
        if isinstance(value, list | tuple):
            items = cast(list[Any], value)
            if len(items) == 2 and isinstance(items[0], str) and is_secret_name(items[0]):
                return [items[0], HIDDEN]  # a list of pairs
            return [self.value(item) for item in items]
        return value

    def _mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        named = value.get("name") or value.get("key")
        if isinstance(named, str) and "value" in value and is_secret_name(named):
            return {
                **{str(key): self.value(item) for key, item in value.items() if key not in ("key",)},
                "value": HIDDEN,
            }
        hidden: dict[str, Any] = {}
        for key, item in value.items():
            name = str(key)
            secret = is_secret_name(name) and item is not None and not isinstance(item, bool)
            hidden[self.text(name)] = HIDDEN if secret else self.value(item)
        return hidden

    def _string(self, text: str) -> str:
        if text[:1] in ("{", "[") and text[-1:] in ("}", "]"):
            try:
                inner = json.loads(text)
            except (ValueError, RecursionError):
                return self.text(text)
            return json.dumps(self.value(inner), ensure_ascii=False)
        return self.text(text)


def _could_be_secret(value: str) -> bool:
    """Whether a value may be hidden wherever it stands: a path or a common word would take half of a text with it."""
    value = value.strip()
    return not value.startswith("/") and (len(value) >= 16 or (len(value) >= 8 and not value.isalpha()))


def secrets_in(value: Any, named: bool = False) -> list[str]:
    """The strings that stand under a secret's name in plain data."""
    if isinstance(value, str):
        return [value] if named and len(value) >= _SHORTEST else []
    if isinstance(value, Mapping):
        items = cast(Mapping[Any, Any], value).items()
        return [found for key, item in items for found in secrets_in(item, named or is_secret_name(str(key)))]
    if isinstance(value, list | tuple):
        return [found for item in cast(list[Any], value) for found in secrets_in(item, named)]
    return []


def _disguises(secret: str) -> set[str]:
    """A secret as it may stand in a text: plain, in base64, in a URL, in JSON."""
    raw = secret.encode("utf-8", "replace")
    plain = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    encoded = {base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()}
    return plain | encoded | {text.rstrip("=") for text in encoded} | {raw.hex()}
