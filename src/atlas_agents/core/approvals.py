"""Approvals and forms: what a person is asked before or during a tool call, and how they can answer."""

from typing import Any, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["text", "number", "integer", "boolean", "choice", "choices"]
Action: TypeAlias = Literal["accept", "decline", "cancel"]
_TYPES: dict[Kind, str] = {"text": "string", "number": "number", "integer": "integer", "boolean": "boolean"}
Decision: TypeAlias = Literal["once", "session", "always", "no", "dismiss"]


class Choice(msgspec.Struct, frozen=True):
    """One option of a field: its value and its label."""

    value: str
    title: str = ""


class Field(msgspec.Struct, frozen=True):
    """One field of a form. `least` and `most` bound a number, a text's length or the number of selected options."""

    name: str
    kind: Kind = "text"
    title: str = ""
    description: str = ""
    required: bool = False
    default: Any = None
    choices: tuple[Choice, ...] = ()
    format: str = ""
    pattern: str = ""
    least: int | float | None = None
    most: int | float | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a value."""
        choice_values = [choice.value for choice in self.choices]
        match self.kind:
            case "choice":
                return {"enum": choice_values}
            case "choices":
                return {"type": "array", "items": {"enum": choice_values}, "uniqueItems": True, **self._bounds("Items")}
            case "text":
                rules = {key: value for key, value in (("format", self.format), ("pattern", self.pattern)) if value}
                return {"type": "string", **rules, **self._bounds("Length")}
            case _:
                return {"type": _TYPES[self.kind], **self._bounds("imum")}

    def _bounds(self, suffix: str) -> dict[str, float]:
        bounds = {f"min{suffix}": self.least, f"max{suffix}": self.most}
        return {key: value for key, value in bounds.items() if value is not None}


class Form(msgspec.Struct, frozen=True):
    """A form to fill in. `asker` receives the answer; with a `url`, the person is asked to open that address."""

    asker: str
    message: str
    fields: tuple[Field, ...] = ()
    url: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the values."""
        return {
            "type": "object",
            "properties": {field.name: field.schema for field in self.fields},
            "required": [field.name for field in self.fields if field.required],
            "additionalProperties": False,
        }

    @property
    def suggested(self) -> dict[str, Any]:
        """Return the default values that the asker proposes."""
        return {field.name: field.default for field in self.fields if field.default is not None}

    @property
    def text(self) -> str:
        """Render the whole form as lines of text."""
        lines = [self.message, *([f"address: {self.url}"] if self.url else [])]
        lines += [_describe_field(field) for field in self.fields]
        return "\n".join([*lines, f"Your answer is sent to {self.asker}."])


class Filled(msgspec.Struct, frozen=True):
    """The outcome of a form: the values, a refusal, or a timeout."""

    action: Action
    values: dict[str, Any] = {}
    by: str = ""


def _describe_field(field: Field) -> str:
    kind = " | ".join(choice.value for choice in field.choices) or field.kind
    title = f" {field.title}:" if field.title else ""
    note = f" {field.description}" if field.description else ""
    return f"{field.name} ({kind}{', required' if field.required else ''}){title}{note}"


class Question(msgspec.Struct, frozen=True):
    """An approval request: the tool, its exact arguments and the deadline for an answer.

    `preview` describes what the call would change, as the tool itself reports it; `facts` are further values that the
    approval is bound to; `rule` is the policy's rule that requires the approval. With a `form`, a running tool asks for
    values, and the arguments are its suggestions.
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
    rule: str = ""


class Answer(msgspec.Struct, frozen=True):
    """A person's answer. `arguments` replace the proposed ones, or are the values of a form; `by` names the person.

    Dismissing a question does not approve it.
    """

    decision: Decision
    arguments: dict[str, Any] | None = None
    by: str = ""
    reason: str = ""
