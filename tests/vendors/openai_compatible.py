"""Strict doubles of OpenRouter, Mistral, Groq, vLLM, xAI and Gemini's OpenAI-compatible endpoint.

Each has what differs from OpenAI.
"""

import hashlib
import itertools
import json
import re
from typing import Any, ClassVar

from vendors.common import Answer, Refusal, VendorRequest, content_parts, refuse, require, split
from vendors.openai_chat import OpenAIChatDouble
from vendors.openai_responses import OpenAIResponsesDouble, ResponsesModel

_ASSISTANT = OpenAIChatDouble.message_fields["assistant"]


class OpenRouterDouble(OpenAIChatDouble):
    """OpenRouter: `reasoning_details` come back unmodified and in order.

    Source: openrouter.ai/docs/use-cases/reasoning-tokens. `Answer.thinking` is streamed as one detail per piece,
    each in several deltas of the same index, with an encrypted one at the end.
    """

    fields: ClassVar[set[str]] = OpenAIChatDouble.fields | {
        *("reasoning", "provider", "models", "plugins", "usage", "cache_control"),
    }
    message_fields: ClassVar[dict[str, set[str]]] = {
        **OpenAIChatDouble.message_fields,
        "assistant": {*_ASSISTANT, "reasoning", "reasoning_details"},
    }

    def __init__(self, *answers: Any, then: Any = None) -> None:
        super().__init__(*answers, then=then)
        self.details: dict[str, list[dict[str, Any]]] = {}
        """The complete details of each answer, by the id of its first call."""

    @property
    def address(self) -> str:
        return f"{self.url}/api/v1"

    def check_model(self, body: dict[str, Any]) -> None:
        self.ignored |= {"max_completion_tokens"} & set(body)
        reasoning = body.get("reasoning", {})
        both = "effort" in reasoning and "max_tokens" in reasoning
        require(not both, 'Only one of "reasoning.effort" and "reasoning.max_tokens" can be specified', code="400")

    def check_assistant(self, message: dict[str, Any], where: str) -> list[str]:
        ids = super().check_assistant(message, where)
        expected = self.details.get(ids[0]) if ids else None
        if expected is not None and message.get("reasoning_details") != expected:
            refuse("thinking blocks in the latest assistant message cannot be modified", code="400")
        return ids

    def count_usage(self, body: dict[str, Any], answer: Answer) -> dict[str, Any]:
        """Claude's cache has to be asked for: openrouter.ai/docs/features/prompt-caching; microsoft/vscode#312939."""
        usage = super().count_usage(body, answer)
        if body["model"].startswith("anthropic/") and '"cache_control"' not in json.dumps(body):
            usage["prompt_tokens_details"]["cached_tokens"] = 0
        return usage

    def reasoning_deltas(self, answer: Answer) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for index, thought in enumerate(answer.thinking):
            detail = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": index}
            deltas += [
                {"content": "", "reasoning": piece, "reasoning_details": [{**detail, "text": piece}]}
                for piece in split(thought)
            ]
            deltas.append({"reasoning_details": [{**detail, "signature": f"signed {thought}"}]})
        if answer.thinking:
            deltas.append({"reasoning_details": [_encrypted(len(answer.thinking))]})
        return deltas

    def call_extras(self, id: str, index: int, answer: Answer) -> dict[str, Any]:
        if index == 0 and answer.thinking:
            texts: list[dict[str, Any]] = [
                {
                    "type": "reasoning.text",
                    "format": "anthropic-claude-v1",
                    "index": place,
                    "text": thought,
                    "signature": f"signed {thought}",
                }
                for place, thought in enumerate(answer.thinking)
            ]
            self.details[id] = [*texts, _encrypted(len(texts))]
        return {}


def _encrypted(index: int) -> dict[str, Any]:
    return {"type": "reasoning.encrypted", "data": "8J+knw==", "id": "rs_1", "format": "openai-v1", "index": index}


