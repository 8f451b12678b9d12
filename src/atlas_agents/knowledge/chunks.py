"""Documents cut into passages where their structure allows it: not inside code or a row, always under headings."""

import re
from collections.abc import Iterable, Iterator

import msgspec

from atlas_agents.knowledge.blocks import Block, blocks

LARGEST = 900
"""Characters of a passage; code and tables may be longer."""
_LARGEST_WHOLE = 4 * LARGEST
_ENOUGH = 250
"""A passage this long need not be joined with the next one."""
_SENTENCE = re.compile(r"(?<=[.!?;:])\s+|\n")


class Chunk(msgspec.Struct, frozen=True):
    """A passage to be: the headings above it, its text, and where it begins."""

    path: tuple[str, ...]
    text: str
    line: int
    page: int

    @property
    def heading(self) -> str:
        return " > ".join(self.path)


def chunks(markdown: str, *, plain: bool = False) -> list[Chunk]:
    """The passages of a document, in order; one that says the same as another is left out."""
    seen: set[str] = set()
    found: list[Chunk] = []
    for chunk in _joined(piece for block in blocks(markdown, plain=plain) for piece in _pieces(block)):
        key = " ".join((chunk.heading, *chunk.text.split()))
        if key not in seen:
            seen.add(key)
            found.append(chunk)
    return found


def _joined(pieces: Iterable[Block]) -> Iterator[Chunk]:
    """Pieces under the same headings together, as long as they fit."""
    held: list[Block] = []
    for piece in pieces:
        if held and not _fits(held, piece):
            yield _chunk(held)
            held = []
        held.append(piece)
    if held:
        yield _chunk(held)


def _fits(held: list[Block], piece: Block) -> bool:
    size = sum(len(each.text) + 2 for each in held)
    if held[0].path != piece.path or held[0].page != piece.page:
        return False
    return size + len(piece.text) <= LARGEST or (size < _ENOUGH and piece.whole)


def _chunk(held: list[Block]) -> Chunk:
    return Chunk(held[0].path, "\n\n".join(each.text for each in held), held[0].line, held[0].page)


def _pieces(block: Block) -> Iterator[Block]:
    """A block as it is, or cut where it is too long: a table between rows, code between lines, text after sentences."""
    most = _LARGEST_WHOLE if block.whole and not block.table else LARGEST
    if len(block.text) <= most:
        yield block
        return
    lines = block.text.split("\n")
    head = lines[:2] if block.table and len(lines) > 2 and len(lines[0]) + len(lines[1]) < most // 2 else []
    if block.whole:
        units = [(place, line) for place, line in enumerate(lines)][len(head) :]
    else:
        units = [(0, unit) for unit in _SENTENCE.split(block.text) if unit.strip()]
    for place, text in _packed(units, most - sum(len(line) + 1 for line in head), "\n" if block.whole else " "):
        yield msgspec.structs.replace(block, text="\n".join([*head, text]), line=block.line + place)


def _packed(units: Iterable[tuple[int, str]], most: int, between: str) -> Iterator[tuple[int, str]]:
    held: list[str] = []
    first = 0
    for place, unit in units:
        for start in range(0, len(unit) or 1, max(most, 1)):  # one that is too long by itself is cut anywhere
            piece = unit[start : start + max(most, 1)]
            if held and sum(len(each) + 1 for each in held) + len(piece) > most:
                yield first, between.join(held)
                held = []
            if not held:
                first = place
            held.append(piece)
    if held:
        yield first, between.join(held)
