"""Strict double of the OpenAI Responses API for an organisation that stores nothing at the vendor.

Sources: [O] types of the `openai` SDK; [OD] developers.openai.com/api/docs; [P] profiles of `pydantic-ai`;
`owner/repo#n` GitHub issues.

Differences from the base: all pieces of `Answer.thinking` are the summary of one encrypted reasoning item, which the
double expects back unchanged and before the item that it led to. `Answer.extra`: `phase` of the message, `refusal` if
its text is one, `interleaved` for reasoning before every call.
"""

import base64
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast, get_args

from openai.types import responses, shared_params
from openai.types.responses import response_create_params

from sse_events import r
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
)
from vendors.openai_chat import check_strict_schema

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_DATA_URL = re.compile(r"data:([\w./+-]+);base64,(.+)", re.DOTALL)
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_ids = itertools.count(1)
_FIELDS = {*response_create_params.ResponseCreateParamsBase.__annotations__, "stream"}
_MESSAGE_FIELDS = {*responses.ResponseOutputMessageParam.__annotations__}
_ITEM_FIELDS: dict[str, set[str]] = {
    "function_call": {*responses.ResponseFunctionToolCallParam.__annotations__, "async"},
    "function_call_output": {*responses.response_input_param.FunctionCallOutput.__annotations__},
    "reasoning": {*responses.ResponseReasoningItemParam.__annotations__},
}
_MIN_OUTPUT = 16


@dataclass(frozen=True)
class ResponsesModel:
    """A model's rules on the Responses API."""

    pattern: str
    efforts: tuple[str, ...] = ()
    """Accepted values of `reasoning.effort`; none if the model does not reason."""
    default: str = "none"
    """The effort of a request that names none."""
    phases: bool = False
    """Whether messages have a phase, which is to be returned."""
    context: bool = False
    """Whether `reasoning.context` may be `all_turns`."""


_HIGH = ("low", "medium", "high")
_MODELS = (  # [P] "Effort values"; [O] Reasoning.context
    ResponsesModel("gpt-6-astra|gpt-6.1-sol", (*_HIGH, "xhigh", "max"), "medium", True, True),
    ResponsesModel("gpt-6|gpt-5.6", ("none", *_HIGH, "xhigh", "max"), "medium", True, True),
    ResponsesModel("gpt-5.[245]-pro", ("medium", "high", "xhigh"), "medium", True),
    ResponsesModel("gpt-5.5", ("none", *_HIGH, "xhigh"), "medium", True, True),
    ResponsesModel("gpt-5.4", ("none", *_HIGH, "xhigh"), "none", True, True),
    ResponsesModel("gpt-5.3-codex", (*_HIGH, "xhigh"), "medium", True),
    ResponsesModel("gpt-5.1-codex-max|gpt-5.2-codex", (*_HIGH, "xhigh"), "medium"),
    ResponsesModel("gpt-5.[123]", ("none", *_HIGH, "xhigh"), "none"),
    ResponsesModel("gpt-5-pro", ("high",), "high"),
    ResponsesModel("gpt-5-codex", _HIGH, "medium"),
    ResponsesModel("gpt-5", ("minimal", *_HIGH), "medium"),
    ResponsesModel("o[134]", _HIGH, "medium"),
    ResponsesModel("gpt-4|chatgpt-4o"),
)


@dataclass(frozen=True)
class IssuedItem:
    """A reasoning item that the double sent: for which model, and before which other item."""

    model: str
    item: dict[str, Any]
    next_id: str


