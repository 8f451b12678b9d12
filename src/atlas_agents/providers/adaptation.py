"""Request adaptation: fits requests to the settings and inputs that a model accepts.

Settings that the catalogue lists as unsupported are not sent. If a server refuses a setting nevertheless, the setting
is dropped, the request is sent again, and the refusal is remembered for that model. Either way, there is one warning
and no failed turn.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from atlas_agents.core.errors import ProviderError
from atlas_agents.core.messages import File, Image, Message
from atlas_agents.providers.base import Dialect, Request, render_result, turn_warnings
from atlas_agents.providers.catalogue import ModelProfile
from atlas_agents.providers.schemas import fit_output
from atlas_agents.providers.settings import DEFAULT_SETTINGS, EFFORT_BUDGETS, EFFORTS, Effort, ModelSettings

logger = logging.getLogger(__name__)
REASONING = "reasoning"
"""Returned reasoning: thinking blocks, encrypted items and signatures."""
STRICT = "strict"
OUTPUT_SCHEMA = "output schema"
FORCED_TOOL = "tool_choice"
BLOCK_BINDING = "block_binding"
"""Anthropic's control of reasoning that no longer fits the conversation before it."""
STREAM_OPTIONS = "stream_options"
IMAGES = "images in tool results"
VISION = "images"
"""All images, for a model without vision."""
FILES = "files"
SYSTEM_INSIDE = "system messages inside the conversation"
LIMIT_NAME = "name of max_tokens"
"""The refused name of `max_tokens` in chat completions; the other name is sent from then on."""
TOOLS_WITH_REASONING = "reasoning with tools"
_UNSUPPORTED = ("unsupported", "not supported", "not permitted", "unrecognized", "unknown", "unexpected")
_OWN_FIELDS = ("include", "reasoning.summary")
"""Fields that an encoder sends although no setting requests them."""
_REFUSED_REASONING = (
    "invalid `signature` in",
    "bound to a different conversation",
    "`redacted_thinking` blocks in the latest assistant message",
    "thought signature",
    "invalid_encrypted_content",
    "encrypted content",
    "items are not persisted when `store` is set to false",
    "without its required following item",
    "without its required 'reasoning' item",
)
"""Messages of errors that refuse returned reasoning: from another model, or separated from the item after it."""
_SETTING_NAMES: dict[str, tuple[str, ...]] = {
    "temperature": ("temperature",),
    "top_p": ("top_p", "topP"),
    "max_tokens": (),
    "stop": ("stop", "stop_sequences", "stopSequences"),
    "seed": ("seed", "random_seed"),
    "service_tier": ("service_tier", "serviceTier"),
    "parallel_tool_calls": ("parallel_tool_calls", "disable_parallel_tool_use"),
    "effort": (
        *("reasoning_effort", "reasoning.effort", "reasoning", "output_config.effort", "thinking", "effort"),
        *("thinking_config", "thinkingConfig", "thinkingLevel", "thinkingBudget", "includeThoughts"),
        *("thinking.type", "thinking_level", "thinking_budget"),
    ),
    "cache": ("prompt_cache_key", "cache_control", "prompt_cache_options"),
}
"""Vendors' field names of each setting; an error that names one of them refuses that setting."""
_OUTPUT_FIELDS = (
    "output_config.format",
    "output_format",
    "response_format",
    "text.format",
    "response_json_schema",
    "responseJsonSchema",
    "response_schema",
    "responseSchema",
)
"""Vendors' field names of an output schema."""
_EFFORT_PHRASES = (
    *("thinking level", "thinking budget", "only works in thinking mode", "adaptive thinking is not"),
    *('"thinking.type.', "the effort parameter", "parameter reasoningeffort"),
)
"""Messages of errors that refuse an effort without naming its field."""
_NAMES_BY_PHRASE = {"block_binding:": BLOCK_BINDING, "`anthropic-beta`": BLOCK_BINDING, "cache_control": "cache"}
"""Messages of Anthropic's errors about fields that the encoder sends by itself; these errors name no field."""
_CHOICES = ("effort", "service_tier")
"""Settings with few values, of which a server may refuse only some."""
_VALUE_PHRASES = (
    *("unsupported value", "unsupported_value", "supported values", "invalid value", "invalid_value"),
    *("must be one of", "input should be"),
)
_SAMPLING = ("temperature", "top_p")
_USUAL = EFFORTS.index("high")


