"""Derived tables: the search index of sessions, built from their rows in small batches.

Nothing is added to the commits of a turn. `RefreshIndexes` continues from a stored position, so it also indexes what
was stored before an upgrade or by an older process, and a process that is killed in between loses nothing.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from atlas_agents.core import store
from atlas_agents.storage.sql import statements as sql
from atlas_agents.storage.sql.tables import Row, Steps, WriteContext, split_batches
from atlas_agents.storage.sql.text_search import session_owners

SESSIONS = "sessions"
"""Name of the position in the sessions of a tenant: the `updated_at` up to which they are indexed."""
OVERLAP_MS = 10_000
"""Sessions that changed this long before the position are checked again, in case commits were not made in order."""
_SESSION_BATCH = 64
_MESSAGE_PAGE = 50
_MAX_MESSAGES, _MAX_BYTES = 200, 512 * 1024
"""Limits of one batch, which takes about 10 ms."""
_TEXT_BATCHES = (16, 4, 1)
_MAX_TEXT, _MAX_WORD = 64 * 1024, 64
"""Characters of a message and of a word that are indexed."""
_WORD = re.compile(r"[^\W_]+")
_CJK = re.compile("([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff])")
"""Scripts without spaces between words; each character is indexed as a word."""


class _Part(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Body(msgspec.Struct):
    role: str = ""
    parts: list[_Part] = []


_decode_body = msgspec.json.Decoder(_Body).decode


class _Pending(NamedTuple):
    """A session to index, with what was indexed of it before."""

    key: str
    updated_at: int
    label: str
    last_message: int
    message: int
    indexed_label: str | None


def search_words(text: str) -> list[str]:
    """Split a text into words for searching: without case, accents and punctuation."""
    folded = text.casefold()
    if not folded.isascii():
        plain = "".join([char for char in unicodedata.normalize("NFKD", folded) if not unicodedata.combining(char)])
        folded = _CJK.sub(r" \1 ", unicodedata.normalize("NFC", plain))
    return [word[:_MAX_WORD] for word in _WORD.findall(folded)]


def refresh_indexes(context: WriteContext, write: store.RefreshIndexes) -> Steps[int]:
    """Index one batch."""
    return (yield from _index_sessions(context))


def _index_sessions(context: WriteContext) -> Steps[int]:
    ((newest,),) = yield context.bind(sql.NEWEST_SESSION)
    position = min((yield from _read_position(context, SESSIONS)), newest)
    rows = yield context.bind(sql.UNINDEXED_SESSIONS, position=position - OVERLAP_MS, limit=_SESSION_BATCH)
    remaining = _MAX_MESSAGES
    for session in map(_Pending._make, rows):
        if remaining <= 0:
            break
        indexed, is_complete = yield from _index_session(context, session, remaining)
        remaining -= indexed + 1
        if not is_complete:
            break
        position = max(position, session.updated_at)
    else:
        position = position if len(rows) == _SESSION_BATCH else newest
    yield context.bind(sql.SET_POSITION, name=SESSIONS, position=position)
    return len(rows)


def _index_session(context: WriteContext, session: _Pending, limit: int) -> Steps[tuple[int, bool]]:
    """Index the name and the next messages of a session. Returns how many, and whether the session is complete."""
    texts: list[tuple[int, str]] = []
    if session.indexed_label != session.label:
        yield context.bind(sql.DROP_SEARCH_LABEL, session=session.key)
        texts.append((0, " ".join(search_words(session.label))))
    after, size, count, is_complete = session.message, 0, 0, False
    while not is_complete and count < limit and size < _MAX_BYTES:
        page = min(_MESSAGE_PAGE, limit - count)
        rows = yield context.bind(sql.BODIES, session=session.key, after=after, limit=page)
        for after, body in rows:
            texts.append((after, _message_words(body)))
            size += len(body)
        count += len(rows)
        is_complete = len(rows) < page
    yield from _add_texts(context, session.key, [text for text in texts if text[1]])
    last = max(session.last_message, after) if is_complete else after
    yield context.bind(sql.PUT_SEARCH_SESSION, session=session.key, label=session.label, message=last)
    return count, is_complete


def _add_texts(context: WriteContext, session: str, texts: Sequence[tuple[int, str]]) -> Steps[None]:
    owners = session_owners(context.tenant, session)
    for batch in split_batches(texts, _TEXT_BATCHES):
        values: dict[str, Any] = {}
        for n, (seq, text) in enumerate(batch):
            values[f"seq{n}"], values[f"text{n}"] = seq, text
        yield context.bind(sql.add_search_texts(len(batch)), session=session, owners=owners, **values)


def _message_words(body: bytes) -> str:
    """Return the words of a message of a person or a model; none if it cannot be decoded."""
    try:
        message = _decode_body(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    if message.role not in ("user", "assistant"):
        return ""
    text = "".join([part.text for part in message.parts if part.type == "text"])
    return " ".join(dict.fromkeys(search_words(text[:_MAX_TEXT])))


def _read_position(context: WriteContext, name: str) -> Steps[int]:
    rows = yield context.bind(sql.POSITION, name=name)
    return first_number(rows)


def first_number(rows: Sequence[Row]) -> int:
    """Return the number in the first row; 0 if there is none."""
    return int(rows[0][0]) if rows and rows[0][0] is not None else 0
