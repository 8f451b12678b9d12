"""Fits requests to what a model accepts.

What the catalogue knows to be refused is not sent. What a server refuses all the same is dropped, the request is sent
again, and the refusal is remembered for that model. Either way there is one warning, and no failed turn.
"""

import logging
from typing import Any

import msgspec

from atlas_agents.core.errors import ProviderError
from atlas_agents.providers.base import Request
from atlas_agents.providers.catalogue import ModelProfile
from atlas_agents.providers.settings import ModelSettings

logger = logging.getLogger(__name__)
REASONING = "reasoning"
"""Returned reasoning: thinking blocks, encrypted items and signatures."""
STRICT = "strict"
OUTPUT_SCHEMA = "output schema"
FORCED_TOOL = "tool_choice"
_SETTING_NAMES: dict[str, tuple[str, ...]] = {
    "temperature": ("temperature",),
    "top_p": ("top_p", "topP"),
    "max_tokens": (),
    "stop": ("stop", "stop_sequences", "stopSequences"),
    "seed": ("seed", "random_seed"),
    "service_tier": ("service_tier", "serviceTier"),
    "parallel_tool_calls": ("parallel_tool_calls", "disable_parallel_tool_use"),
    "effort": ("reasoning_effort", "reasoning.effort", "reasoning", "output_config.effort", "thinking", "effort"),
    "cache": ("prompt_cache_key", "cache_control", "prompt_cache_options"),
}
"""The fields under which vendors know a setting; an error that names one of them refuses that setting."""
_SAMPLING = ("temperature", "top_p")


class Adaptation:
    """What the models of one provider refused."""

    def __init__(self) -> None:
        self._refused: dict[str, frozenset[str]] = {}
        self._warned: set[tuple[str, str]] = set()

    def adapt(self, request: Request, model: str, profile: ModelProfile) -> Request:
        """Return the request without settings that the model refuses."""
        refused = self._refused.get(model, frozenset())
        settings = request.settings
        known = {name for name in _SAMPLING if profile.sampling == "no" and getattr(settings, name) is not None}
        for name in known:
            self._warn(model, name, "the model does not accept it")
        changes: dict[str, Any] = {}
        if dropped := (known | refused) & set(_SETTING_NAMES):
            changes["settings"] = _without(settings, dropped)
        if FORCED_TOOL in refused or (profile.forced_tools == "no" and request.tool_choice not in ("auto", "none")):
            changes["tool_choice"] = "none" if request.tool_choice == "none" else "auto"
        if refused - request.without:
            changes["without"] = request.without | refused
        return msgspec.structs.replace(request, **changes) if changes else request

    def learn(self, error: ProviderError, request: Request, model: str) -> bool:
        """Remember what this error refuses; return whether the request can be sent again without it."""
        if error.status != 400 or error.kind != "bad_request":
            return False
        refused = self._refused.get(model, frozenset())
        name = _find_refused(error, request)
        if name is None or name in refused:
            return False
        self._refused[model] = refused | {name}
        self._warn(model, name, f"the server refused it ({error})")
        return True

    def _warn(self, model: str, name: str, reason: str) -> None:
        if (model, name) not in self._warned:
            self._warned.add((model, name))
            logger.warning("model setting not sent: model=%s setting=%s reason=%s", model, name, reason)


def _without(settings: ModelSettings, names: frozenset[str] | set[str]) -> ModelSettings:
    return msgspec.structs.replace(settings, **{name: () if name == "stop" else None for name in names})


def _find_refused(error: ProviderError, request: Request) -> str | None:
    """Return the setting that an error is about, if the request has it."""
    message = str(error)
    for name, fields in _SETTING_NAMES.items():
        given = getattr(request.settings, name) not in (None, ())
        if given and (
            error.param in fields or any(f"{quote}{field}{quote}" in message for field in fields for quote in "`'\"")
        ):
            return name
    if request.tool_choice not in ("auto", "none") and (error.param == "tool_choice" or "tool_choice" in message):
        return FORCED_TOOL
    if request.output is not None and (error.code == "invalid_json_schema" or "schema" in message.lower()):
        return OUTPUT_SCHEMA
    return None