_NO_VISION = re.compile(
    r"(not|n't|that) support (image|vision)|image inputs? (is|are) not|required for image input|"
    r"unknown variant `image_url`|part type:? '?image|at most 0 image|not a multimodal|content must be a string",
    re.IGNORECASE,
)
"""Messages of servers whose model has no vision, unlike those about an invalid or oversized image."""
_NO_FILES = re.compile(
    r"unknown variant `file`|part type:? '?file|(not|n't) support file|unsupported content\[\]\.type|"
    r"invalid message format|content must be a string",
    re.IGNORECASE,
)
"""Messages of servers that accept no files: DeepSeek, vLLM, OpenAI, llama.cpp, Ollama and Groq."""


class ResolvedEffort(msgspec.Struct, frozen=True):
    """Effort in the form that the model accepts. Nothing is sent if no field is set.

    Only an unknown model can have both a level and a budget: its encoder sends the one that it has a field for.
    """

    level: Effort | None = None
    """A level of the profile's `efforts`, never "none"."""
    budget: int | None = None
    off: bool = False
    """Whether reasoning is turned off, in the way that the profile's `off` names."""
    changed: str = ""
    """Reason why this differs from the setting; empty if it does not, or if it is equivalent for this model."""


_UNSET_EFFORT = ResolvedEffort()


def resolve_effort(settings: ModelSettings, profile: ModelProfile) -> ResolvedEffort:
    """Resolve the setting `effort` for a model: the nearest accepted value.

    A budget is below `max_tokens` if that is set; an encoder with its own default for `max_tokens` has to add the
    budget.
    """
    effort = settings.effort
    if effort is None:
        return _UNSET_EFFORT
    if effort == "none":
        return _resolve_off(profile)
    if profile.reasoning == "never":
        return ResolvedEffort(changed="the model does not reason")
    if profile.reasoning == "unknown":
        if isinstance(effort, int):
            return ResolvedEffort(_nearest_level(effort, EFFORTS[1:]), effort)
        return ResolvedEffort(effort)
    if profile.budget and (isinstance(effort, int) or not profile.efforts):
        return _resolve_budget(effort, settings.max_tokens, profile)
    if isinstance(effort, int):
        return ResolvedEffort(_nearest_level(effort, profile.efforts))
    if effort in profile.efforts:
        return ResolvedEffort(effort)
    place = EFFORTS.index(effort)
    nearest = min(
        profile.efforts,
        key=lambda level: (abs(EFFORTS.index(level) - place), abs(EFFORTS.index(level) - _USUAL)),
    )
    return ResolvedEffort(nearest, changed=f"the model has no effort {effort!r}; {nearest!r} is sent")


def _resolve_off(profile: ModelProfile) -> ResolvedEffort:
    if profile.reasoning == "never":
        return _UNSET_EFFORT
    if profile.off != "impossible":
        return ResolvedEffort(off=True)
    if profile.efforts:
        lowest = profile.efforts[0]
        return ResolvedEffort(lowest, changed=f"the model always reasons; effort {lowest!r} is sent")
    lowest = profile.min_budget
    return ResolvedEffort(budget=lowest, changed=f"the model always reasons; a budget of {lowest} tokens is sent")


def _resolve_budget(effort: Effort | int, max_tokens: int | None, profile: ModelProfile) -> ResolvedEffort:
    """Return a budget within the limits of the model and below `max_tokens`, which includes it."""
    wanted = effort if isinstance(effort, int) else EFFORT_BUDGETS[effort]
    budget = max(min(wanted, profile.max_budget or wanted), profile.min_budget)
    if max_tokens is not None and budget >= max_tokens:
        budget = max_tokens - 1
        if budget < profile.min_budget:
            return ResolvedEffort(changed=f"max_tokens={max_tokens} leaves no tokens for reasoning")
    adjusted = isinstance(effort, int) and budget != wanted
    return ResolvedEffort(budget=budget, changed=f"a budget of {budget} tokens is sent" if adjusted else "")


