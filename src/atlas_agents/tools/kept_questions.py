"""A run's questions to a person, in the store: asked once, answered once, and the answer kept before anything comes of
it."""

from typing import Protocol

import msgspec

from atlas_agents.core.clock import Clock
from atlas_agents.core.errors import Conflict, NotStored
from atlas_agents.core.json import encode
from atlas_agents.core.questions import Answer, Question
from atlas_agents.core.store import (
    AnswerApproval,
    ApprovalRow,
    JournalKind,
    JournalRow,
    PutApproval,
    RunStatus,
    Store,
    Write,
)
from atlas_agents.tools.patience import Patience

_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Answer)


class Step(Protocol):
    """Writes a step of the run's journal, the run's status and what belongs to it, in one commit."""

    async def __call__(
        self, kind: JournalKind, key: str, payload: bytes, status: RunStatus, *writes: Write
    ) -> None: ...


class KeptQuestions:
    """The book of one run."""

    def __init__(
        self, store: Store, tenant: str, run_id: str, session: str, *, step: Step, patience: Patience, clock: Clock
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._run_id = run_id
        self._session = session
        self._step = step
        self._patience = patience
        self._clock = clock
        self._asked: set[str] = set()
        self._answered: set[str] = set()

    def remember(self, row: JournalRow) -> None:
        """What an earlier life of the run asked, and was answered."""
        if row.kind == "asked":
            self._asked.add(row.key)
        elif row.kind == "answered":
            self._answered.add(row.key)

    async def ask(self, question: Question) -> tuple[Question, Answer | None]:
        """Keep a question; if it was asked before, it is as it was then, with its answer if it has one."""
        if question.id not in self._asked:
            self._asked.add(question.id)
            asked = self._row_of(question)
            await self._step("asked", question.id, asked.question, "waiting", PutApproval(asked))
            return question, None
        row = await self._approval(question)
        if row is None:
            raise NotStored(f"the question {question.id!r} is gone")
        answer = _answers.decode(row.answer) if row.answer is not None else None
        return _questions.decode(row.question), answer

    async def answered(self, question: Question, answer: Answer, grants: str, *, new: bool) -> Answer:
        """Keep an answer before anything comes of it, and give the one that counts: the first. One that is not `new` is
        kept already, by whoever gave it."""
        if question.id in self._answered:
            return answer
        given = (AnswerApproval(question.id, encode(answer), grants),) if new else ()
        try:
            await self._step("answered", question.id, encode(answer), "running", *given)
        except Conflict:
            row = await self._approval(question)
            if row is None or row.answer is None:
                raise
            first = _answers.decode(row.answer)
            return first if not new else await self.answered(question, first, grants, new=False)
        return answer

    async def granted(self, binding: str) -> list[tuple[Question, Answer]]:
        """What was allowed for longer than once, of this exact thing."""
        rows = await self._patience.read(lambda: self._store.grants(self._tenant, binding))
        return [(_questions.decode(row.question), _answers.decode(row.answer or b"")) for row in rows]

    async def _approval(self, question: Question) -> ApprovalRow | None:
        return await self._patience.read(lambda: self._store.approval(self._tenant, question.id))

    def _row_of(self, question: Question) -> ApprovalRow:
        return ApprovalRow(
            question.id,
            self._run_id,
            self._session,
            question.call_id,
            question.binding,
            encode(question),
            int(question.expires_at * 1000),
            int(self._clock.time() * 1000),
        )
