"""What kind of content it is, by what the server says and, where it says little, by how it begins."""

from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["html", "text", "json", "pdf"]
_VAGUE = ("", "application/octet-stream", "binary/octet-stream", "application/x-download", "application/force-download")
_HTML = ("text/html", "application/xhtml+xml")
_TEXT = (
    *("application/javascript", "application/ecmascript", "application/xml", "application/x-yaml", "application/yaml"),
    *("application/toml", "application/x-sh", "application/sql", "application/rtf", "application/graphql"),
)


def kind_of(media_type: str) -> Kind | None:
    """How it is read; None for what has no text, and for what only its first bytes can tell."""
    if media_type in _HTML:
        return "html"
    if media_type == "application/pdf":
        return "pdf"
    if media_type.endswith(("/json", "+json")):
        return "json"
    if media_type.startswith("text/") or media_type in _TEXT or media_type.endswith(("+xml", "json-seq", "x-ndjson")):
        return "text" if media_type != "image/svg+xml" else None
    return None


def is_vague(media_type: str) -> bool:
    """Whether the server leaves it open."""
    return media_type in _VAGUE


def sniffed(content: bytes) -> Kind | None:
    """By its first bytes; None if it is no text."""
    head = content[:1024].lstrip()
    if head.startswith(b"%PDF-"):
        return "pdf"
    if b"\0" in content[:4096] and not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return None
    small = head.lower()
    if small.startswith((b"<!doctype html", b"<html")) or b"<head" in small or b"<body" in small:
        return "html"
    return "json" if small.startswith((b"{", b"[")) else "text"
