"""Markdown as Telegram messages: text with entities, split at 4,096 UTF-16 units where a reader would pause."""

import re
import unicodedata
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

EntityType: TypeAlias = Literal["bold", "italic", "strikethrough", "code", "pre"]
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})\s*([\w+#.-]{0,40})([^`]*)")
_HEADING = re.compile(r" {0,3}#{1,6}\s+(.*?)\s*#*")
_BULLET = re.compile(r"^(\s*)[-*+]\s+(?=\S)")
_INLINE = re.compile(r"\\([\\`*_{}\[\]()#+.!~>|-])|(`+)|(\*\*|__|~~|\*|_)|!?\[([^\[\]]*)\]\(([^\s()]{1,2000})\)")
_KINDS: dict[str, EntityType] = {"**": "bold", "__": "bold", "~~": "strikethrough", "*": "italic", "_": "italic"}
MAX_LENGTH = 4096
_MAX_ENTITIES = 100
"""Limit of entities in one message."""
_BREAKS = ("\n\n", "\n", " ")
_JOINERS = ("\u200d", "\ufe0e", "\ufe0f")


class MessageEntity(msgspec.Struct, frozen=True):
    """Formatting of a range of a text."""

    start: int
    end: int
    kind: EntityType
    language: str = ""


class FormattedText(msgspec.Struct, frozen=True):
    """A text and its entities, ordered by where they start."""

    text: str
    entities: tuple[MessageEntity, ...] = ()


def parse_markdown(markdown: str) -> FormattedText:
    """Convert Markdown to text with entities. Link targets are written out, so that readers see where a link leads."""
    whole = concat(*_parse_blocks(markdown.replace("\r\n", "\n")))
    return FormattedText(whole.text, tuple(sorted(whole.entities, key=lambda entity: (entity.start, -entity.end))))


def code_block(text: str, language: str = "") -> FormattedText:
    """Format a text as preformatted code."""
    return FormattedText(text, (MessageEntity(0, len(text), "pre", language),) if text else ())


def concat(*parts: FormattedText | str) -> FormattedText:
    """Join texts and shift their entities."""
    texts, entities, size = list[str](), list[MessageEntity](), 0
    for part in parts:
        each = FormattedText(part) if isinstance(part, str) else part
        entities += [MessageEntity(size + old.start, size + old.end, old.kind, old.language) for old in each.entities]
        texts.append(each.text)
        size += len(each.text)
    return FormattedText("".join(texts), tuple(entities))


def bold(text: str) -> FormattedText:
    return FormattedText(text, (MessageEntity(0, len(text), "bold"),) if text else ())


def _parse_blocks(markdown: str) -> Iterator[FormattedText]:
    lines = markdown.split("\n")
    fence, language, inside = "", "", list[str]()
    for number, line in enumerate(lines):
        end = "\n" if number < len(lines) - 1 else ""
        found = _FENCE.fullmatch(line)
        if fence:
            if found and found[1].startswith(fence) and not found[2] and not found[3].strip():
                yield concat(code_block("\n".join(inside) or language, language), end)
                fence = ""
            else:
                inside.append(line)
        elif found:
            fence, language, inside = found[1], found[2], []
            if found[3].strip():  # the info string is more than a language: keep it as content
                language, inside = "", [found[2] + found[3]]
        else:
            yield concat(_parse_line(line), end)
    if fence:  # an unclosed code block, while the text is still streaming
        yield code_block("\n".join(inside) or language, language)


def _parse_line(line: str) -> FormattedText:
    if heading := _HEADING.fullmatch(line):
        return bold(_parse_inline(heading[1]).text)
    return _parse_inline(_BULLET.sub(r"\1• ", line, count=1))


class _InlineParser:
    """Parser for the inline markup of one line. An opening delimiter counts as text until its closing one is found."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.tokens: list[str] = []
        self.found: list[tuple[int, int, EntityType]] = []
        self._opened: dict[str, int] = {}
        self._unclosed: set[str] = set()

    def code(self, ticks: str, after: int) -> int:
        """Parse a code span that starts before `after`, and return the position after it."""
        end = -1 if ticks in self._unclosed else self.line.find(ticks, after)
        if end < 0:
            self._unclosed.add(ticks)
            self.tokens.append(ticks)
            return after
        inner = self.line[after:end]
        self.found.append((len(self.tokens), len(self.tokens) + 1, "code"))
        self.tokens.append(inner.strip() or inner)
        return end + len(ticks)

    def emphasis(self, delimiter: str, start: int, end: int) -> None:
        before, after = self.line[start - 1 : start], self.line[end : end + 1]
        strict = delimiter not in ("**", "~~")  # names_like_this and 2*3*4 are not emphasis
        within_word = strict and before.isalnum() and after.isalnum()
        if delimiter in self._opened and before.strip() and not within_word:
            first = self._opened[delimiter]
            self.tokens[first] = ""
            self.found.append((first, len(self.tokens), _KINDS[delimiter]))
            self._opened = {other: position for other, position in self._opened.items() if position < first}
            return
        if after.strip() and not (strict and before.isalnum()):
            self._opened[delimiter] = len(self.tokens)
        self.tokens.append(delimiter)

    def result(self) -> FormattedText:
        offsets = [0]
        for token in self.tokens:
            offsets.append(offsets[-1] + len(token))
        entities = [MessageEntity(offsets[first], offsets[last], kind) for first, last, kind in self.found]
        return FormattedText("".join(self.tokens), tuple(entity for entity in entities if entity.start < entity.end))


def _parse_inline(line: str) -> FormattedText:
    parser, position = _InlineParser(line), 0
    while found := _INLINE.search(line, position):
        parser.tokens.append(line[position : found.start()])
        position = found.end()
        if found[1]:
            parser.tokens.append(found[1])
        elif found[2]:
            position = parser.code(found[2], position)
        elif found[3]:
            parser.emphasis(found[3], found.start(), position)
        else:
            label, address = found[4], found[5]
            parser.tokens.append(address if label in ("", address) else f"{label} ({address})")
    parser.tokens.append(line[position:])
    return parser.result()


def utf16_length(text: str) -> int:
    """Return the length of a text in UTF-16 units, as Telegram counts it."""
    return len(text) + sum(1 for char in text if char > "\uffff")


def split_message(whole: FormattedText, max_length: int = MAX_LENGTH) -> list[FormattedText]:
    """Split a text into non-empty messages. An entity that spans a cut continues in the next message."""
    return list(_split(_strip(whole), max_length))


def message_params(message: FormattedText) -> dict[str, Any]:
    """Return the parameters of `sendMessage` and `editMessageText` for a text."""
    return {"text": message.text, "entities": encode_entities(message) or None}


def encode_entities(message: FormattedText) -> list[dict[str, Any]]:
    """Return the entities as Bot API objects, with offsets in UTF-16 units."""
    found: list[dict[str, Any]] = []
    for entity in message.entities[:_MAX_ENTITIES]:
        each: dict[str, Any] = {
            "type": entity.kind,
            "offset": utf16_length(message.text[: entity.start]),
            "length": utf16_length(message.text[entity.start : entity.end]),
        }
        if entity.kind == "pre" and entity.language:
            each["language"] = entity.language
        found.append(each)
    return found


def _split(rest: FormattedText, max_length: int) -> Iterator[FormattedText]:
    while rest.text:
        end = _fit(rest.text, max_length)
        if end == len(rest.text):
            yield rest
            return
        cut = _find_cut(rest, end)
        first = _strip(_slice(rest, 0, cut))
        if first.text:
            yield first
        rest = _strip(_slice(rest, cut, len(rest.text)))


def _fit(text: str, max_length: int) -> int:
    """Return how many characters fit into `max_length` UTF-16 units."""
    if utf16_length(text) <= max_length:
        return len(text)
    length = 0
    for position, char in enumerate(text):
        length += 2 if char > "\uffff" else 1
        if length > max_length:
            return position
    return len(text)


def _find_cut(whole: FormattedText, end: int) -> int:
    """Return the last good cut before `end`: before a code block, or at the end of a paragraph, a line or a word."""
    for entity in whole.entities:
        if entity.kind == "pre" and end // 4 < entity.start < end < entity.end:
            return entity.start
    for separator in _BREAKS:
        position = whole.text.rfind(separator, end // 2, end + 1)
        if position > 0:
            return position + len(separator) if position + len(separator) <= end else position
    for position in range(end, max(end - 32, 1), -1):
        if not _joins_previous(whole.text, position):
            return position
    return end


def _joins_previous(text: str, position: int) -> bool:
    """Return whether the character combines with the one before it."""
    char = text[position]
    modifies = char in _JOINERS or text[position - 1] == "\u200d" or "\U0001f3fb" <= char <= "\U0001f3ff"
    return modifies or bool(unicodedata.combining(char))


def _slice(whole: FormattedText, start: int, end: int) -> FormattedText:
    entities = [
        msgspec.structs.replace(entity, start=max(entity.start, start) - start, end=min(entity.end, end) - start)
        for entity in whole.entities
        if entity.start < end and entity.end > start
    ]
    return FormattedText(whole.text[start:end], tuple(entity for entity in entities if entity.start < entity.end))


def _strip(message: FormattedText) -> FormattedText:
    """Remove surrounding whitespace, as Telegram does, and trim the entities accordingly."""
    text = message.text
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    return message if (start, end) == (0, len(text)) else _slice(message, start, max(start, end))