class GeminiChatDouble(OpenAIChatDouble):
    """Gemini's OpenAI-compatible endpoint. Source: ai.google.dev/gemini-api/docs/{openai,thought-signatures}."""

    fields: ClassVar[set[str]] = OpenAIChatDouble.fields | {"extra_body"}
    call_fields: ClassVar[set[str]] = {*OpenAIChatDouble.call_fields, "extra_content"}
    namespace = "google"
    """On Vertex it is "vertex": earendil-works/pi#6733."""

    def __init__(self, *answers: Any, then: Any = None) -> None:
        super().__init__(*answers, then=then)
        self._signed: dict[str, str] = {}

    @property
    def address(self) -> str:
        return f"{self.url}/v1beta/openai"

    def check_model(self, body: dict[str, Any]) -> None:
        require(body["model"].startswith("gemini-"), "model not found", status=404, code="404")
        for name in ("prompt_cache_key", "store"):
            require(name not in body, f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.')
        both = "reasoning_effort" in body and "thinking_config" in body.get("extra_body", {}).get("google", {})
        require(not both, "reasoning_effort and thinking_config are mutually exclusive")

    def check_messages(self, body: dict[str, Any]) -> None:
        super().check_messages(body)
        messages = body["messages"]
        last_user = max(index for index, message in enumerate(messages) if message["role"] == "user")
        for message in messages[last_user:]:
            for index, call in enumerate(message.get("tool_calls", ())):
                self._check_signature(call, index)

    def _check_signature(self, call: dict[str, Any], index: int) -> None:
        """Gemini 3: the first call of a group carries the signature that it came with."""
        found = call.get("extra_content", {}).get(self.namespace, {}).get("thought_signature")
        expected = self._signed.get(call["id"])
        if expected is not None:
            require(found == expected, "Thought signature is not valid", code="400")
        elif index == 0 and found != "skip_thought_signature_validator":
            refuse(f"Function call `{call['function']['name']}` is missing a `thought_signature`", code="400")

    def call_extras(self, id: str, index: int, answer: Answer) -> dict[str, Any]:
        if index:
            return {}
        self._signed[id] = hashlib.sha256(id.encode()).hexdigest()
        return {"extra_content": {self.namespace: {"thought_signature": self._signed[id]}}}


class VertexChatDouble(GeminiChatDouble):
    namespace = "vertex"


class MistralDouble(OpenAIChatDouble):
    """Mistral: unknown fields are refused with 422, call ids have nine characters, and no user follows a tool.

    `Answer.thinking` is streamed as `thinking` chunks of the content. Source: docs.mistral.ai/api.
    """

    fields: ClassVar[set[str]] = {
        *("model", "messages", "stream", "temperature", "top_p", "max_tokens", "stop", "random_seed", "metadata", "n"),
        *("response_format", "tools", "tool_choice", "parallel_tool_calls", "presence_penalty", "frequency_penalty"),
        *("prediction", "prompt_mode", "safe_prompt", "reasoning_effort", "prompt_cache_key"),
    }
    message_fields: ClassVar[dict[str, set[str]]] = {
        **OpenAIChatDouble.message_fields,
        "assistant": {"role", "content", "tool_calls", "prefix"},
        "tool": {"role", "content", "tool_call_id", "name"},
    }
    usage_by_default: ClassVar[bool] = True

    def check_fields(self, body: dict[str, Any]) -> None:
        for name in body:
            if name not in self.fields:  # openai-agents-python#442, editor-code-assistant/eca#231
                detail = {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}
                refuse(json.dumps({"detail": [detail]}), status=422)

    def check_model(self, body: dict[str, Any]) -> None:
        require(re.match("m(i|a)(ni|gi)?stral|devstral|codestral", body["model"]), "Invalid model", code="1500")

    def check_messages(self, body: dict[str, Any]) -> None:
        super().check_messages(body)
        roles = [message["role"] for message in body["messages"]]
        for before, after in itertools.pairwise(roles):
            if (before, after) == ("tool", "user"):  # LibreChat-AI/agents#344, hermes-agent#20154
                refuse("Unexpected role 'user' after role 'tool'", type="invalid_request_message_order", code="3230")

    def check_assistant(self, message: dict[str, Any], where: str) -> list[str]:
        ids = super().check_assistant(message, where)
        for id in ids:  # nearai/ironclaw#1241
            short = re.fullmatch("[A-Za-z0-9]{9}", id)
            require(short, f"Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9.", code="3280")
        return ids

    def check_content(self, message: dict[str, Any], where: str) -> None:
        """docs.mistral.ai/capabilities/document_ai: documents are given as an address or a data URL."""
        for part in content_parts(message):
            kinds = ("text", "image_url", "document_url", "input_audio")
            require(part["type"] in kinds, f"{where}: Input tag '{part['type']}' does not match", status=422)
            if part["type"] == "document_url":
                has_address = part["document_url"].startswith(("https://", "data:application/pdf;base64,"))
                require(has_address, f"{where}: invalid document_url", status=422)

    def encode_error(self, refusal: Refusal) -> dict[str, Any]:
        type = refusal.type or "invalid_request_error"
        return {"object": "error", "message": refusal.message, "type": type, "param": None, "code": refusal.code}

    def make_id(self) -> str:
        return f"m{super().make_id()[-8:]}"

    def reasoning_deltas(self, answer: Answer) -> list[dict[str, Any]]:
        return [
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": piece}]}]}
            for thought in answer.thinking
            for piece in split(thought)
        ]


class GroqDouble(OpenAIChatDouble):
    """Groq: reasoning comes as `reasoning`, and a message field that it does not know is refused."""

    message_fields: ClassVar[dict[str, set[str]]] = {
        **OpenAIChatDouble.message_fields,
        "assistant": {*_ASSISTANT, "reasoning"},  # console.groq.com/docs/reasoning; janhq/jan#8136
    }

    def check_model(self, body: dict[str, Any]) -> None:
        efforts = ("low", "medium", "high") if "gpt-oss" in body["model"] else ("none", "default")
        effort = body.get("reasoning_effort")
        require(effort is None or effort in efforts, "`reasoning_effort` must be one of them", param="reasoning_effort")
        for name in ("logprobs", "logit_bias", "top_logprobs"):
            require(name not in body, f"property '{name}' is unsupported", param=name)
        self._has_vision = "gpt-oss" not in body["model"]

    _has_vision = True

    def check_content(self, message: dict[str, Any], where: str) -> None:
        """console.groq.com/docs/vision: images for models with vision, and no documents; vercel/ai#2837."""
        kinds = ("text", "image_url") if self._has_vision else ("text",)
        require(all(part["type"] in kinds for part in content_parts(message)), f"{where}.content must be a string")

    def reasoning_deltas(self, answer: Answer) -> list[dict[str, Any]]:
        return [{"reasoning": piece} for thought in answer.thinking for piece in split(thought)]


class VLLMDouble(OpenAIChatDouble):
    """vLLM: reasoning comes as `reasoning` and is taken back under either name; one system message leads.

    Source: vllm-project/vllm#50624; templates such as Qwen's.
    """

    message_fields: ClassVar[dict[str, set[str]]] = {
        **OpenAIChatDouble.message_fields,
        "assistant": {*_ASSISTANT, "reasoning", "reasoning_content"},
    }

    def check_model(self, body: dict[str, Any]) -> None:
        self.ignored |= {"prompt_cache_key"} & set(body)
        self._has_vision = "VL" in body["model"]

    _has_vision = False

    def check_content(self, message: dict[str, Any], where: str) -> None:
        """vllm-project/vllm#57774: no documents; vllm/multimodal/processing.py: images for models with vision."""
        for part in content_parts(message):
            known = part["type"] in ("text", "image_url")
            require(known, f"Unsupported chat content part type: '{part['type']}'.", type="BadRequestError")
            if part["type"] == "image_url":
                problem = "At most 0 image(s) may be provided in one prompt."
                require(self._has_vision, problem, type="BadRequestError")

    def check_messages(self, body: dict[str, Any]) -> None:
        super().check_messages(body)
        leading = all(message["role"] != "system" for message in body["messages"][1:])
        require(leading, "System message must be at the beginning.", type="BadRequestError")

    def reasoning_deltas(self, answer: Answer) -> list[dict[str, Any]]:
        return [{"reasoning": piece} for thought in answer.thinking for piece in split(thought)]


class XAIDouble(OpenAIResponsesDouble):
    """xAI's Responses API; its chat completions are deprecated and return no reasoning.

    Source: docs.x.ai/developers/model-capabilities/text/{best-practices,comparison}; opencode#28561 (files); vercel/ai
    releases of @ai-sdk/xai (effort).
    """

    models: ClassVar[tuple[ResponsesModel, ...]] = (
        ResponsesModel(r"grok-4\.7", ("low", "medium", "high", "xhigh"), "high"),
        ResponsesModel(r"grok-4\.[56]", ("low", "medium", "high"), "high"),
        ResponsesModel(r"grok-4\.3", ("none", "low", "medium", "high"), "low"),
        ResponsesModel(r"grok-4\.20|grok-build", (), "high"),
    )

    def check(self, request: VendorRequest) -> None:
        super().check(request)
        for item in request.body["input"]:
            images = all(part["type"] != "input_file" for part in content_parts({"content": item.get("output")}))
            require(images, "Invalid request content: only text and images are accepted in tool outputs.")

    def check_effort(self, body: dict[str, Any], model: ResponsesModel) -> str:
        reasoning: dict[str, Any] = body.get("reasoning") or {}
        if "effort" in reasoning and not model.efforts:  # JetBrains/junie#39
            refuse(f"Model {body['model']} does not support parameter reasoningEffort.")
        return super().check_effort(body, model) if model.efforts else model.default

    def encode_error(self, refusal: Refusal) -> dict[str, Any]:
        """hermes-agent#30310."""
        return {"code": "Client specified an invalid argument", "error": refusal.message}


def tool_use_failed() -> Refusal:
    """Groq's error for a call that its model wrote in a wrong format. Source: console.groq.com/docs/tool-use."""
    return Refusal("Failed to call a function. Please adjust your prompt.", code="tool_use_failed")
