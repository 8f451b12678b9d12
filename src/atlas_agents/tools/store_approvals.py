"""Questions and answers in a store, for whoever answers: from any face, in any process."""

import msgspec

from atlas_agents.core.aio import Clock
from atlas_agents.core.approvals import Answer, Question
from atlas_agents.core.errors import Conflict, NotFound, StoreLost
from atlas_agents.core.json import encode
from atlas_agents.core.store import OPEN, AnswerApproval, Store
from atlas_agents.tools.approvals import Approvals, granted_by
from atlas_agents.tools.elicitation import check_answer

_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Answer)


async def answer_kept(
    store: Store, tenant: str, approvals: Approvals, approval_id: str, answer: Answer, clock: Clock
) -> Question:
    """Keep an answer, then hand it to whoever waits for it here. A run that goes on elsewhere, or later, reads it.
    BadArguments for values that do not fit a form: it waits on."""
    row = await store.approval(tenant, approval_id)
    if row is None:
        raise NotFound(f"there is no question {approval_id!r}")
    run = await store.run(tenant, row.run_id)
    if run is None or run.status not in OPEN:
        raise Conflict(f"the turn that asked {approval_id!r} has ended")
    if row.answer is not None:
        approvals.give(approval_id, _answers.decode(row.answer))  # should nobody have told who waits for it
        raise Conflict(f"the question {approval_id!r} was answered before")
    if clock.time() * 1000 >= row.expires_at:
        raise Conflict(f"the time to answer {approval_id!r} is over")
    question = _questions.decode(row.question)
    counts = approvals.judged(question, answer)
    check_answer(question, counts)
    given = AnswerApproval(approval_id, encode(counts), granted_by(question, counts))
    try:
        await store.commit(tenant, [given])
    except StoreLost as lost:
        found = await store.approval(tenant, approval_id) if lost.unclear else None
        if found is None or found.answer != given.answer:
            raise
    approvals.give(approval_id, counts)
    return question


async def hand_kept(store: Store, tenant: str, approvals: Approvals, approval_id: str) -> None:
    """Hand an answer that is kept to whoever waits for it here, if somebody does."""
    if approvals.waits_for(approval_id):
        row = await store.approval(tenant, approval_id)
        if row is not None and row.answer is not None:
            approvals.give(approval_id, _answers.decode(row.answer))


async def pending_kept(store: Store, tenant: str, clock: Clock) -> list[Question]:
    """Those whose time is not over, the oldest first."""
    now = clock.time() * 1000
    return [_questions.decode(row.question) for row in await store.pending_approvals(tenant) if row.expires_at > now]
