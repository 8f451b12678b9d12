"""What a person is asked before a tool acts, or while it does, and what they may answer."""

from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.core.forms import Form

Decision: TypeAlias = Literal["once", "session", "always", "no", "dismiss"]


class Question(msgspec.Struct, frozen=True):
    """What a person is asked: the tool, the exact arguments, and until when an answer counts.

    `preview` is what the call would change, in the tool's own words; `facts` is what else a yes is bound to. With a
    `form`, a tool that is at work asks for values: the arguments are those it suggests.
    """

    title: str
    message: str
    tool: str
    arguments: dict[str, Any]
    binding: str
    call_id: str
    run_id: str
    agent_id: str
    session: str
    asked_by: str
    expires_at: float
    working_directory: str
    reason: str = ""
    options: tuple[Decision, ...] = ("once", "session", "always", "no")
    tenant: str = "default"
    id: str = ""
    policy: str = ""
    preview: str = ""
    facts: Any = None
    form: Form | None = None


class Answer(msgspec.Struct, frozen=True):
    """What the person said. `arguments` are edited ones to use instead, or what a form was filled with; `by` is who
    answered. To dismiss a question is no yes either."""

    decision: Decision
    arguments: dict[str, Any] | None = None
    by: str = ""
    reason: str = ""
