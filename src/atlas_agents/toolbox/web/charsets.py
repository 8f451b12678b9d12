"""From bytes to text: what the server says, what the page says, what the bytes say; never an exotic codec."""

import codecs
import re

_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([a-zA-Z0-9_.:-]{2,40})", re.IGNORECASE)
_XML = re.compile(rb"<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([a-zA-Z0-9_.:-]{2,40})", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_AS_BROWSERS = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "euc_kr": "cp949",
    "shift_jis": "cp932",
    "utf-16": "utf-16-le",
}
"""What pages mean that name an older charset: the larger one that browsers read in its place."""
_KNOWN = frozenset(
    (
        *("utf-8", "utf-16-le", "utf-16-be", "cp866", "cp874", "cp932", "cp949", "gb18030", "big5", "big5hkscs"),
        *("euc_jp", "iso2022_jp", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic"),
        *(f"cp125{number}" for number in range(9)),
        *(f"iso8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
    )
)


def decoded(content: bytes, charset: str = "", *, markup: bool = False) -> str:
    """The text, with U+FFFD for what is not text in its charset."""
    for mark, name in _MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(name, "replace")
    named = _known(charset) or (_in_page(content[:2048]) if markup else None)
    if named:
        return content.decode(named, "replace")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and not content[: error.start].isascii():
            return content.decode("utf-8", "replace")  # it was cut in the middle of a character
        return content.decode("cp1252", "replace")


def _in_page(head: bytes) -> str | None:
    """What a page says about itself; if that can be read at all, it is not UTF-16."""
    found = _META.search(head) or _XML.search(head)
    named = _known(found[1].decode()) if found else None
    return "utf-8" if named and named.startswith("utf-16") else named


def _known(name: str) -> str | None:
    try:
        found = codecs.lookup(name.strip()).name if name else ""
    except (LookupError, ValueError):
        return None
    found = _AS_BROWSERS.get(found, found)
    return found if found in _KNOWN else None