def _nearest_level(budget: int, levels: tuple[Effort, ...]) -> Effort:
    return min(levels, key=lambda level: abs(EFFORT_BUDGETS[level] - budget))


def reasons(effort: ResolvedEffort, profile: ModelProfile) -> bool:
    """Return whether a model reasons in a request with this effort."""
    if profile.reasoning == "always":
        return True
    asked = effort.level is not None or effort.budget is not None
    return asked or (profile.reasoning == "default" and not effort.off)


def needs_responses(request: Request, profile: ModelProfile) -> bool:
    """Return whether OpenAI's chat completions refuse this request, so that the Responses API has to serve it."""
    if profile.chat_tools == "without_reasoning":
        return bool(request.tools) and reasons(resolve_effort(request.settings, profile), profile)
    return profile.chat_tools == "no"


def enforces_tools(request: Request, profile: ModelProfile, default: bool = True) -> bool:
    """Return whether the vendor is to enforce the schemas of tools; `default` if the settings do not say."""
    wanted = request.settings.strict_tools
    return profile.strict_tools and STRICT not in request.without and (default if wanted is None else wanted)


class Attachments:
    """Filter of images and files for a model: omitted ones become notes, with one warning for each kind."""

    def __init__(
        self, without: frozenset[str], profile: ModelProfile, warn: Callable[[str, str], None] | None = None
    ) -> None:
        inputs = profile.inputs or ("image", "pdf", "audio")
        self._images = VISION not in without and "image" in inputs
        self._files = FILES not in without and "pdf" in inputs
        self._audio = "audio" in inputs
        self._warn = warn
        self.tool_images = self._images and IMAGES not in without
        """Whether images are sent that a tool returned."""
        self.key = f"{self._images:d}{self._files:d}{self._audio:d}{self.tool_images:d}"
        """Cache key that distinguishes messages encoded with different rules."""

    def omit_image(self, image: Image) -> str:
        """Return the note that the model gets in place of an image; empty if it gets the image."""
        return "" if self._images else self._describe(VISION, "an image", image.media_type)

    def omit_result_images(self, images: Sequence[Image]) -> str:
        """Return the note that the model gets in place of images that a tool returned; empty if it gets them."""
        if not images or self.tool_images:
            return ""
        if self._warn is not None:
            self._warn(IMAGES if self._images else VISION, "the model does not accept them")
        what = "the image" if len(images) == 1 else f"the {len(images)} images"
        return f"\n[not attached: {what} in this result; the model does not accept images here]"

    def omit_file(self, file: File, media_type: str) -> str:
        """Return the note that the model gets in place of a file that is not text; empty if it gets the file."""
        accepted = self._audio if media_type.startswith("audio/") else self._files
        return "" if accepted else self._describe(FILES, f"the file {file.name}", media_type)

    def _describe(self, name: str, what: str, media_type: str) -> str:
        if self._warn is not None:
            self._warn(name, "the model does not accept them")
        return f"[not attached: {what}; {media_type} is not accepted]"