class OpenAIResponsesDouble(VendorDouble):
    """OpenAI's Responses API."""

    models: ClassVar[tuple[ResponsesModel, ...]] = _MODELS

    def __init__(self, *answers: Any, then: Any = None) -> None:
        super().__init__(*answers, then=then)
        self.issued: dict[str, IssuedItem] = {}
        """Reasoning items by their encrypted content."""
        self.lost_phases: list[str] = []
        """Ids of messages that came back without their phase. The vendor accepts that, and answers worse. [O]"""
        self._phases: dict[str, str] = {}
        self._reasoned: dict[str, str] = {}
        self._prompts: list[str] = []

    @property
    def address(self) -> str:
        return f"{self.url}/v1"

    def check(self, request: VendorRequest) -> None:
        require(request.path.endswith("/responses"), "Invalid URL", status=404, type="invalid_request_error")
        authorized = request.headers.get("authorization") == f"Bearer {KEY}"
        require(authorized, "Incorrect API key provided.", status=401, code="invalid_api_key")
        body = request.body
        for name in body:  # there is no `stop`, `seed` or `max_tokens`
            require(name in _FIELDS, f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name)
        self._check_state(body)
        self._check_model(body)
        items: list[Any] = (
            [{"role": "user", "content": body["input"]}] if isinstance(body["input"], str) else body["input"]
        )
        for index, item in enumerate(items):
            self._check_item(item, f"input[{index}]", body["model"])
        self._check_calls(items)
        self._check_reasoning(items)
        _check_tools(body)
        _check_format(body, items)
        self._prompts.append(json.dumps([body.get("tools"), body.get("instructions"), items], ensure_ascii=False))

    def _check_state(self, body: dict[str, Any]) -> None:
        stored = body.get("store") is False or "previous_response_id" not in body
        require(
            stored and body.get("previous_response_id") is None,
            "Previous response cannot be used for this organization due to Zero Data Retention.",
            param="previous_response_id",
        )
        for name in body.get("include") or ():
            known = name in get_args(responses.ResponseIncludable)
            require(known, f"Invalid value: '{name}'.", code="invalid_value", param="include")
        if (limit := body.get("max_output_tokens")) is not None:  # pi#6265
            require(
                limit >= _MIN_OUTPUT,
                f"Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got {limit}.",
                code="integer_below_min_value",
                param="max_output_tokens",
            )
        if (tier := body.get("service_tier")) is not None:
            known = tier in ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")  # [O] ServiceTier
            require(known, f"Invalid value: '{tier}'.", code="invalid_value", param="service_tier")
        if (key := body.get("prompt_cache_key")) is not None:
            require(len(key) <= 64, "string too long", code="string_above_max_length", param="prompt_cache_key")

    def _check_model(self, body: dict[str, Any]) -> None:
        model = self.find_model(body["model"])
        reasoning: dict[str, Any] = body.get("reasoning") or {}
        for name in reasoning:
            known = name in shared_params.Reasoning.__annotations__
            require(known, f"Unknown parameter: 'reasoning.{name}'.", code="unknown_parameter", param="reasoning")
        effort = self.check_effort(body, model)
        if reasoning.get("context") == "all_turns":
            require(
                model.context, "Unsupported value: 'all_turns'", code="unsupported_value", param="reasoning.context"
            )
        summary = reasoning.get("summary")
        require(summary in (None, "auto", "concise", "detailed"), "Invalid value", param="reasoning.summary")
        if model.efforts and effort != "none":  # [P]; khoj#1377
            for name in ("temperature", "top_p", "top_logprobs"):
                require(
                    name not in body,
                    f"Unsupported parameter: '{name}' is not supported with this model.",
                    code="unsupported_parameter",
                    param=name,
                )

    def check_effort(self, body: dict[str, Any], model: ResponsesModel) -> str:
        """Check the effort and return it."""
        reasoning: dict[str, Any] = body.get("reasoning") or {}
        if reasoning and not model.efforts:
            refuse(
                "Unsupported parameter: 'reasoning.effort' is not supported with this model.",
                code="unsupported_parameter",
                param="reasoning.effort",
            )
        effort = reasoning.get("effort") or model.default
        if model.efforts and effort not in model.efforts:
            supported = ", ".join(repr(each) for each in model.efforts)
            refuse(
                f"Unsupported value: '{effort}' is not supported with the '{body['model']}' model. "
                f"Supported values are: {supported}.",
                code="unsupported_value",
                param="reasoning.effort",
            )
        return effort

    def find_model(self, name: str) -> ResponsesModel:
        """Return the rules of a model."""
        found = next((each for each in self.models if re.match(each.pattern, name)), None)
        if found is None:
            refuse(f"The requested model '{name}' does not exist.", status=404, code="model_not_found", param="model")
        return found

    def _check_item(self, item: dict[str, Any], where: str, model: str) -> None:
        kind = item.get("type", "message")
        if kind == "item_reference":
            _refuse_missing(item["id"])
        if kind == "message":
            self._check_message(item, where)
            return
        require(kind in _ITEM_FIELDS, f"Invalid value: '{kind}'.", code="invalid_value", param=where)
        for name in item:
            known = name in _ITEM_FIELDS[kind]
            require(known, f"Unknown parameter: '{where}.{name}'.", code="unknown_parameter", param=where)
        match item:
            case {"type": "reasoning"}:
                self._check_reasoning_item(item, where, model)
            case {"type": "function_call", "call_id": str(id), "name": str(name), "arguments": str(arguments)}:
                require(len(id) <= 64, f"Invalid '{where}.call_id': string too long.", code="string_above_max_length")
                require(_NAME.fullmatch(name), f"Invalid '{where}.name'", param=where)
                require(isinstance(json.loads(arguments), dict), f"Invalid '{where}.arguments'", param=where)
            case {"type": "function_call_output", "call_id": str(), "output": str()}:
                pass
            case {"type": "function_call_output", "call_id": str(), "output": [*parts]} if parts:
                for number, part in enumerate(parts):  # [O] ResponseFunctionCallOutputItemListParam
                    _check_part(part, f"{where}.output[{number}]")
            case _:
                refuse(f"Invalid item '{where}'", param=where)

    def _check_message(self, message: dict[str, Any], where: str) -> None:
        role, content = message.get("role"), message.get("content")
        require(role in ("user", "assistant", "system", "developer"), f"Invalid value: '{role}'.", param=where)
        for name in message:
            known = name in _MESSAGE_FIELDS
            require(known, f"Unknown parameter: '{where}.{name}'.", code="unknown_parameter", param=where)
        require(content not in (None, "", []), f"Missing required parameter: '{where}.content'.", param=where)
        parts = cast(list[Any], content) if isinstance(content, list) else []
        for number, part in enumerate(parts):
            place = f"{where}.content[{number}]"
            if role != "assistant":
                _check_part(part, place)
                continue
            match part:  # [O] ResponseOutputMessageParam
                case {"type": "output_text", "text": str(), "annotations": list()} | {
                    "type": "refusal",
                    "refusal": str(),
                }:
                    pass
                case {"type": kind}:
                    refuse(f"Invalid value: '{kind}'. Supported values are: 'output_text' and 'refusal'.", param=place)
                case _:
                    refuse(f"Invalid '{place}'", param=place)
        if "id" in message:  # [O] ResponseOutputMessageParam
            require(role == "assistant" and "status" in message, f"Missing '{where}.status'", param=where)
        phase = message.get("phase")
        require(phase in (None, "commentary", "final_answer"), f"Invalid value: '{phase}'.", param=f"{where}.phase")
        if (id := message.get("id")) in self._phases and phase != self._phases[id]:
            self.lost_phases.append(id)

    def _check_reasoning_item(self, item: dict[str, Any], where: str, model: str) -> None:
        # Agora#141: the summary is required, even if it is empty
        require("summary" in item, f"Missing required parameter: '{where}.summary'.", param=f"{where}.summary")
        encrypted: str = item.get("encrypted_content") or ""
        if not encrypted:  # vercel/ai#7543
            _refuse_missing(item.get("id", ""))
        issued = self.issued.get(encrypted)
        if issued is None or issued.model != model or issued.item != item:  # codex#17541
            refuse(
                "The encrypted content for item could not be verified. Reason: Encrypted content could not be "
                "decrypted or parsed.",
                code="invalid_encrypted_content",
            )

    def _check_calls(self, items: list[dict[str, Any]]) -> None:
        open_ids: list[str] = []
        for item in items:
            match item.get("type", "message"):
                case "function_call":
                    require(item["call_id"] not in open_ids, f"Duplicate call_id {item['call_id']}", param="input")
                    open_ids.append(item["call_id"])
                case "function_call_output":
                    id = item["call_id"]
                    found = id in open_ids
                    require(found, f"No tool call found for function call output with call_id {id}.", param="input")
                    open_ids.remove(id)
                case "message" if item["role"] != "assistant":
                    _require_outputs(open_ids)
                case _:
                    pass
        _require_outputs(open_ids)

    def _check_reasoning(self, items: list[dict[str, Any]]) -> None:
        """Reasoning and the item that it led to come together. continue#8933, cline#12242, vercel/ai#7099."""
        for item, following in zip(items, [*items[1:], dict[str, Any]()], strict=True):
            if item.get("type") == "reasoning":
                expected = self.issued[item["encrypted_content"]].next_id
                require(
                    following.get("id") == expected,
                    f"Item '{item['id']}' of type 'reasoning' was provided without its required following item.",
                    param="input",
                )
        returned = {item["id"] for item in items if item.get("type") == "reasoning"}
        for item in items:
            reasoning = self._reasoned.get(item.get("id", ""))
            require(
                reasoning is None or reasoning in returned or item.get("type") == "message",
                f"Item '{item.get('id')}' of type 'function_call' was provided without its required 'reasoning' item: "
                f"'{reasoning}'.",
                param="input",
            )

    @staticmethod
    def find_schema(body: dict[str, Any]) -> dict[str, Any] | None:
        return body.get("text", {}).get("format", {}).get("schema")

    @staticmethod
    def find_system(body: dict[str, Any]) -> str:
        return body.get("instructions", "")

    def encode_error(self, refusal: Refusal) -> dict[str, Any]:
        type = refusal.type or ("server_error" if refusal.status >= 500 else "invalid_request_error")
        return {"error": {"message": refusal.message, "type": type, "param": refusal.param, "code": refusal.code}}

    def encode_body(self, request: VendorRequest, answer: Answer) -> dict[str, Any] | None:
        if request.body.get("stream"):
            return None
        return self._encode_response(request, answer, self._make_items(request.body, answer))

    def encode_stream(self, request: VendorRequest, answer: Answer) -> list[bytes]:
        items = self._make_items(request.body, answer)
        response = self._encode_response(request, answer, items)
        begun: dict[str, Any] = {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
        started = {**response, **begun}
        events = [r.event(f"response.{name}", response=started) for name in ("created", "in_progress")]
        for index, item in enumerate(items):
            events += _encode_item(index, item)
        return [*events, r.event(f"response.{response['status']}", response=response)]

    def _make_items(self, body: dict[str, Any], answer: Answer) -> list[dict[str, Any]]:
        model = self.find_model(body["model"])
        reasoning: dict[str, Any] = body.get("reasoning") or {}
        summaries = answer.thinking if reasoning.get("summary") else ()
        encrypts = "reasoning.encrypted_content" in (body.get("include") or ())
        thinks = bool(answer.thinking and model.efforts and reasoning.get("effort", model.default) != "none")
        phase = answer.extra.get("phase") or ("commentary" if answer.calls else "final_answer")
        items: list[dict[str, Any]] = []
        for item in self._visible_items(answer, phase if model.phases else None):
            if thinks and (not items or (answer.extra.get("interleaved") and item["type"] == "function_call")):
                items.append(self._issue(body["model"], summaries, item, encrypts=encrypts))
            items.append(item)
        if thinks and not items:  # cut short while it reasoned
            items.append(self._issue(body["model"], summaries, {"id": "", "type": "message"}, encrypts=encrypts))
        return items

    def _visible_items(self, answer: Answer, phase: str | None) -> Iterator[dict[str, Any]]:
        status = "incomplete" if answer.stop else "completed"
        if answer.text:
            part: dict[str, Any] = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
            if answer.extra.get("refusal"):
                part = {"type": "refusal", "refusal": answer.text}
            item = {"id": f"msg_{next(_ids):040x}", "type": "message", "status": status, "role": "assistant"}
            if phase:
                self._phases[item["id"]] = item["phase"] = phase
            yield {**item, "content": [part]}
        for name, arguments in answer.calls:
            ids = {"id": f"fc_{next(_ids):040x}", "call_id": f"call_{next(_ids):024d}"}
            yield {"type": "function_call", **ids, "name": name, "arguments": json.dumps(arguments), "status": status}

    def _issue(self, model: str, summaries: tuple[str, ...], item: dict[str, Any], *, encrypts: bool) -> dict[str, Any]:
        id = f"rs_{next(_ids):040x}"
        parts = [{"type": "summary_text", "text": summary} for summary in summaries]
        issued: dict[str, Any] = {"id": id, "type": "reasoning", "summary": parts}
        if not encrypts:
            return issued
        encrypted = base64.b64encode(f"gAAAA {id} {model}".encode()).decode()
        issued["encrypted_content"] = encrypted
        self.issued[encrypted] = IssuedItem(model, issued, item["id"])
        if item["id"]:
            self._reasoned[item["id"]] = id
        return issued

    def _encode_response(self, request: VendorRequest, answer: Answer, items: list[Any]) -> dict[str, Any]:
        status: Literal["completed", "incomplete"] = "incomplete" if answer.stop else "completed"
        details = {"reason": answer.stop} if answer.stop else None
        usage = answer.usage or self._count_usage(answer)
        fields = {"model": request.body["model"], "incomplete_details": details, "usage": usage}
        return r.response(status, items, **fields, instructions=request.body.get("instructions"))

    def _count_usage(self, answer: Answer) -> dict[str, Any]:
        """Count tokens. The longest beginning that an earlier request had is cached, from 1,024 tokens. [OD]"""
        prompt = self._prompts[-1]
        common = max((common_prefix(prompt, earlier) for earlier in self._prompts[:-1]), default=0) // 4
        input, reasoning = len(prompt) // 4, count_tokens("".join(answer.thinking)) if answer.thinking else 0
        output = count_tokens([answer.text, answer.calls]) + reasoning
        cached = common if common >= 1024 else 0
        return {
            "input_tokens": input,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": input + output,
        }


def _refuse_missing(id: str) -> None:
    refuse(  # vercel/ai#7543
        f"Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with `store` "
        "set to true, or remove this item from your input.",
        status=404,
        param="input",
    )


def _require_outputs(open_ids: list[str]) -> None:
    """llxprt-code#61."""
    require(not open_ids, f"No tool output found for function call {', '.join(open_ids)}.", param="input")


def _check_part(part: dict[str, Any], place: str) -> None:
    """Check a part of the input. [O] ResponseInputTextParam, ResponseInputImageParam, ResponseInputFileParam."""
    match part:
        case {"type": "input_text", "text": str()}:
            pass
        case {"type": "input_image", "image_url": str(url)}:
            require(part.get("detail", "auto") in ("high", "low", "auto", "original"), f"Invalid '{place}'")
            found = _DATA_URL.fullmatch(url)
            is_image = (found and found[1] in _IMAGES) or url.startswith(("https://", "http://"))
            require(is_image, f"Invalid '{place}.image_url'.", code="invalid_value", param=f"{place}.image_url")
        case {"type": "input_file", "file_url": str(url)}:
            require(url.startswith(("https://", "http://")), f"Invalid '{place}.file_url'.", param=place)
            require(
                not part.keys() & {"file_data", "file_id"}, f"Mutually exclusive parameters: '{place}'.", param=place
            )
        case {"type": "input_file", "filename": str(), "file_data": str(data)}:
            require(_DATA_URL.fullmatch(data), f"Invalid '{place}.file_data'. Expected a base64-encoded data URL.")
        case {"type": "input_file", "file_id": str()}:
            pass
        case _:  # there is no audio
            refuse(f"Invalid value: '{part.get('type')}' in '{place}'.", code="invalid_value", param=place)


def _check_tools(body: dict[str, Any]) -> None:
    names: list[str] = []
    tools: list[dict[str, Any]] = body.get("tools") or []
    for number, tool in enumerate(tools):
        place = f"tools[{number}]"
        require(tool.get("type") == "function", f"Invalid value: '{place}.type'", param=place)
        for name in tool:
            known = name in responses.FunctionToolParam.__annotations__
            require(known, f"Unknown parameter: '{place}.{name}'.", code="unknown_parameter", param=place)
        for name in ("name", "parameters", "strict"):  # [O] FunctionToolParam: required
            found = name in tool
            require(
                found, f"Missing required parameter: '{place}.{name}'.", code="missing_required_parameter", param=place
            )
        require(_NAME.fullmatch(tool["name"]), f"Invalid '{place}.name'", param=f"{place}.name")
        is_object = tool["parameters"].get("type") == "object"
        require(is_object, "schema must be a JSON Schema of 'type: \"object\"'", code="invalid_function_parameters")
        if tool["strict"] is not False:  # null asks for strict where possible
            check_strict_schema(tool["parameters"], f"function '{tool['name']}'")
        names.append(tool["name"])
    match body.get("tool_choice"):
        case None | "none" | "auto":
            pass
        case "required":
            require(names, "Tool choice 'required' must be specified with 'tools' parameter.", param="tool_choice")
        case {"type": "function", "name": name}:
            require(name in names, f"Tool choice '{name}' not found in 'tools' parameter.", param="tool_choice")
        case other:
            refuse(f"Invalid value: {other!r}", param="tool_choice")


def _check_format(body: dict[str, Any], items: list[dict[str, Any]]) -> None:
    text: dict[str, Any] = body.get("text") or {}
    given: Any = text.get("format")
    match given:
        case None | {"type": "text"}:
            pass
        case {"type": "json_object"}:
            mentioned = "json" in json.dumps(items).lower()
            require(mentioned, "Response input messages must contain the word 'json' in some form.", param="input")
        case {"type": "json_schema", "name": str(name), "schema": schema}:
            require(_NAME.fullmatch(name), "Invalid 'text.format.name'", param="text.format.name")
            known = {"type", "name", "schema", "strict", "description"}
            require(not given.keys() - known, "Unknown parameter", param="text.format")
            if given.get("strict"):
                check_strict_schema(schema, f"response_format '{name}'")
        case _:
            refuse(f"Invalid value: {given!r}", param="text.format")


def _encode_item(index: int, item: dict[str, Any]) -> list[bytes]:
    """Encode an item as the events of a stream. What `added` has of it is incomplete."""
    place: dict[str, Any] = {"item_id": item["id"], "output_index": index}
    match item["type"]:
        case "reasoning":
            begun: dict[str, Any] = {"summary": [], "encrypted_content": item.get("encrypted_content", "")[:8]}
            events = [r.added(index, {**item, **begun})]
            for number, part in enumerate(item["summary"]):
                at = {**place, "summary_index": number}
                events.append(r.event("response.reasoning_summary_part.added", **at, part={**part, "text": ""}))
                for piece in split(part["text"]):
                    events.append(r.event("response.reasoning_summary_text.delta", **at, delta=piece))
                events.append(r.event("response.reasoning_summary_text.done", **at, text=part["text"]))
                events.append(r.event("response.reasoning_summary_part.done", **at, part=part))
        case "message":
            (part,) = item["content"]
            field, name = ("refusal", "refusal") if part["type"] == "refusal" else ("text", "output_text")
            at = {**place, "content_index": 0}
            events = [r.added(index, {**item, "status": "in_progress", "content": []})]
            events.append(r.event("response.content_part.added", **at, part={**part, field: ""}))
            for piece in split(part[field]):
                events.append(r.event(f"response.{name}.delta", **at, delta=piece, logprobs=[]))
            events.append(r.event(f"response.{name}.done", **at, **{field: part[field]}, logprobs=[]))
            events.append(r.event("response.content_part.done", **at, part=part))
        case _:
            events = [r.added(index, {**item, "status": "in_progress", "arguments": ""})]
            for piece in split(item["arguments"]):
                events.append(r.event("response.function_call_arguments.delta", **place, delta=piece))
            done = {"name": item["name"], "arguments": item["arguments"]}
            events.append(r.event("response.function_call_arguments.done", **place, **done))
    return [*events, r.done(index, item)]
