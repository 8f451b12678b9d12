"""Addresses of databases: which of their parts is a password, and how they look without it."""

import re

_IN_QUERY = re.compile(r"([?&](?:ssl)?password=)[^&#]*", re.IGNORECASE)


def scheme(url: str) -> str:
    """What stands before `://`, in small letters; empty where nothing does."""
    head, found, _ = url.partition("://")
    return head.lower() if found and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", head) else ""


def has_password(url: str) -> bool:
    return redacted(url, "") != redacted(url, "x")


def redacted(url: str, hidden: str) -> str:
    """The address with its password hidden; all of it where that cannot be told from the rest."""
    head, found, rest = url.partition("://")
    if not found:
        return hidden
    end = min((place for sign in "/?#" if (place := rest.find(sign)) >= 0), default=len(rest))
    who, at, place = rest[:end].rpartition("@")
    name, colon, _ = who.partition(":")
    if end and "@" in rest[end:]:  # a password with a sign in it that should have been escaped
        return f"{head}://{hidden}"
    shown = f"{name}:{hidden}{at}{place}" if colon else rest[:end]
    return f"{head}://{shown}{_IN_QUERY.sub(lambda match: match[1] + hidden, rest[end:])}"
