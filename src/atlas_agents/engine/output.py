"""Answers of a wanted shape: a JSON schema or a Python type, checked here whatever the model's vendor promised."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, cast

from atlas_agents.core.errors import BadArguments, BadOutput, BadTool, ConfigError
from atlas_agents.core.json import encode
from atlas_agents.core.names import wire_name
from atlas_agents.engine.partial import Partly, partly
from atlas_agents.providers.base import OutputSpec
from atlas_agents.tools.schema import compile_check
from atlas_agents.tools.typeddicts import readable


class Output:
    """The wanted shape. `read` gives the value of an answer, or raises BadOutput saying what does not fit."""

    def __init__(self, wanted: Any) -> None:
        self.spec, self._value = (
            _of_schema(cast(Mapping[str, Any], wanted)) if isinstance(wanted, Mapping) else _of_type(wanted)
        )
        self._wanted: Any = wanted
        self.instruction = f"Answer only with JSON that fits this schema, without any other words:\n{self.schema}"

    @property
    def schema(self) -> str:
        return encode(self.spec.schema).decode()

    def read(self, text: str) -> Any:
        return self._value(_unfenced(text))

    @cached_property
    def partly(self) -> Partly:
        """Reads the beginning of an answer."""
        wanted: object = self._wanted
        return partly(self._wanted if isinstance(wanted, Mapping) else readable(self._wanted))


def _of_schema(schema: Mapping[str, Any]) -> tuple[OutputSpec, Callable[[str], Any]]:
    import json

    name = wire_name(str(schema.get("title") or "answer"))
    try:
        check = compile_check(name, dict(schema))
    except BadTool as error:
        raise ConfigError(f"the wanted output is no valid JSON schema: {error.__cause__}") from error

    def value(text: str) -> Any:
        try:
            found = json.loads(text)
            check(found)
        except (ValueError, RecursionError, BadArguments) as error:
            raise BadOutput(str(error)) from error
        return found

    return OutputSpec(name, dict(schema)), value


def _of_type(wanted: Any) -> tuple[OutputSpec, Callable[[str], Any]]:
    import pydantic

    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(readable(wanted))
        schema = adapter.json_schema()
    except (pydantic.errors.PydanticUserError, TypeError, ValueError) as error:
        raise ConfigError(f"{wanted!r} cannot be described as JSON: {str(error).splitlines()[0]}") from error

    def value(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except pydantic.ValidationError as error:
            problems = [f"{'.'.join(map(str, item['loc'])) or 'answer'}: {item['msg']}" for item in error.errors()]
            raise BadOutput("; ".join(problems[:8])) from error

    return OutputSpec(wire_name(getattr(wanted, "__name__", "answer")), schema), value


def _unfenced(text: str) -> str:
    """Without the code fence that models like to put around JSON."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text[text.index("\n") + 1 : -3].strip()
    return text
