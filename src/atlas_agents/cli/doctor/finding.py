"""What an examination finds."""

from typing import Literal, TypeAlias

import msgspec

State: TypeAlias = Literal["ok", "notice", "broken"]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that was looked at: how it is, and how to mend it if it is not well."""

    what: str
    state: State
    words: str
    remedy: str = ""


def ok(what: str, words: str) -> Finding:
    return Finding(what, "ok", words)


def notice(what: str, words: str, remedy: str = "") -> Finding:
    return Finding(what, "notice", words, remedy)


def broken(what: str, words: str, remedy: str = "") -> Finding:
    return Finding(what, "broken", words, remedy)
