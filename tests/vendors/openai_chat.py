"""Strict double of OpenAI's chat completions, and of vendors that speak the same format with rules of their own.

Sources: [O] types of the `openai` SDK; [OD] developers.openai.com/api/docs; `owner/repo#n` GitHub issues.

Differences from the base: `Answer.thinking` is streamed in the vendor's own reasoning fields, and the double expects it
back where the vendor does. `Answer.extra["delta"]` adds fields to the last delta.
"""

import itertools
import json
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from openai.types import chat, shared
from openai.types.chat import completion_create_params

from vendors.common import (
    KEY,
    Answer,
    Refusal,
    VendorDouble,
    VendorRequest,
    common_prefix,
    count_tokens,
    refuse,
    require,
    split,
    sse,
)

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_DATA_URL = re.compile(r"data:([\w./+-]+);base64,(.+)", re.DOTALL)
_CACHE_FROM = 1024
_ids = itertools.count(1)
_MESSAGE_FIELDS: dict[str, set[str]] = {
    "system": set(chat.ChatCompletionSystemMessageParam.__annotations__),
    "developer": set(chat.ChatCompletionDeveloperMessageParam.__annotations__),
    "user": set(chat.ChatCompletionUserMessageParam.__annotations__),
    "assistant": set(chat.ChatCompletionAssistantMessageParam.__annotations__),
    "tool": set(chat.ChatCompletionToolMessageParam.__annotations__),
}


@dataclass(frozen=True)
class ChatModel:
    """A model's rules on chat completions."""

    pattern: str
    efforts: tuple[str, ...] = ()
    """Accepted values of `reasoning_effort`; none if the model does not reason."""
    default: str = "none"
    """The effort of a request that names none."""
    tools: Literal["yes", "without reasoning", "no"] = "yes"
    responses_only: bool = False
    stop: bool = True
    audio: bool = False


_HIGH = ("low", "medium", "high")
_MODELS = (
    # [O] ResponsesModel minus ChatModel
    ChatModel("o1-pro|o3-pro|gpt-5-pro|gpt-5.5-pro|gpt-5-codex|gpt-5.1-codex-max|.*deep-research", responses_only=True),
    # 9router#4031: refuses "none", so that there are no tools on chat completions at all
    ChatModel("gpt-6-astra|gpt-6.1-sol", (*_HIGH, "xhigh"), "medium", "no"),
    # LibreChat#14231, openai-openapi#541: tools only at effort "none"; "max" only on Responses
    ChatModel("gpt-6|gpt-5.6", ("none", *_HIGH, "xhigh"), "medium", "without reasoning"),
    ChatModel("gpt-5.5", ("none", "minimal", *_HIGH, "xhigh"), "medium", "without reasoning"),
    ChatModel("gpt-5.4", ("none", "minimal", *_HIGH, "xhigh"), "none", "without reasoning"),
    ChatModel("gpt-5.[23]", ("none", "minimal", *_HIGH, "xhigh"), "none"),
    ChatModel("gpt-5.1", ("none", "minimal", *_HIGH), "none"),
    ChatModel("gpt-5", ("minimal", *_HIGH), "medium"),
    ChatModel("o3|o4-mini", _HIGH, "medium", stop=False),  # [O] CompletionCreateParams.stop
    ChatModel("o1", _HIGH, "medium"),
    ChatModel("gpt-audio|gpt-4o(-mini)?-audio", audio=True),
    ChatModel("gpt-4|chatgpt-4o"),
)


