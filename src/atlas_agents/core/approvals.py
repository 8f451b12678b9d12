"""Approval requests, forms and answers: the questions to a person before or during a tool call."""

from typing import Any, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["text", "number", "integer", "boolean", "choice", "choices"]
Action: TypeAlias = Literal["accept", "decline", "cancel"]
_TYPES: dict[Kind, str] = {"text": "string", "number": "number", "integer": "integer", "boolean": "boolean"}
Decision: TypeAlias = Literal["once", "session", "always", "no", "dismiss"]
QuestionKind: TypeAlias = Literal["approval", "client_tool"]


class Choice(msgspec.Struct, frozen=True):
    """One option of a field: its value and its label.

    Attributes:
        value: Value that is returned if it is selected.
        title: Label; the value by default.
    """

    value: str
    title: str = ""


class Field(msgspec.Struct, frozen=True):
    """One field of a form. `least` and `most` bound a number, a text's length or the number of selected options.

    Attributes:
        name: Key of the value.
        kind: `text`, `number`, `integer`, `boolean`, `choice`, or `choices` for several.
        title: Label; the name by default.
        description: Help below the field.
        required: Whether a value must be entered.
        default: Value that is suggested.
        choices: The options, if values are selected.
        format: Format of a text, such as `email`, `uri` or `date`.
        pattern: Regular expression that a text must match.
        least: Smallest number, length or number of selected options.
        most: Largest number, length or number of selected options.
    """

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
    """A form to fill in. `asker` receives the answer; with a `url`, the person is asked to open that address.

    Attributes:
        asker: The party that asks and receives the answer, such as the name of an MCP server.
        message: The question to the person.
        fields: The fields of the form.
        url: Address that the person is asked to open instead.
    """

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
    """The outcome of a form: the values, a refusal, or a timeout.

    Attributes:
        action: `accept` if the form was filled in, `decline` or `cancel`.
        values: The values by the names of the fields.
        by: Name of the person.
    """

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

    Attributes:
        title: One line that says what is asked.
        message: What the tool would do, in words.
        tool: Name of the tool.
        arguments: The exact arguments, or the suggestions of a form.
        binding: Hash of what is approved; another call needs another approval.
        call_id: Id of the tool call.
        run_id: Id of the turn that waits.
        agent_id: Agent that wants to call the tool.
        session: Key of the session.
        asked_by: The user for whom the turn runs.
        expires_at: When the call is declined, in seconds since 1970.
        working_directory: Folder in which the process runs.
        reason: Why a person must approve the call.
        options: Decisions that can be made.
        tenant: Tenant of the session.
        id: Id of the question, for `atlas.answer`.
        policy: Version of the policy under which it is asked.
        preview: What the call would change, as the tool itself reports it.
        facts: Further values that the approval is bound to.
        form: The form to fill in, if a running tool asks for values.
        rule: Rule of the policy that requires the approval.
        kind: `client_tool` if the client of the turn has to run the call and post its result; `approval` otherwise.
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
    kind: QuestionKind = "approval"


class Answer(msgspec.Struct, frozen=True):
    """A person's answer. `arguments` replace the proposed ones, or are the values of a form; `by` names the person.

    Dismissing a question does not approve it.

    Attributes:
        decision: `once`, `session` or `always` to approve, `no` to decline, `dismiss` to close the question.
        arguments: Arguments that replace the proposed ones, or the values of a form.
        by: Name of the person.
        reason: Why it was declined; the model reads it.
    """

    decision: Decision
    arguments: dict[str, Any] | None = None
    by: str = ""
    reason: str = ""
