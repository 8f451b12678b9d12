"""A tool that is at work asks the person whose turn it is for a few values: the one way of asking, in mid-call."""

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Protocol

from atlas_agents.core.errors import AtlasError, BadArguments, Declined
from atlas_agents.core.events import ApprovalAnswered, ApprovalAsked
from atlas_agents.core.forms import Action, Filled, Form
from atlas_agents.core.json import encode
from atlas_agents.core.messages import ToolCall
from atlas_agents.core.questions import Answer, Question
from atlas_agents.core.text import clean
from atlas_agents.tools.approvals import binding, question_id
from atlas_agents.tools.desk import Desk
from atlas_agents.tools.schema import compile_check

logger = logging.getLogger(__name__)
MOST = 20
"""So often one call may ask; then nobody answers any more."""
_GIVEN_UP = Answer("dismiss", reason="it is not asked any more")


class Pausing(Protocol):
    """An attempt, as far as this file knows one: its time stands still while a person thinks."""

    def pause(self) -> None: ...

    def go_on(self) -> None: ...


class Asking:
    """The questions of one call. One that is still open when the call ends is taken back."""

    def __init__(self, call: ToolCall, desk: Desk) -> None:
        self.attempt: Pausing | None = None
        self.waited = 0.0
        """Seconds that a person took."""
        self.asked: list[dict[str, Any]] = []
        """Who asked for what, and what came of it, without the values: for the audit log."""
        self.leaving = False
        """The whole turn ends, and its questions with it: nothing more is written."""
        self._call = call
        self._desk = desk
        self._count = 0
        self._open: set[asyncio.Task[Filled]] = set()

    async def ask(self, form: Form) -> Filled:
        """The values, checked; BadTool if it is no form. Nobody to ask, or no answer in time, is a cancel."""
        compile_check("form", form.schema, formats=True)
        self._count += 1
        filled = Filled("cancel")
        if self._desk.asks and self._count <= MOST:
            task = asyncio.create_task(self._answered(form, self._count))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            with self._paused():
                try:
                    await asyncio.wait((task,))
                finally:
                    task.cancel()
            filled = filled if task.cancelled() else task.result()
        self.asked.append(_noted(form, filled))
        return filled

    async def close(self) -> None:
        """Take back what is open."""
        for task in tuple(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    @contextmanager
    def _paused(self) -> Generator[None, None, None]:
        clock, attempt = self._desk.house.clock, self.attempt
        began = clock.monotonic()
        if attempt is not None:
            attempt.pause()
        try:
            yield
        finally:
            self.waited += clock.monotonic() - began
            if attempt is not None:
                attempt.go_on()

    async def _answered(self, form: Form, number: int) -> Filled:
        desk, question = self._desk, self._question(form, number)
        house, waits = desk.house, desk.house.approvals.wait or desk.book is not None

        def tell(kept: Question) -> None:
            if waits:
                desk.emit(ApprovalAsked(desk.run_id, kept))

        try:
            answer = await house.approvals.hear(question, house.clock, desk.book, tell)
        except Declined:
            return Filled("cancel")
        except asyncio.CancelledError:
            if not self.leaving:
                await self._take_back(question)
            raise
        if waits:
            desk.emit(ApprovalAnswered(desk.run_id, question.id, answer.decision, answer.by))
        return _filled(form, answer)

    async def _take_back(self, question: Question) -> None:
        desk = self._desk
        try:
            if desk.book is not None:
                await desk.book.answered(question, _GIVEN_UP, "", new=True)
        except AtlasError as error:
            logger.warning("a question of %r could not be taken back: %s", question.tool, error)
        desk.emit(ApprovalAnswered(desk.run_id, question.id, _GIVEN_UP.decision))

    def _question(self, form: Form, number: int) -> Question:
        """The same when the same call asks it again in another life; a second one like it is another."""
        desk, call = self._desk, self._call
        house, tool = desk.house, desk.shown_name(call)
        bound = binding(tool, {"form": encode(form).decode(), "number": number}, house.version)
        return Question(
            title=f"{form.asker[:1].upper()}{form.asker[1:]} asks you",
            message=form.message,
            tool=tool,
            arguments=form.suggested,
            binding=bound,
            call_id=call.id,
            run_id=desk.run_id,
            agent_id=desk.actor.agent_id,
            session=desk.conversation.id,
            asked_by=desk.actor.user,
            expires_at=house.clock.time() + house.approvals.deadline,
            working_directory="",
            options=("once", "no", "dismiss"),
            tenant=desk.actor.tenant,
            id=question_id(desk.run_id, call.id, bound),
            policy=house.version,
            preview=str(house.redactor.known_in(clean(form.text))),
            form=form,
        )


def check_answer(question: Question, answer: Answer) -> None:
    """Before it counts: values that do not fit the form are a BadArguments, so that the person can mend them."""
    if question.form is not None and answer.decision not in ("no", "dismiss"):
        _values(question.form, answer)


def _filled(form: Form, answer: Answer) -> Filled:
    """Of who is asked in a program nobody has checked the answer yet: one that does not fit is none."""
    if answer.decision in ("no", "dismiss"):
        action: Action = "decline" if answer.decision == "no" and answer.by else "cancel"
        return Filled(action, by=answer.by)
    try:
        return Filled("accept", _values(form, answer), answer.by)
    except BadArguments as error:
        logger.warning("an answer to %s does not fit what it asked for: %s", form.asker, error)
        return Filled("cancel", by=answer.by)


def _values(form: Form, answer: Answer) -> dict[str, Any]:
    values = form.suggested if answer.arguments is None else answer.arguments
    compile_check("form", form.schema, formats=True)(values)
    return values


def _noted(form: Form, filled: Filled) -> dict[str, Any]:
    said = {"asker": form.asker, "fields": [field.name for field in form.fields], "answer": filled.action}
    return {**said, **({"by": filled.by} if filled.by else {}), **({"url": form.url} if form.url else {})}