class OpenAIChatDouble(VendorDouble):
    """OpenAI's chat completions."""

    fields: ClassVar[set[str]] = {*completion_create_params.CompletionCreateParamsBase.__annotations__, "stream"}
    message_fields: ClassVar[dict[str, set[str]]] = _MESSAGE_FIELDS
    call_fields: ClassVar[set[str]] = {"id", "type", "function"}
    usage_by_default: ClassVar[bool] = False

    def __init__(self, *answers: Any, then: Any = None) -> None:
        super().__init__(*answers, then=then)
        self.ignored: set[str] = set()
        """Fields that the vendor accepts and ignores without a word; a client should not rely on them."""
        self._prompts: list[str] = []

    @property
    def address(self) -> str:
        return f"{self.url}/v1"

    def check(self, request: VendorRequest) -> None:
        require(request.path.endswith("/chat/completions"), "Invalid URL", status=404, type="invalid_request_error")
        self.check_key(request)
        body = request.body
        self.check_fields(body)
        self.check_model(body)
        self.check_messages(body)
        self.check_tools(body)
        self.check_format(body)
        self._prompts.append(_prompt(body))

    def check_key(self, request: VendorRequest) -> None:
        authorized = request.headers.get("authorization") == f"Bearer {KEY}"
        require(authorized, "Incorrect API key provided.", status=401, code="invalid_api_key")

    def check_fields(self, body: dict[str, Any]) -> None:
        for name in body:
            require(name in self.fields, f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name)
        if "stream_options" in body:
            require(body.get("stream"), "The 'stream_options' parameter is only allowed when 'stream' is enabled.")
        if (tier := body.get("service_tier")) is not None:
            known = ("auto", "default", "flex", "scale", "priority", "fast")  # [O]
            require(tier in known, f"Invalid value: '{tier}'.", code="invalid_value", param="service_tier")
        if (key := body.get("prompt_cache_key")) is not None:
            require(len(key) <= 64, "string too long", code="string_above_max_length", param="prompt_cache_key")

    def check_model(self, body: dict[str, Any]) -> None:
        name = body["model"]
        model = next((each for each in _MODELS if re.match(each.pattern, name)), None)
        if model is None:
            refuse(f"The model `{name}` does not exist or you do not have access to it.", status=404, **_NO_MODEL)
        if model.responses_only:
            refuse("This model is only supported in v1/responses.", status=404, **_NO_MODEL)
        effort = _check_effort(body, model)
        reasoning = bool(model.efforts) and effort != "none"
        if model.efforts:  # opencode#37964: on any host
            _refuse_parameter(body, "max_tokens", "Use 'max_completion_tokens' instead.")
        if reasoning:  # khoj#1377
            for field in ("top_p", "presence_penalty", "frequency_penalty", "logprobs", "logit_bias"):
                _refuse_parameter(body, field, "It is not supported with this model.")
            if body.get("temperature", 1) != 1:
                refuse(
                    "Unsupported value: 'temperature' does not support this value with this model.",
                    code="unsupported_value",
                    param="temperature",
                )
        if not model.stop:
            _refuse_parameter(body, "stop", "It is not supported with this model.")
        if body.get("tools") and (model.tools == "no" or (model.tools == "without reasoning" and reasoning)):
            refuse(
                f"Function tools with reasoning_effort are not supported for {name} in /v1/chat/completions. "
                "Please use /v1/responses or set reasoning_effort to 'none'.",
                param="reasoning_effort",
            )
        self._audio = model.audio

    _audio = False

    def check_messages(self, body: dict[str, Any]) -> None:
        expected: list[str] = []
        for index, message in enumerate(body["messages"]):
            where = f"messages[{index}]"
            role = message.get("role")
            require(role in self.message_fields, f"Invalid value: '{role}'.", param=f"{where}.role")
            for field in message:
                known = field in self.message_fields[role]
                require(known, f"Unknown parameter: '{where}.{field}'.", code="unknown_parameter", param=where)
            if role == "tool":
                _check_tool_message(message, where, expected)
                continue
            # dify-official-plugins#2352
            require(
                not expected,
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(expected)}",
                param="messages",
            )
            if role == "assistant":
                expected = self.check_assistant(message, where)
            else:
                self.check_content(message, where)
        require(not expected, "An assistant message with 'tool_calls' must be followed by tool messages.")

    def check_assistant(self, message: dict[str, Any], where: str) -> list[str]:
        """Check an assistant message and return the ids of its calls."""
        calls: list[Any] = message.get("tool_calls") or []
        require("tool_calls" not in message or calls, f"[] is too short - '{where}.tool_calls'")
        require(message.get("content") or calls or message.get("refusal"), f"{where}.content: expected a string")
        for number, call in enumerate(calls):
            place = f"{where}.tool_calls[{number}]"
            for field in call:
                require(field in self.call_fields, f"Unknown parameter: '{place}.{field}'.", code="unknown_parameter")
            # agno#5382, vercel/ai#5171
            short = len(call["id"]) <= 40
            require(short, f"Invalid '{place}.id': string too long.", code="string_above_max_length", param=place)
            require(_NAME.fullmatch(call["function"]["name"]), f"Invalid '{place}.function.name'")
            arguments = call["function"]["arguments"]
            require(isinstance(arguments, str), f"Invalid type for '{place}.function.arguments': expected a string")
            require(isinstance(json.loads(arguments), dict), f"Invalid '{place}.function.arguments'")
        ids = [call["id"] for call in calls]
        require(len(set(ids)) == len(ids), f"Duplicate value for '{where}.tool_calls' id")
        return ids

    def check_content(self, message: dict[str, Any], where: str) -> None:
        """Check the content of a system or user message. [O] ChatCompletionContentPartParam."""
        content = message.get("content")
        require(content is not None, f"Missing '{where}.content'")
        parts = cast(list[Any], content) if isinstance(content, list) else []
        for number, part in enumerate(parts):
            place = f"{where}.content[{number}]"
            match part:
                case {"type": "text", "text": str()}:
                    pass
                case {"type": "image_url", "image_url": {"url": str(url)}} if message["role"] == "user":
                    _check_image(url, place)
                case {"type": "file", "file": {"filename": str(), "file_data": str(data)}}:
                    found = _DATA_URL.fullmatch(data)
                    require(found, f"Invalid '{place}.file.file_data': expected base64 data", param=place)
                case {"type": "file", "file": {"file_id": str()}}:
                    pass
                case {"type": "input_audio", "input_audio": {"data": str(data), "format": "wav" | "mp3"}} if data:
                    require(self._audio, "This model does not support audio input.", param=place)
                case _:
                    refuse(f"Invalid value: '{place}' is not a supported content part.", param=place)

    def check_tools(self, body: dict[str, Any]) -> None:
        if "parallel_tool_calls" in body:  # openai/swarm#30
            allowed = "tools" in body
            require(allowed, "'parallel_tool_calls' is only allowed when 'tools' are specified.", param="tools")
        if "tools" not in body:
            return
        require(body["tools"], "[] is too short - 'tools'", param="tools")
        names: list[str] = []
        for number, tool in enumerate(body["tools"]):
            place = f"tools[{number}].function"
            function = tool["function"]
            names.append(function["name"])
            require(tool["type"] == "function", f"Invalid '{place}'")
            for field in function:
                known = field in shared.FunctionDefinition.model_fields
                require(known, f"Unknown parameter: '{place}.{field}'.", code="unknown_parameter", param=place)
            require(_NAME.fullmatch(function["name"]), f"Invalid '{place}.name'", param=f"{place}.name")
            require(
                function["parameters"].get("type") == "object", "schema must be a JSON Schema of 'type: \"object\"'"
            )
            if function.get("strict"):
                check_strict_schema(function["parameters"], f"function '{function['name']}'")
        match body.get("tool_choice"):
            case None | "none" | "auto" | "required":
                pass
            case {"type": "function", "function": {"name": name}}:
                require(name in names, f"Tool choice '{name}' not found in 'tools' parameter.", param="tool_choice")
            case other:
                refuse(f"Invalid value: {other!r}", param="tool_choice")

    def check_format(self, body: dict[str, Any]) -> None:
        match body.get("response_format"):
            case None | {"type": "text"}:
                pass
            case {"type": "json_object"}:
                mentioned = "json" in json.dumps(body["messages"]).lower()
                require(mentioned, "'messages' must contain the word 'json' in some form.", param="messages")
            case {"type": "json_schema", "json_schema": {"name": str(name), "schema": schema} as spec}:
                require(_NAME.fullmatch(name), "Invalid 'response_format.json_schema.name'", param="response_format")
                if spec.get("strict"):
                    check_strict_schema(schema, f"response_format '{name}'")
            case other:
                refuse(f"Invalid value: {other!r}", param="response_format")

    @staticmethod
    def find_schema(body: dict[str, Any]) -> dict[str, Any] | None:
        return body.get("response_format", {}).get("json_schema", {}).get("schema")

    @staticmethod
    def find_system(body: dict[str, Any]) -> str:
        return "".join(message["content"] for message in body["messages"] if message["role"] == "system")

    def encode_error(self, refusal: Refusal) -> dict[str, Any]:
        type = refusal.type or ("server_error" if refusal.status >= 500 else "invalid_request_error")
        return {
            "error": {"message": refusal.message, "type": type, "param": refusal.param, "code": refusal.code},
        }

    def encode_body(self, request: VendorRequest, answer: Answer) -> dict[str, Any] | None:
        if request.body.get("stream"):
            return None
        calls = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for id, name, arguments in self._name_calls(answer)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": _finish(answer), "logprobs": None}
        return {
            **_envelope(request, "chat.completion"),
            "choices": [choice],
            "usage": self.count_usage(request.body, answer),
        }

    def encode_stream(self, request: VendorRequest, answer: Answer) -> list[bytes]:
        body = request.body
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += self.reasoning_deltas(answer)
        deltas += [{"content": piece} for piece in split(answer.text) if piece]
        for index, (id, name, arguments) in enumerate(self._name_calls(answer)):
            first = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
            deltas.append({"tool_calls": [{**first, **self.call_extras(id, index, answer)}]})
            pieces = split(json.dumps(arguments))
            deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces]
        if extra := answer.extra.get("delta"):
            deltas.append(extra)
        envelope = _envelope(request, "chat.completion.chunk")
        chunks = [{**envelope, "choices": [_choice(delta)]} for delta in deltas]
        chunks.append({**envelope, "choices": [_choice({}, _finish(answer))]})
        if body.get("stream_options", {}).get("include_usage") or self.usage_by_default:
            usage = answer.usage or self.count_usage(body, answer)
            if self.usage_by_default:
                chunks[-1]["usage"] = usage
            else:
                chunks.append({**envelope, "choices": [], "usage": usage})
        return [*map(sse, chunks), sse("[DONE]")]

    def reasoning_deltas(self, answer: Answer) -> list[dict[str, Any]]:
        """Reasoning before the text; OpenAI shows none of it."""
        return []

    def call_extras(self, id: str, index: int, answer: Answer) -> dict[str, Any]:
        """Further fields of a call."""
        return {}

    def make_id(self) -> str:
        return f"call_{next(_ids):024d}"

    def _name_calls(self, answer: Answer) -> list[tuple[str, str, dict[str, Any]]]:
        return [(self.make_id(), name, arguments) for name, arguments in answer.calls]

    def count_usage(self, body: dict[str, Any], answer: Answer) -> dict[str, Any]:
        """Count tokens. The longest beginning that an earlier request had is cached, from 1,024 tokens. [OD]"""
        prompt = self._prompts[-1]
        common = max((common_prefix(prompt, earlier) for earlier in self._prompts[:-1]), default=0) // 4
        input, reasoning = len(prompt) // 4, count_tokens("".join(answer.thinking)) if answer.thinking else 0
        output = count_tokens([answer.text, answer.calls]) + reasoning
        return {
            "prompt_tokens": input,
            "completion_tokens": output,
            "total_tokens": input + output,
            "prompt_tokens_details": {"cached_tokens": common if common >= _CACHE_FROM else 0, "cache_write_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }


_NO_MODEL: dict[str, Any] = {"code": "model_not_found", "param": "model"}


def _check_effort(body: dict[str, Any], model: ChatModel) -> str:
    effort = body.get("reasoning_effort")
    if effort is None:
        return model.default
    if not model.efforts:
        refuse(
            "Unrecognized request argument supplied: 'reasoning_effort'",
            code="unsupported_parameter",
            param="reasoning_effort",
        )
    if effort not in model.efforts:
        supported = ", ".join(repr(each) for each in model.efforts)
        refuse(
            f"Unsupported value: 'reasoning_effort' does not support '{effort}' with this model. "
            f"Supported values are: {supported}.",
            code="unsupported_value",
            param="reasoning_effort",
        )
    return effort


def _refuse_parameter(body: dict[str, Any], name: str, advice: str) -> None:
    require(name not in body, f"Unsupported parameter: '{name}'. {advice}", code="unsupported_parameter", param=name)


def _check_tool_message(message: dict[str, Any], where: str, expected: list[str]) -> None:
    id = message.get("tool_call_id")
    if id not in expected:
        refuse("messages with role 'tool' must be a response to a preceding message with 'tool_calls'.", param=where)
    expected.remove(id)
    content = message["content"]
    # [O] ChatCompletionToolMessageParam: text only; OpenHands#7700
    texts = isinstance(content, str) or all(part.get("type") == "text" for part in content)
    require(texts, f"Invalid '{where}.content': image URLs are only allowed for messages with role 'user'", param=where)


def _check_image(url: str, place: str) -> None:
    found = _DATA_URL.fullmatch(url)
    supported = found and found[1] in ("image/png", "image/jpeg", "image/gif", "image/webp")
    require(supported or url.startswith(("https://", "http://")), f"Invalid image in '{place}'", param=place)


def _envelope(request: VendorRequest, object: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": object, "created": 1, "model": request.body["model"]}


def _choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _finish(answer: Answer) -> str:
    return answer.stop or ("tool_calls" if answer.calls else "stop")


def _prompt(body: dict[str, Any]) -> str:
    """The part of a request that is read as the prompt, in the order in which it is cached."""
    return json.dumps([body.get("tools"), body.get("response_format"), body["messages"]], ensure_ascii=False)


_REFUSED_KEYWORDS = {
    "oneOf",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "prefixItems",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "then",
    "else",
    "not",
    "default",
    "discriminator",
}
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_MAX_PROPERTIES = 5000
_MAX_LEVELS = 10


def check_strict_schema(schema: dict[str, Any], where: str) -> None:
    """Refuse a schema that structured outputs do not support. [OD] guides/structured-outputs."""
    _StrictSchema(schema, where).check_root()


class _StrictSchema:
    def __init__(self, root: dict[str, Any], where: str) -> None:
        self._root, self._where, self._properties = root, where, 0

    def check_root(self) -> None:
        self._require(self._root.get("type") == "object", "schema must be a JSON Schema of 'type: \"object\"'")
        self._require("anyOf" not in self._root, "'anyOf' is not permitted at the root")
        self._check(self._root, (), 1)
        for key in ("$defs", "definitions"):
            for name, each in self._root.get(key, {}).items():
                self._check(each, (key, name), 1)
        self._require(self._properties <= _MAX_PROPERTIES, "too many properties")

    def _check(self, schema: Any, path: tuple[str, ...], level: int) -> None:
        self._require(isinstance(schema, dict), f"{schema!r} is not permitted", path)
        self._require(level <= _MAX_LEVELS, "too many levels of nesting", path)
        for keyword in _REFUSED_KEYWORDS & set(schema):
            self._refuse(f"'{keyword}' is not permitted", path)
        if "$ref" in schema:
            ref = schema["$ref"]
            self._require(set(schema) == {"$ref"}, "$ref cannot have keywords beside it", path)
            known = ref == "#" or re.fullmatch(r"#/(\$defs|definitions)/[^/]+", ref)
            self._require(known, f"reference {ref!r} is not permitted", path)
            return
        described = any(key in schema for key in ("type", "enum", "const", "anyOf", "allOf"))
        self._require(described, "schema must have a 'type' key", path)
        if (format := schema.get("format")) is not None:
            self._require(format in _FORMATS, f"format {format!r} is not permitted", path)
        if re.search(r"\(\?[=!<]", schema.get("pattern", "")):
            self._refuse("look-around is not permitted in 'pattern'", path)
        kinds = schema.get("type")
        kinds = cast(list[Any], kinds) if isinstance(kinds, list) else [kinds]
        if "object" in kinds:
            self._check_object(schema, path, level)
        if "array" in kinds:
            self._require("items" in schema, "array schema missing items", path)
            self._check(schema["items"], (*path, "items"), level + 1)
        for key in ("anyOf", "allOf"):
            for number, each in enumerate(schema.get(key, ())):
                self._check(each, (*path, key, str(number)), level)

    def _check_object(self, schema: dict[str, Any], path: tuple[str, ...], level: int) -> None:
        closed = schema.get("additionalProperties") is False
        self._require(closed, "'additionalProperties' is required to be supplied and to be false", path)
        properties = schema.get("properties", {})
        self._properties += len(properties)
        required = sorted(schema.get("required", ())) == sorted(properties)
        self._require(required, "'required' is required to be an array including every key in properties", path)
        for name, each in properties.items():
            self._check(each, (*path, "properties", name), level + 1)

    def _require(self, condition: object, problem: str, path: tuple[str, ...] = ()) -> None:
        if not condition:
            self._refuse(problem, path)

    def _refuse(self, problem: str, path: tuple[str, ...]) -> None:
        place = f"In context=({', '.join(map(repr, path))}), " if path else ""
        refuse(f"Invalid schema for {self._where}: {place}{problem}.", code="invalid_json_schema")