class Adaptation:
    """Refusals of the models of one provider, and the requests adapted to them."""

    def __init__(self) -> None:
        self._refused: dict[str, frozenset[str]] = {}
        self._warned: set[tuple[str, str]] = set()

    def adapt(self, request: Request, model: str, profile: ModelProfile, dialect: Dialect = "plain") -> Request:
        """Return the request without settings that the model refuses, its output schema in the server's dialect."""
        refused = self._refused.get(model, frozenset())
        is_default = request.settings is DEFAULT_SETTINGS or request.settings == DEFAULT_SETTINGS
        is_plain = is_default and request.tool_choice in ("auto", "none")
        adapted = request if is_plain and not refused else self._adapt_settings(request, model, profile, refused)
        if adapted.output is None:
            return adapted
        return fit_output(adapted, profile, dialect, refused=OUTPUT_SCHEMA in adapted.without)

    def _adapt_settings(self, request: Request, model: str, profile: ModelProfile, refused: frozenset[str]) -> Request:
        settings = request.settings
        known = {name for name in _SAMPLING if getattr(settings, name) is not None}
        if known and not _accepts(profile.sampling, settings, profile):
            for name in known:
                self.warn(model, name, "the model does not accept it")
        else:
            known = set[str]()
        changes: dict[str, Any] = {}
        if (limit := profile.output_limit) is not None and (settings.max_tokens or 0) > limit:
            self.warn(model, "max_tokens", f"the model's limit of {limit:,} is sent", "adjusted")
            settings = changes["settings"] = settings.merge(ModelSettings(max_tokens=limit))
        if dropped := (known | _find_dropped(refused, settings)) & set(_SETTING_NAMES):
            changes["settings"] = _without(settings, dropped)
            self._warn_again(model, dropped - known)
        if request.tool_choice not in ("auto", "none") and (
            FORCED_TOOL in refused or not _accepts(profile.forced_tools, settings, profile)
        ):
            changes["tool_choice"] = "auto"
            self.warn(model, FORCED_TOOL, "the model cannot be forced to call a tool")
        if refused - request.without:
            changes["without"] = request.without | refused
        if settings.effort is not None and (effort := resolve_effort(settings, profile)).changed:
            is_sent = effort.level is not None or effort.budget is not None
            self.warn(model, "effort", effort.changed, "adjusted" if is_sent else "not sent")
        return msgspec.structs.replace(request, **changes) if changes else request

    def drop(
        self, request: Request, model: str, names: Iterable[str], reason: str = "the API does not have it"
    ) -> Request:
        """Return the request without settings that the API does not have, or not in such a request."""
        dropped = {name for name in names if getattr(request.settings, name) not in (None, ())}
        for name in dropped:
            self.warn(model, name, reason)
        return msgspec.structs.replace(request, settings=_without(request.settings, dropped)) if dropped else request

    def learn(self, error: ProviderError, request: Request, model: str) -> bool:
        """Remember what an error refuses; return whether the adapted request can be sent again without it."""
        refused = self._refused.get(model, frozenset())
        if error.status is not None and (attachments := _find_refused_attachments(error, request)):
            name = attachments
        elif _refuses_system(error) and any(message.role == "system" for message in request.messages):
            name = SYSTEM_INSIDE
        elif error.status in (400, 422) and error.kind == "bad_request":
            name = _find_refused(error, request)
        else:
            return False
        if name is None or name in request.without:
            return False
        self._refused[model] = refused | {name}
        self.warn(model, name, f"the server refused it ({error})")
        return True

    def _warn_again(self, model: str, names: Iterable[str]) -> None:
        """Report earlier refused settings to the turn; they were logged at the first refusal."""
        for name in names:
            self._warned.add((model, name))
            self.warn(model, name, "the server refused it")

    def warn(self, model: str, name: str, reason: str, what: str = "not sent") -> None:
        """Report that a setting or a part of a request is not sent as given: to the turn, and to the log once."""
        warning = f"model setting {what}: model={model} setting={name} reason={reason}"
        if (found := turn_warnings.get()) is not None:
            found[name] = warning
        if (model, name) not in self._warned:
            self._warned.add((model, name))
            logger.warning("%s", warning)


def _find_dropped(refused: frozenset[str], settings: ModelSettings) -> set[str]:
    """Return the refused settings, including those whose present value was refused."""
    return (
        {*refused, *(name for name in _CHOICES if f"{name}={getattr(settings, name)}" in refused)} if refused else set()
    )


def _describe_refusal(name: str, error: ProviderError, settings: ModelSettings) -> str:
    """Return a setting's name, with its value if another value may be accepted."""
    value = getattr(settings, name)
    text = f"{error.code} {error}".lower()
    only_value = name in _CHOICES and isinstance(value, str) and any(phrase in text for phrase in _VALUE_PHRASES)
    return f"{name}={value}" if only_value else name


def _accepts(rule: Literal["yes", "no", "without_reasoning"], settings: ModelSettings, profile: ModelProfile) -> bool:
    """Return whether a model accepts something that it may accept only while it does not reason."""
    return rule == "yes" or (rule == "without_reasoning" and not reasons(resolve_effort(settings, profile), profile))


def _without(settings: ModelSettings, names: frozenset[str] | set[str]) -> ModelSettings:
    return msgspec.structs.replace(settings, **{name: () if name == "stop" else None for name in names})


