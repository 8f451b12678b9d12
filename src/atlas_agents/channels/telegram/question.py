"""A question about a call, as messages with buttons: all of it is shown, or it cannot be said yes to."""

import time
from typing import Any

import msgspec

from atlas_agents.core.exact import exact, seen
from atlas_agents.gateway.protocol.shapes import ApprovalShape
from atlas_agents.toolbox.telegram.markdown import Styled, bold, code_block, joined
from atlas_agents.toolbox.telegram.pieces import MOST, units

YES, NO = "y", "n"
_ROOM = 3000
_MOST_PARTS = 5
_TO_FILL = "It asks for values: give them on the page, or with atlas approvals."
_TOO_LONG = "It is too long to be shown here. Say no, or answer it on the page or with atlas approvals."


class Sheet(msgspec.Struct, frozen=True):
    """What is sent: messages before, and the last one, which has the buttons."""

    before: tuple[Styled, ...]
    last: Styled
    words: str
    """The first line, kept to be shown when it is over."""
    buttons: dict[str, Any]


def sheet(asked: ApprovalShape) -> Sheet:
    """A question as it is put. Every character that is not seen stands as its escape."""
    head = seen(asked.summary.replace("\n", " "))[:200]
    content = "\n".join([f"{exact(name)[1:-1]} = {exact(value)}" for name, value in asked.details.items()])
    if asked.preview:
        content = f"{content}\n\n{seen(asked.preview).rstrip()}"
    if asked.form is not None:
        content = seen(asked.preview).rstrip()
    foot = _foot(asked)
    whole = joined(bold(head), "\n\n", code_block(content or "(no arguments)"), "\n\n", foot)
    if units(whole.text) <= MOST:
        return Sheet((), whole, head, _buttons(asked, shown=True))
    chunks = _chunks(content)
    if chunks is None:
        start = code_block(content[:_ROOM].rstrip())
        short = joined(bold(head), "\n\n", start, f"\n\n… {_TOO_LONG}\n\n{foot}")
        return Sheet((), short, head, _buttons(asked, shown=False))
    before = [
        joined(f"{head} ({number} of {len(chunks)})\n\n", code_block(chunk)) for number, chunk in enumerate(chunks, 1)
    ]
    return Sheet(tuple(before), joined(bold(head), f"\n\nas shown above\n\n{foot}"), head, _buttons(asked, shown=True))


def over(words: str, how: str) -> Styled:
    """The same message once it is answered."""
    return joined(bold(words), f"\n\n{how}")


def read(data: str) -> tuple[str, str]:
    """Which button of which question was pressed; both empty if it is none of ours."""
    way, _, approval_id = data.partition(":")
    return (way, approval_id) if way in (YES, NO) else ("", "")


def _foot(asked: ApprovalShape) -> str:
    if asked.form is not None and _to_fill(asked):
        return _TO_FILL
    left = max(0, round(asked.expires_at / 1000 - time.time()))
    because = f"because of {seen(asked.risk)[:200]}; " if asked.risk else ""
    return f"in {exact(asked.working_dir)}\n{because}without an answer it is no, in {left} s"


def _buttons(asked: ApprovalShape, *, shown: bool) -> dict[str, Any]:
    yes = "Once" if asked.form is None else "Accept"
    may = shown and not _to_fill(asked)
    row = [{"text": yes, "callback_data": f"{YES}:{asked.approval_id}"}] if may else []
    return {"inline_keyboard": [[*row, {"text": "Deny", "callback_data": f"{NO}:{asked.approval_id}"}]]}


def _to_fill(asked: ApprovalShape) -> bool:
    """Buttons are not enough: something is needed that is not suggested."""
    fields = asked.form.fields if asked.form is not None else ()
    return any(field.required and field.default is None for field in fields)


def _chunks(content: str) -> list[str] | None:
    """The content in pieces, none with a space at its end, which would be lost; None if that cannot be, or is too
    much."""
    found: list[str] = []
    while content:
        if len(found) == _MOST_PARTS:
            return None
        cut = min(len(content), _ROOM)
        while units(content[:cut]) > _ROOM or content[cut - 1].isspace():
            cut -= 1
            if cut < _ROOM // 4:
                return None
        found.append(content[:cut])
        content = content[cut:]
    return found
