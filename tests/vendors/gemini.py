"""Strict double of the Gemini API (`streamGenerateContent`), and of Vertex AI, which speaks the same wire.

Sources, quoted beside each rule:
[G] types of the official SDK `google-genai` 3.1 · [GD] ai.google.dev/gemini-api/docs/… · [CG] Gemini 4 Argon developer
guide, docs.cloud.google.com/gemini-enterprise-agent-platform/models/guides/gemini-4-argon · repo#n GitHub issue or pull
request · [P] model profiles of pydantic-ai 2.66. Where the vendor's wording is known it is used; clients must not
depend on it.

Keys of `Answer.extra`:
    bare_stop: send `finishReason` in an event of its own, after the content.
    signature: "text" (on the last piece of text), "empty" (on an empty part after the text, the default) or "none".
    ids: False to leave out the ids of calls.
    thoughts_signed: sign the thought summaries, too.
    continue: end with CONTINUATION and a token; the next request must bring it.
"""

import base64
import binascii
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

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

Fields = dict[str, Any]
DUMMY = "skip_thought_signature_validator"
"""Signature for calls that the model did not make: [GD] thought-signatures, "migrating from other models"."""


@dataclass(frozen=True)
class ModelRules:
    """What one model accepts."""

    levels: tuple[str, ...] = ("LOW", "MEDIUM", "HIGH")
    """Values of `thinkingLevel`: [P]; [CG]."""
    budget: tuple[int, int] | None = None
    """Limits of `thinkingBudget` other than -1: [GD] thinking."""
    can_turn_off: bool = False
    signed: bool = True
    """Gemini 3 and later: signatures are required, media are accepted in results, and a schema beside tools: [GD]
    thought-signatures, function-calling, tool-combination; [P]."""
    continues: bool = False
    min_cached: int = 4096
    """Fewest tokens of a beginning that the implicit cache holds: [GD] caching; [CG]."""
    output_tokens: int = 65_536


MODELS: dict[str, ModelRules] = {
    "gemini-4-argon": ModelRules(continues=True, output_tokens=1_048_576, min_cached=6144),
    "gemini-3.8-flash": ModelRules(),
    "gemini-3.1-pro-preview": ModelRules(),
    "gemini-3-flash-preview": ModelRules(levels=("MINIMAL", "LOW", "MEDIUM", "HIGH")),
    "gemini-2.5-pro": ModelRules(levels=(), budget=(128, 32_768), signed=False),
    "gemini-2.5-flash": ModelRules(levels=(), budget=(0, 24_576), can_turn_off=True, signed=False),
    "gemini-2.0-flash": ModelRules(levels=(), signed=False, output_tokens=8192),
}
_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"} | {
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
"""[G] `APIError`; cloud.google.com/apis/design/errors."""
_PATH = re.compile(
    r"(/v1beta|/v1/projects/[\w-]+/locations/[\w-]+/publishers/google)/models/(?P<model>[^/:]+):streamGenerateContent"
)
_TOP = "contents systemInstruction tools toolConfig generationConfig safetySettings cachedContent serviceTier"
_GENERATION = (
    "temperature topP topK seed maxOutputTokens stopSequences candidateCount thinkingConfig responseMimeType "
    "responseSchema responseJsonSchema presencePenalty frequencyPenalty responseLogprobs logprobs mediaResolution"
)
_PAYLOADS = (
    *("text", "inlineData", "fileData", "functionCall", "functionResponse"),
    *("executableCode", "codeExecutionResult"),
)
_OPENAPI = (
    "type format title description nullable enum items maxItems minItems properties required minProperties "
    "maxProperties minimum maximum minLength maxLength pattern example anyOf propertyOrdering default"
)
"""Fields of `parameters`, an OpenAPI subset: [G] `Schema`; zed#44875, openswarm#24."""
_JSON_SCHEMA = (
    "$id $defs $ref $anchor type format title description enum items prefixItems minItems maxItems minimum maximum "
    "anyOf oneOf properties additionalProperties required propertyOrdering"
)
"""Fields of `responseJsonSchema`: [G] `GenerateContentConfig.response_json_schema`."""
_INPUT_TYPES = re.compile(r"image/(png|jpeg|webp|heic|heif)|application/pdf|text/[\w.+-]+|(audio|video)/[\w.+-]+")
"""[GD] image-understanding, document-processing, audio."""
_RESULT_TYPES = ("image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain")
"""Media in `functionResponse.parts`: [GD] function-calling, multimodal function responses; [P]."""
_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,63}")
"""[G] `FunctionDeclaration.name`."""


