"""Answers that come with a run: each to a question of this thread, each counted once."""

import msgspec

from atlas_agents.core.errors import Conflict, NotStored
from atlas_agents.core.questions import Answer, Question
from atlas_agents.core.store import ApprovalRow
from atlas_agents.gateway.agui.asked import Resume, payload_of
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.tokens import Grant
from atlas_agents.gateway.trouble import Trouble

_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Answer)


async def open_questions(hub: Hub, session: str) -> tuple[Question, ...]:
    """What somebody has yet to answer in a session."""
    return tuple([each for each in await hub.atlas.pending() if each.session == session])


async def answer(hub: Hub, who: Grant, session: str, entries: list[Resume]) -> Question:
    """Give the answers, and the last question, whose turn goes on. The same answer again is no other answer."""
    rows = [await _row(hub, session, entry) for entry in entries]
    answers = [_answer(entry, who) for entry in entries]
    answered = {entry.interrupt_id for entry in entries}
    missing = [each.id for each in await open_questions(hub, session) if each.id not in answered]
    if missing:
        raise Trouble(409, "interrupt_pending", f"these questions need an answer, too: {', '.join(missing)}")
    for entry, row, given in zip(entries, rows, answers, strict=True):
        await _give(hub, entry, row, given)
    return _questions.decode(rows[-1].question)


async def _row(hub: Hub, session: str, entry: Resume) -> ApprovalRow:
    """The same words whether the question never was or belongs to somebody else."""
    row = await hub.store.approval(hub.atlas.tenant, entry.interrupt_id)
    if row is None or row.session != session:
        raise Trouble(404, "interrupt_not_found", "there is no such question in this thread")
    return row


async def _give(hub: Hub, entry: Resume, row: ApprovalRow, given: Answer) -> None:
    if row.answer is not None and _same(_answers.decode(row.answer), given):
        return
    try:
        await hub.atlas.answer(row.id, given)
    except (Conflict, NotStored) as late:
        if entry.status != "cancelled":  # who gives up on a question only wants to go on
            raise Trouble(409, "interrupt_over", f"{late}; cancel it to go on") from None


def _answer(entry: Resume, who: Grant) -> Answer:
    by = who.principal.id
    if entry.status == "cancelled":
        return Answer("dismiss", by=by, reason="it was given up")
    payload = payload_of(entry)
    if not payload.approved:
        return Answer("no", by=by, reason=payload.reason)
    return Answer(payload.remember, payload.edited_args, by, payload.reason)


def _same(before: Answer, now: Answer) -> bool:
    return (before.decision, before.arguments) == (now.decision, now.arguments)
