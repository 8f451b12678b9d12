"""Elicitation: a running tool asks the user for a few values."""

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Protocol

from atlas_agents.core.approvals import Action, Answer, Filled, Form, Question
from atlas_agents.core.errors import AtlasError, BadArguments, Declined
from atlas_agents.core.events import ApprovalAnswered, ApprovalAsked
from atlas_agents.core.json import encode
from atlas_agents.core.messages import ToolCall
from atlas_agents.core.text import clean
from atlas_agents.tools.approvals import REFUSALS, compute_binding, form_values, question_id
from atlas_agents.tools.governance import ToolScope
from atlas_agents.tools.schema import compile_check

logger = logging.getLogger(__name__)
MAX_FORMS_PER_CALL = 20
"""Further forms of the same call are cancelled without asking."""
_WITHDRAWN = Answer("dismiss", reason="the question was withdrawn")


class Timeout(Protocol):
    """The timeout of a call, which does not run while a person is asked."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class ToolElicitation:
    """The forms of one tool call. A form that is still open when the call ends is withdrawn."""

    def __init__(self, call: ToolCall, scope: ToolScope, timeout: Timeout) -> None:
        self.seconds_waited = 0.0
        """How long the user took to answer, in total."""
        self.log: list[dict[str, Any]] = []
        """For the audit log: who asked for which fields, and the outcome, without the values."""
        self.abandoned = False
        """The whole turn ends and its questions with it: nothing more is written."""
        self._call = call
        self._scope = scope
        self._timeout = timeout
        self._count = 0
        self._open: set[asyncio.Task[Filled]] = set()

    async def ask(self, form: Form) -> Filled:
        """Show a form and return its checked values; raises BadTool for an invalid form.

        The result is a cancel if no one can be asked or no one answers in time.
        """
        compile_check("form", form.schema, formats=True)
        self._count += 1
        filled = Filled("cancel")
        if self._scope.asks and self._count <= MAX_FORMS_PER_CALL:
            task = asyncio.create_task(self._ask(form, self._count))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            with self._paused():
                try:
                    await asyncio.wait((task,))
                finally:
                    task.cancel()
            filled = filled if task.cancelled() else task.result()
        self.log.append(_log_entry(form, filled))
        return filled

    async def close(self) -> None:
        """Withdraw open forms."""
        for task in tuple(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    @contextmanager
    def _paused(self) -> Generator[None, None, None]:
        clock = self._scope.governance.clock
        start = clock.monotonic()
        self._timeout.pause()
        try:
            yield
        finally:
            self.seconds_waited += clock.monotonic() - start
            self._timeout.resume()

    async def _ask(self, form: Form, number: int) -> Filled:
        scope, question = self._scope, self._question(form, number)
        governance, store = scope.governance, scope.approval_store
        waits = governance.approvals.wait or store is not None

        def on_asked(asked: Question) -> None:
            if waits:
                scope.emit(ApprovalAsked(scope.run_id, asked))

        try:
            answer = await governance.approvals.ask(question, governance.clock, store, on_asked)
        except Declined:
            return Filled("cancel")
        except asyncio.CancelledError:
            if not self.abandoned:
                await self._withdraw(question)
            raise
        if waits:
            scope.emit(ApprovalAnswered(scope.run_id, question.id, answer.decision, answer.by))
        return _to_filled(form, answer)

    async def _withdraw(self, question: Question) -> None:
        scope = self._scope
        try:
            if scope.approval_store is not None:
                await scope.approval_store.save_answer(question, _WITHDRAWN, "", new=True)
        except AtlasError as error:
            logger.warning("failed to withdraw a question: tool=%s error=%s", question.tool, error)
        scope.emit(ApprovalAnswered(scope.run_id, question.id, _WITHDRAWN.decision))

    def _question(self, form: Form, number: int) -> Question:
        """Build the question. Its id is the same when a resumed run asks the same form of the same call again."""
        scope, call = self._scope, self._call
        governance, tool = scope.governance, scope.display_name(call)
        bound = compute_binding(tool, {"form": encode(form).decode(), "number": number}, governance.policy_version)
        return Question(
            title=f"{form.asker[:1].upper()}{form.asker[1:]} requests your input",
            message=form.message,
            tool=tool,
            arguments=form.suggested,
            binding=bound,
            call_id=call.id,
            run_id=scope.run_id,
            agent_id=scope.actor.agent_id,
            session=scope.conversation.id,
            asked_by=scope.actor.user,
            expires_at=governance.clock.time() + governance.approvals.deadline,
            working_directory="",
            options=("once", "no", "dismiss"),
            tenant=scope.actor.tenant,
            id=question_id(scope.run_id, call.id, bound),
            policy=governance.policy_version,
            preview=str(governance.redactor.remove_known(clean(form.text))),
            form=form,
        )


def _to_filled(form: Form, answer: Answer) -> Filled:
    """Convert an answer. An `approve` function may return values that were not checked: invalid ones are a cancel."""
    if answer.decision in REFUSALS:
        action: Action = "decline" if answer.decision == "no" and answer.by else "cancel"
        return Filled(action, by=answer.by)
    try:
        return Filled("accept", form_values(form, answer), answer.by)
    except BadArguments as error:
        logger.warning("answer does not match the form: asker=%s error=%s", form.asker, error)
        return Filled("cancel", by=answer.by)


def _log_entry(form: Form, filled: Filled) -> dict[str, Any]:
    entry = {"asker": form.asker, "fields": [field.name for field in form.fields], "answer": filled.action}
    return {**entry, **({"by": filled.by} if filled.by else {}), **({"url": form.url} if form.url else {})}
