"""`.docx` as Markdown: headings, paragraphs, lists and tables. It runs in a process that can be killed."""

import io
import zipfile
from collections.abc import Iterator
from xml.etree import ElementTree

from atlas_agents.core.errors import ToolFailed
from atlas_agents.toolbox.web.extract import Extract

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_LARGEST = 50_000_000
"""Bytes of the document inside, unpacked."""


def read_word_file(content: bytes) -> Extract:
    """Title and text; ToolFailed if it cannot be read."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            body = _tree(packed, "word/document.xml").find(f"{_W}body")
            about = "docProps/core.xml"
            title = _tree(packed, about).findtext(_TITLE) if about in packed.namelist() else ""
    except (zipfile.BadZipFile, KeyError, ElementTree.ParseError, EOFError, RuntimeError, ValueError, OSError) as error:
        raise ToolFailed(f"it is damaged, or no Word document: {error}") from None
    pieces = [] if body is None else [piece for each in body for piece in _block(each)]
    return Extract(title or "", "\n\n".join(pieces))


def _tree(packed: zipfile.ZipFile, name: str) -> ElementTree.Element:
    if packed.getinfo(name).file_size > _LARGEST:
        raise ToolFailed("it is too large to be read")
    with packed.open(name) as file:
        content = file.read(_LARGEST + 1)
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content or len(content) > _LARGEST:
        raise ToolFailed("it holds what no Word document needs")
    return ElementTree.fromstring(content)  # noqa: S314 - see above


def _block(element: ElementTree.Element) -> Iterator[str]:
    if element.tag == f"{_W}p":
        text = _text(element)
        if text.strip():
            yield _prefix(element) + text.strip()
    elif element.tag == f"{_W}tbl":
        rows = [[_cell(cell) for cell in row.findall(f"{_W}tc")] for row in element.findall(f"{_W}tr")]
        if rows:
            head, *rest = rows
            lines = [head, ["---"] * len(head), *rest]
            yield "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    elif element.tag == f"{_W}sdt":
        for inner in element.iter(f"{_W}p"):
            yield from _block(inner)


def _prefix(paragraph: ElementTree.Element) -> str:
    style = paragraph.find(f"{_W}pPr/{_W}pStyle")
    name = (style.get(f"{_W}val") or "").lower() if style is not None else ""
    if name.startswith("heading") and name[7:].strip().isdigit():
        return "#" * min(int(name[7:]), 6) + " "
    if name == "title":
        return "# "
    return "- " if paragraph.find(f"{_W}pPr/{_W}numPr") is not None else ""


def _cell(cell: ElementTree.Element) -> str:
    return " ".join(" ".join(_text(each).split()) for each in cell.iter(f"{_W}p")).replace("|", "/").strip()


def _text(paragraph: ElementTree.Element) -> str:
    pieces: list[str] = []
    for each in paragraph.iter():
        if each.tag == f"{_W}t":
            pieces.append(each.text or "")
        elif each.tag in (f"{_W}tab", f"{_W}br", f"{_W}cr"):
            pieces.append(" ")
    return "".join(pieces)