def _check_names(fields: Fields, known: str, where: str) -> None:
    """Refuse unknown fields with the words of the JSON parser of Google's APIs."""
    for name in fields:
        if name not in known.split():
            message = f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}': Cannot find field."
            raise Refusal(message, param=where)


def _get(fields: Fields, name: str) -> Fields:
    return cast(Fields, fields.get(name) or {})


class GeminiDouble(VendorDouble):
    """The Gemini API; with `vertex`, Vertex AI: `vendor.base_url` is what a client is given as its address."""

    def __init__(self, *answers: Any, then: Any = None, vertex: bool = False) -> None:
        super().__init__(*answers, then=then)
        self.vertex = vertex
        self._signatures: dict[str, Fields] = {}
        """The part that each signature was sent with."""
        self._tokens: dict[str, Any] = {}
        """The contents that each continuation token belongs to."""
        self._numbers = itertools.count(1)
        self._prompts: list[str] = []

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1/projects/p-1/locations/global/publishers/google" if self.vertex else self.url

    def check(self, request: VendorRequest) -> None:
        rules = self._check_address(request)
        body = request.body
        _check_names(body, f"{_TOP} continuationToken" if rules.continues else _TOP, "request")
        contents = cast(list[Fields], body.get("contents") or [])
        require(contents, "* GenerateContentRequest.contents: contents is not specified")
        self._check_tools(body, rules)
        self._check_generation(body, rules)
        for index, content in enumerate(contents):
            self._check_content(content, f"contents[{index}]", rules)
        self._check_calls(contents)
        require(contents[-1]["role"] == "user", "Please ensure that the request ends with a user role.")
        if rules.signed:
            self._check_signatures(contents)
        if token := body.get("continuationToken"):  # [G] `Candidate.continuation_token`; [CG] long decodes
            require(self._tokens.get(token) == contents, "The continuation token does not belong to this request.")

    def _check_address(self, request: VendorRequest) -> ModelRules:
        found = _PATH.fullmatch(request.path)
        require(request.method == "POST" and found, "Requested entity was not found.", status=404)
        assert found is not None
        require(request.path.startswith("/v1beta") is not self.vertex, "Requested entity was not found.", status=404)
        require(request.query == {"alt": "sse"}, "the double streams server-sent events only")
        if self.vertex:
            token = request.headers.get("authorization")
            require(token == f"Bearer {KEY}", "Request had invalid authentication credentials.", status=401)
            require("x-goog-api-key" not in request.headers, "Two kinds of credentials.", status=401)
        else:
            key = request.headers.get("x-goog-api-key")
            require(key, "Method doesn't allow unregistered callers.", status=403)
            require(key == KEY, "API key not valid. Please pass a valid API key.", code="API_KEY_INVALID")
            require("authorization" not in request.headers, "Two kinds of credentials.", status=401)
        name = found["model"]
        require(name in MODELS, f"models/{name} is not found for API version v1beta", status=404)
        return MODELS[name]

    def _check_tools(self, body: Fields, rules: ModelRules) -> None:
        names: list[str] = []
        for tool in cast(list[Fields], body.get("tools") or []):
            _check_names(tool, "functionDeclarations googleSearch codeExecution urlContext", "tools[0]")
            for declaration in tool.get("functionDeclarations", ()):
                where = f"tools[0].function_declarations[{len(names)}]"
                _check_names(declaration, "name description parameters parametersJsonSchema response behavior", where)
                require(_NAME.fullmatch(declaration.get("name", "")), f"{where}.name: Invalid function name.")
                both = "parameters" in declaration and "parametersJsonSchema" in declaration
                require(not both, f"{where}: parameters and parameters_json_schema are mutually exclusive.")
                if "parameters" in declaration:
                    _check_schema(declaration["parameters"], _OPENAPI, f"{where}.parameters")
                names.append(declaration["name"])
        require(len(set(names)) == len(names), "Duplicate function declaration found.")
        config = _get(_get(body, "toolConfig"), "functionCallingConfig")
        _check_names(config, "mode allowedFunctionNames", "tool_config.function_calling_config")
        mode = config.get("mode", "AUTO")
        require(mode in ("AUTO", "ANY", "NONE", "VALIDATED"), f"Invalid value at 'mode': {mode}")  # [G], [P]
        allowed = cast(list[str], config.get("allowedFunctionNames") or [])
        require(not allowed or mode == "ANY", "allowed_function_names is only set when the mode is ANY.")  # [G]
        require(set(allowed) <= set(names), "allowed_function_names has an undeclared function.")
        if "cachedContent" in body:  # [GD] caching; [CG]: no explicit cache on Gemini 4
            conflicts = names or config or body.get("systemInstruction") or rules.continues
            require(not conflicts, "CachedContent can not be used with system_instruction, tools or tool_config.")

    def _check_generation(self, body: Fields, rules: ModelRules) -> None:
        config = _get(body, "generationConfig")
        _check_names(config, _GENERATION, "generation_config")
        require(0 <= config.get("temperature", 1) <= 2, "temperature must be in the range [0.0, 2.0].")
        require(0 < config.get("topP", 1) <= 1, "top_p must be in the range (0.0, 1.0].")
        require(1 <= config.get("maxOutputTokens", 1) <= rules.output_tokens, "max_output_tokens is out of range.")
        require(len(config.get("stopSequences", ())) <= 5, "At most 5 stop sequences are allowed.")  # [G]
        self._check_thinking(_get(config, "thinkingConfig"), rules)
        schemas = [name for name in ("responseSchema", "responseJsonSchema") if name in config]
        require(len(schemas) < 2, "response_schema and response_json_schema are mutually exclusive.")  # [G]
        if schemas:
            is_json = config.get("responseMimeType") == "application/json"
            require(is_json, "response_schema requires response_mime_type application/json.", param="response_schema")
            known = _JSON_SCHEMA if schemas[0] == "responseJsonSchema" else _OPENAPI
            _check_schema(config[schemas[0]], known, f"generation_config.{schemas[0]}")
        if config.get("responseMimeType") == "application/json" and body.get("tools"):  # [GD] tool-combination; [P]
            reason = "Function calling with a response mime type: 'application/json' is unsupported"
            require(rules.signed, reason, param="response_mime_type")

    @staticmethod
    def _check_thinking(thinking: Fields, rules: ModelRules) -> None:
        """[G] `ThinkingConfig`; [GD] thinking; [P]."""
        _check_names(thinking, "includeThoughts thinkingBudget thinkingLevel", "generation_config.thinking_config")
        if not thinking:
            return
        require(rules.levels or rules.budget, "Thinking is not supported by this model.")
        if (level := thinking.get("thinkingLevel")) is not None:
            require(level in rules.levels, f"Thinking level {level} is not supported for this model.")
        if (budget := thinking.get("thinkingBudget")) is not None:
            require(rules.budget, "thinking_budget is not supported; use thinking_level.")
            assert rules.budget is not None
            off = budget == 0 and rules.can_turn_off
            low, high = rules.budget
            require(off or budget == -1 or max(low, 1) <= budget <= high, f"Budget {budget} is invalid.")

    def _check_content(self, content: Fields, where: str, rules: ModelRules) -> None:
        _check_names(content, "role parts", where)
        require(content.get("role") in ("user", "model"), "Please use a valid role: user, model.")  # [G] `Content`
        require(content.get("parts"), f"{where}.parts must not be empty.")
        for part in content["parts"]:
            _check_names(part, " ".join(("thought", "thoughtSignature", "videoMetadata", *_PAYLOADS)), f"{where}.parts")
            payloads = [name for name in _PAYLOADS if name in part]
            require(len(payloads) == 1, f"{where}.parts.data: required oneof field 'data' must have one field.")  # [G]
            if "text" in part:
                is_filled = part["text"] or part.get("thoughtSignature")
                require(is_filled, "Unable to submit request because it must have a text parameter.")
            if "functionCall" in part:
                require(content["role"] == "model", "Function calls are made by the model.")
                _check_names(part["functionCall"], "id name args", f"{where}.parts.function_call")
                require(isinstance(part["functionCall"].get("args", {}), dict), "args must be an object.")
            if "functionResponse" in part:
                self._check_response(part["functionResponse"], f"{where}.parts.function_response", rules)
            for name in ("inlineData", "fileData"):
                if name in part:
                    _check_media(part[name], name, f"{where}.parts")

    @staticmethod
    def _check_response(response: Fields, where: str, rules: ModelRules) -> None:
        _check_names(response, "id name response parts", where)
        require(response.get("name"), f"{where}.name: Name cannot be empty.")
        require(isinstance(response.get("response"), dict), f"{where}.response must be an object.")  # [G]
        for part in response.get("parts", ()):
            require(rules.signed, "Multimodal function responses are not supported by this model.")
            require(part["inlineData"]["mimeType"] in _RESULT_TYPES, "Unsupported MIME type in a function response.")
            _check_media(part["inlineData"], "inlineData", where)

    @staticmethod
    def _check_calls(contents: Sequence[Fields]) -> None:
        """Calls and responses: lobehub#11674, gemini-cli#5443 (order and number), CLIProxyAPI#5199 (ids); [P]."""
        open_calls: list[Fields] = []
        before = "user"
        for content in contents:
            calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
            responses = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
            if responses:
                require(len(responses) == len(content["parts"]), "Function responses cannot be mixed with other parts.")
            require(
                len(responses) == len(open_calls),
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn.",
            )
            for call, response in zip(open_calls, responses, strict=True):
                require(response["name"] == call["name"], "A function response has the name of another function.")
                same = response.get("id") == call.get("id")
                require(same or "id" not in call, "A function response has the id of another call.")
            if calls:
                text = "Please ensure that function call turn comes immediately after a user turn or after a function "
                require(before == "user", f"{text}response turn.")
            open_calls, before = calls, content["role"]
        require(not open_calls, "A function call has no response.")

    def _check_signatures(self, contents: Sequence[Fields]) -> None:
        """[GD] thought-signatures: every one is returned as it was; the first call of each step needs one."""
        asked = [
            index
            for index, content in enumerate(contents)
            if content["role"] == "user" and not any("functionResponse" in part for part in content["parts"])
        ]
        for index, content in enumerate(contents):
            for part in content["parts"]:
                if (signature := part.get("thoughtSignature")) is not None and signature != DUMMY:
                    rest = {name: value for name, value in part.items() if name != "thoughtSignature"}
                    require(_matches(rest, self._signatures.get(signature)), "Corrupted thought signature.")
            first = next((part for part in content["parts"] if "functionCall" in part), None)
            if first is not None and "thoughtSignature" not in first and index > _current_turn(asked, contents):
                name = first["functionCall"]["name"]
                refuse(
                    "Function call is missing a thought_signature in functionCall parts. This is required for tools to "
                    f"work correctly. Additional data, function call `default_api:{name}`, position {index}."
                )

    @staticmethod
    def find_schema(body: Fields) -> Fields | None:
        return _get(body, "generationConfig").get("responseJsonSchema")

    @staticmethod
    def find_system(body: Fields) -> str:
        return "".join(part["text"] for part in _get(body, "systemInstruction").get("parts", ()))

    def encode_error(self, refusal: Refusal) -> dict[str, Any]:
        details: list[Fields] = []
        if refusal.code:
            info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": refusal.code}
            details.append({**info, "domain": "googleapis.com"})
        if refusal.param:
            violation = {"field": refusal.param, "description": refusal.message}
            details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
        status = refusal.type or _STATUS.get(refusal.status, "UNKNOWN")
        error = {"code": refusal.status, "message": refusal.message, "status": status}
        return {"error": {**error, "details": details} if details else error}

    def encode_stream(self, request: VendorRequest, answer: Answer) -> list[bytes]:
        model = request.path.rpartition("/")[2].partition(":")[0]
        body, parts = request.body, self._parts(request.body, answer, MODELS[model])
        stop = answer.stop or "STOP"
        final: Fields = {"finishReason": stop}
        if answer.extra.get("continue"):
            token = f"token-{next(self._numbers)}"
            self._tokens[token] = body["contents"]
            final = {"finishReason": "CONTINUATION", "continuationToken": token}
        candidates: list[Fields] = [{"content": {"role": "model", "parts": [part]}, "index": 0} for part in parts]
        if answer.extra.get("bare_stop") or not candidates:
            candidates.append({"index": 0})
        candidates[-1] |= final
        events: list[bytes] = []
        prompt = self._count_prompt(body, MODELS[model])
        for number, candidate in enumerate(candidates, 1):  # usage is a running total
            counted = count_tokens(parts) * number // len(candidates)
            usage = {**prompt, "candidatesTokenCount": counted}
            if answer.thinking:
                usage["thoughtsTokenCount"] = count_tokens(answer.thinking)
            fields = {"usageMetadata": answer.usage or usage, "modelVersion": model, "responseId": "r-1"}
            events.append(sse({"candidates": [candidate], **fields}))
        return events

    def _count_prompt(self, body: Fields, rules: ModelRules) -> Fields:
        """Count the prompt. The longest beginning that an earlier request had is cached: [GD] caching."""
        before = [body[name] for name in ("systemInstruction", "tools") if name in body]
        prompt = json.dumps([*before, *body["contents"]])
        common = max((common_prefix(prompt, earlier) for earlier in self._prompts), default=0) // 4
        self._prompts.append(prompt)
        total = count_tokens(body["contents"]) + (count_tokens(before) if before else 0)
        cached = {"cachedContentTokenCount": common} if common >= rules.min_cached else {}
        return {"promptTokenCount": total, **cached}

    def _parts(self, body: Fields, answer: Answer, rules: ModelRules) -> list[Fields]:
        extra, thinking = answer.extra, _get(_get(body, "generationConfig"), "thinkingConfig")
        parts: list[Fields] = []
        if thinking.get("includeThoughts"):
            thoughts: list[Fields] = [{"text": thought, "thought": True} for thought in answer.thinking]
            parts += [self._sign(part) for part in thoughts] if extra.get("thoughts_signed") else thoughts
        texts: list[Fields] = [{"text": piece} for piece in split(answer.text)] if answer.text else []
        kind = extra.get("signature", "empty" if rules.signed and not answer.calls else "none")
        if kind == "text" and texts:
            texts[-1] = self._sign(texts[-1])
        parts += texts
        for number, (name, arguments) in enumerate(answer.calls):
            call: Fields = {"name": name, "args": arguments}
            if extra.get("ids", True):
                call["id"] = f"fc-{next(self._numbers)}"
            part: Fields = {"functionCall": call}
            parts.append(self._sign(part) if rules.signed and not number else part)
        return [*parts, self._sign({"text": ""})] if kind == "empty" else parts

    def _sign(self, part: Fields) -> Fields:
        """Add a signature, which is valid only with this part, and only here: Vertex AI has its own."""
        where = "vertex" if self.vertex else "gemini"
        signature = base64.b64encode(f"{where}-{next(self._numbers)}-{json.dumps(part)}".encode()).decode()
        self._signatures[signature] = part
        return {**part, "thoughtSignature": signature}


