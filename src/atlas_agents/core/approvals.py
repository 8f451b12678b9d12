"""What a person is asked before a tool acts, or while it does, and what they may answer."""

from typing import Any, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["text", "number", "integer", "boolean", "choice", "choices"]
Action: TypeAlias = Literal["accept", "decline", "cancel"]
_TYPES: dict[Kind, str] = {"text": "string", "number": "number", "integer": "integer", "boolean": "boolean"}


class Choice(msgspec.Struct, frozen=True):
    """One of several values, and how it is called."""

    value: str
    title: str = ""


class Field(msgspec.Struct, frozen=True):
    """One value. `least` and `most` bound a number, the length of a text, or how many are chosen."""

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
        """What a value must fit."""
        named = [choice.value for choice in self.choices]
        match self.kind:
            case "choice":
                return {"enum": named}
            case "choices":
                return {"type": "array", "items": {"enum": named}, "uniqueItems": True, **self._bounds("Items")}
            case "text":
                more = {key: value for key, value in (("format", self.format), ("pattern", self.pattern)) if value}
                return {"type": "string", **more, **self._bounds("Length")}
            case _:
                return {"type": _TYPES[self.kind], **self._bounds("imum")}

    def _bounds(self, of: str) -> dict[str, float]:
        given = {f"min{of}": self.least, f"max{of}": self.most}
        return {key: value for key, value in given.items() if value is not None}


class Form(msgspec.Struct, frozen=True):
    """What is asked. `asker` is who will get the answer; with a `url`, whether the person goes there by themselves."""

    asker: str
    message: str
    fields: tuple[Field, ...] = ()
    url: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """What the values must fit."""
        return {
            "type": "object",
            "properties": {field.name: field.schema for field in self.fields},
            "required": [field.name for field in self.fields if field.required],
            "additionalProperties": False,
        }

    @property
    def suggested(self) -> dict[str, Any]:
        """The values that the asker proposes."""
        return {field.name: field.default for field in self.fields if field.default is not None}

    @property
    def text(self) -> str:
        """All of it in lines, for who is shown nothing else."""
        lines = [self.message, *([f"address: {self.url}"] if self.url else [])]
        lines += [_line(field) for field in self.fields]
        return "\n".join([*lines, f"What you answer is sent to {self.asker}."])


class Filled(msgspec.Struct, frozen=True):
    """What became of it: values where the person gave some, a no, or nothing in time."""

    action: Action
    values: dict[str, Any] = {}
    by: str = ""


def _line(field: Field) -> str:
    kind = " | ".join(choice.value for choice in field.choices) or field.kind
    title = f" {field.title}:" if field.title else ""
    words = f" {field.description}" if field.description else ""
    return f"{field.name} ({kind}{', needed' if field.required else ''}){title}{words}"


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