def _find_refused_attachments(error: ProviderError, request: Request) -> str:
    """Return which attachments of a request an error refuses; empty if it is about something else."""
    message = str(error)
    if error.status not in (400, 404, 415, 422, 500, 501):
        return ""
    given = {type(part) for each in request.messages for part in each.parts}
    has_tool_images = any(_has_images(each) for each in request.messages)
    if (Image in given or has_tool_images) and VISION not in request.without and _NO_VISION.search(message):
        return VISION
    if File in given and FILES not in request.without and _NO_FILES.search(message):
        return FILES
    return IMAGES if has_tool_images and "image" in message.lower() else ""


def _refuses_system(error: ProviderError) -> bool:
    """Return whether a chat template allows a system message only at the beginning."""
    message = str(error).lower()
    return error.status in (400, 500) and "system message" in message and ("beginning" in message or "first" in message)


def _has_images(message: Message) -> bool:
    return any(render_result(result)[1] for result in message.tool_results)


def refuses_reasoning(error: ProviderError) -> bool:
    """Return whether an error refuses the reasoning that the request returned to the model."""
    if error.status not in (400, 404, None):  # None: in a stream
        return False
    message = f"{error.code} {error}".lower()
    return any(phrase in message for phrase in _REFUSED_REASONING)


def _is_about_output(error: ProviderError, message: str) -> bool:
    """Return whether an error is about the output schema, and not about that of a tool."""
    if any(field in error.param or field in message for field in _OUTPUT_FIELDS):
        return True
    is_about_tool = error.param.startswith("tools") or any(word in message for word in ("tools.", "function", "tool "))
    return (error.code == "invalid_json_schema" or "schema" in message.lower()) and not is_about_tool


def _names(error: ProviderError, fields: tuple[str, ...]) -> bool:
    """Return whether an error is about one of these fields."""
    message = str(error)
    param = error.param.removeprefix("generation_config.")  # of Gemini
    if param in fields or any(f"{quote}{field}{quote}" in message for field in fields for quote in "`'\""):
        return True
    if "thinking" in fields and "thinking is not supported" in message.lower():
        return True
    named = message.removeprefix(f"HTTP {error.status}: ").partition(":")[0]
    return named in fields and any(word in message.lower() for word in (*_UNSUPPORTED, "input should be"))


def _find_own_field(error: ProviderError, message: str) -> str | None:
    """Return the field that an error is about, if an encoder sends it although no setting requests it."""
    if error.param in _OWN_FIELDS:
        return error.param
    if _names(error, (STREAM_OPTIONS,)):
        return STREAM_OPTIONS
    return next((name for phrase, name in _NAMES_BY_PHRASE.items() if phrase in message), None)


def _find_refused(error: ProviderError, request: Request) -> str | None:
    """Return the setting that an error is about, if the request has it."""
    message = str(error)
    if request.tools and _names(error, ("reasoning_effort",)) and "tool" in message.lower():
        return TOOLS_WITH_REASONING
    if request.settings.max_tokens is not None and _names(error, ("max_tokens", "max_completion_tokens")):
        unsupported = any(word in f"{error.code} {message}".lower() for word in _UNSUPPORTED)
        return LIMIT_NAME if unsupported else None
    for name, fields in _SETTING_NAMES.items():
        given = getattr(request.settings, name) not in (None, ())
        if (given or (name == "cache" and request.settings.cache is None)) and _names(error, fields):
            return _describe_refusal(name, error, request.settings)
    if request.settings.effort is not None and any(phrase in message.lower() for phrase in _EFFORT_PHRASES):
        return "effort"
    if (own := _find_own_field(error, message)) is not None:
        return own
    if request.tool_choice not in ("auto", "none") and (error.param == "tool_choice" or "tool_choice" in message):
        return FORCED_TOOL
    if request.output is not None and _is_about_output(error, message):
        return OUTPUT_SCHEMA
    if request.tools and STRICT not in request.without and _is_about_strict(error, message.lower()):
        return STRICT
    return None


def _is_about_strict(error: ProviderError, message: str) -> bool:
    """Return whether an error may be about tools with strict schemas."""
    if re.search(r"\bstrict\b", f"{error.param} {message}") or error.code == "invalid_function_parameters":
        return True
    return "schema" in message and (error.param.startswith("tools") or "too complex" in message)