def _matches(part: Fields, sent: Fields | None) -> bool:
    """Return whether a part is the one that was signed; a client may add an id to a call that came without one: [P]."""
    if sent is None or "functionCall" not in sent or "id" in sent["functionCall"]:
        return part == sent
    call = {name: value for name, value in _get(part, "functionCall").items() if name != "id"}
    return {**part, "functionCall": call} == sent


def _current_turn(asked: Sequence[int], contents: Sequence[Fields]) -> int:
    """Return the index of the last content that a person wrote; media of results follow responses directly."""
    own = [index for index in asked if not (index and _has_responses(contents[index - 1]))]
    return own[-1] if own else -1


def _has_responses(content: Fields) -> bool:
    return any("functionResponse" in part for part in content["parts"])


def _check_media(media: Fields, name: str, where: str) -> None:
    _check_names(media, "mimeType data" if name == "inlineData" else "mimeType fileUri", f"{where}.{name}")
    kind = media.get("mimeType", "")
    require(_INPUT_TYPES.fullmatch(kind), f"Unsupported MIME type: {kind}")
    if name == "fileData":  # [GD] file-input-methods: public addresses
        require(str(media.get("fileUri")).startswith("https://"), "Invalid or unsupported file uri.")
        return
    try:
        base64.b64decode(media.get("data") or "?", validate=True)
    except binascii.Error:
        refuse("Base64 decoding failed.")


def _check_schema(schema: Any, known: str, where: str) -> None:
    """Check the keywords of a schema at every level."""
    if not isinstance(schema, dict):
        return
    fields = cast(Fields, schema)
    _check_names(fields, known, where)
    if fields.get("type") in ("array", "ARRAY") and "prefixItems" not in fields:
        require("items" in fields, f"{where}.items: missing field.")
    for name in ("properties", "$defs"):
        for key, each in cast(Fields, fields.get(name) or {}).items():
            _check_schema(each, known, f"{where}.{name}[{key}]")
    for name in ("anyOf", "oneOf", "prefixItems"):
        for each in fields.get(name) or ():
            _check_schema(each, known, f"{where}.{name}")
    for name in ("items", "additionalProperties"):
        _check_schema(fields.get(name), known, f"{where}.{name}")
