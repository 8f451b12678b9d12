"""What a server says it can do, and the hash that an approval of it is for."""

import hashlib
import unicodedata
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.core.text import is_hidden

Kind: TypeAlias = Literal["tool", "list_resources", "read_resource", "list_prompts", "get_prompt"]


class Found(msgspec.Struct, frozen=True):
    """A tool as its server describes it, or one of ours that reads the server's resources and prompts."""

    name: str
    description: str
    parameters: dict[str, Any]
    kind: Kind = "tool"

    @property
    def digest(self) -> str:
        """Another name, description or schema has another one."""
        said = [self.kind, self.name, self.description, self.parameters]
        return hashlib.sha256(msgspec.json.encode(said, order="sorted")).hexdigest()

    @property
    def text(self) -> str:
        """All of it for a person who decides, with nothing hidden."""
        schema = msgspec.json.format(msgspec.json.encode(self.parameters, order="sorted"), indent=2).decode()
        return f"{shown(self.name)}\n{_indented(shown(self.description))}\n{_indented(shown(schema))}"


def shown(text: str) -> str:
    """The text with every character that a person would not see written out, as `<U+200B ZERO WIDTH SPACE>`."""
    return "".join(_written(char) if _tricks(char) else char for char in text)


def hidden_in(tools: Iterable[Found]) -> list[str]:
    """The names of those that hide something."""
    return [each.name for each in tools if any(map(_tricks, f"{each.name}{each.description}{each.parameters!r}"))]


def more_tools(*, resources: bool, prompts: bool, taken: set[str]) -> list[Found]:
    """Our own tools for a server that has resources or prompts, unless it has tools of those names itself."""
    found: list[Found] = []
    if resources:
        found += [
            Found("list_resources", "List what can be read here, with addresses.", _NOTHING, "list_resources"),
            Found("read_resource", "Read something by its address.", _texts("uri"), "read_resource"),
        ]
    if prompts:
        words = "Get a prompt by its name, with its blanks filled in."
        found += [
            Found("list_prompts", "List the prompts that are kept here.", _NOTHING, "list_prompts"),
            Found("get_prompt", words, _PROMPT, "get_prompt"),
        ]
    return [each for each in found if each.name not in taken]


def _texts(*names: str) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "required": list(names), "additionalProperties": False}


_NOTHING = _texts()
_PROMPT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def _tricks(char: str) -> bool:
    """It is not seen, or writes over what is."""
    return char == "\r" or is_hidden(char)


def _written(char: str) -> str:
    return f"<U+{ord(char):04X} {unicodedata.name(char, 'UNNAMED')}>"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])
