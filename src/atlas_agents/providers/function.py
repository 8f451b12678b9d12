"""A plain callable as a provider: it takes the request and returns an OpenAI-shaped chat completion."""

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, cast

import msgspec

from atlas_agents.core.calling import call
from atlas_agents.core.errors import AtlasError, ProviderError
from atlas_agents.core.json import encode
from atlas_agents.providers.base import Capabilities, Chunk, Request
from atlas_agents.providers.faults import fault_of_status
from atlas_agents.providers.openai_reader import OpenAIReader


class FunctionProvider:
    """Wraps `provider(request)`, sync or async. A sync one runs in a thread and never blocks the loop."""

    def __init__(self, function: Callable[[Request], Any]) -> None:
        self._function = function
        self.id = str(getattr(function, "__name__", type(function).__name__))

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(streaming=False)

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        try:
            completion = await call(self._function, request)
        except AtlasError:
            raise
        except Exception as error:  # the border to a user's code: whatever it raises is this provider's failure
            raise _fault(error) from error
        for chunk in OpenAIReader().whole(_as_json(completion, self.id)):
            yield chunk

    def __repr__(self) -> str:
        return f"FunctionProvider({self.id})"


def _as_json(completion: Any, name: str) -> bytes:
    """A dict as it is; an SDK's object through its own `model_dump`; any other by its attributes."""
    if callable(dump := getattr(completion, "model_dump", None)):
        completion = dump(mode="json")
    try:
        data = encode(_plain(completion))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProviderError(f"{name} returned what is no chat completion: {error}", "protocol") from error
    if not data.startswith(b"{"):
        raise ProviderError(f"{name} must return a chat completion, not {type(completion).__name__}", "protocol")
    return data


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast(list[Any], value)]
    if isinstance(value, msgspec.Struct) or not hasattr(value, "__dict__"):
        return value
    fields = cast(dict[str, Any], vars(value))
    return {key: _plain(item) for key, item in fields.items() if not key.startswith("_")}


def _fault(error: Exception) -> ProviderError:
    """SDK errors carry their HTTP status; anything else may be worth another try."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
        return fault_of_status(status, getattr(error, "body", None) or str(error), headers)
    return ProviderError(f"{type(error).__name__}: {error}", "unknown")
