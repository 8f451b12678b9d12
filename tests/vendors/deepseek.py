"""Strict double of DeepSeek's chat completions. Source: api-docs.deepseek.com/guides/thinking_mode, unless noted.

`Answer.thinking` is streamed as `reasoning_content`; the double expects it back, unchanged, with
the calls that followed.
"""

from typing import Any, ClassVar

from vendors.common import Answer, Refusal, content_parts, refuse, require, split
from vendors.openai_chat import OpenAIChatDouble

_MODELS = ("deepseek-v4-flash", "deepseek-v4-pro", "deepseek-flash")
# api-docs.deepseek.com/api/create-chat-completion
_FIELDS = {
    *("messages", "model", "stream", "stream_options", "thinking", "reasoning_effort", "max_tokens", "stop", "tools"),
    *("tool_choice", "response_format", "logprobs", "top_logprobs", "user_id"),
}
_IGNORED = {"temperature", "top_p", "presence_penalty", "frequency_penalty"}
_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max", "ultra")


class DeepSeekDouble(OpenAIChatDouble):
    """DeepSeek: reasoning is on by default, and comes back with every message that has tool calls."""

    message_fields: ClassVar[dict[str, set[str]]] = {
        **OpenAIChatDouble.message_fields,
        "assistant": {*OpenAIChatDouble.message_fields["assistant"], "reasoning_content", "prefix"},
    }

    def __init__(self, *answers: Any, then: Any = None) -> None:
        super().__init__(*answers, then=then)
        self._thoughts: dict[str, str] = {}
        self._thinking = True

    @property
    def address(self) -> str:
        return self.url

    def check_fields(self, body: dict[str, Any]) -> None:
        self.ignored |= set(body) - _FIELDS - (_IGNORED if not self._is_thinking(body) else set[str]())

    def check_model(self, body: dict[str, Any]) -> None:
        require(body["model"] in _MODELS, "Model Not Exist", code="invalid_request_error")
        self._thinking = self._is_thinking(body)
        effort = body.get("reasoning_effort")
        require(effort is None or effort in _EFFORTS, f"unknown variant `{effort}`", code="invalid_request_error")

    def check_assistant(self, message: dict[str, Any], where: str) -> list[str]:
        ids = super().check_assistant(message, where)
        if ids and self._thinking:  # opencode#24722
            reasoning = message.get("reasoning_content")
            expected = next((self._thoughts[id] for id in ids if id in self._thoughts), reasoning)
            if reasoning is None or reasoning != expected:
                refuse("The `reasoning_content` in the thinking mode must be passed back to the API.")
        return ids

    def check_content(self, message: dict[str, Any], where: str) -> None:
        """Only text: rikkahub#1433, llm-for-zotero#143."""
        for part in content_parts(message):
            problem = f"Failed to deserialize the JSON body: {where}: unknown variant `{part['type']}`, expected `text`"
            require(part["type"] == "text", problem)

    def check_tools(self, body: dict[str, Any]) -> None:
        super().check_tools(body)
        forced = body.get("tool_choice") not in (None, "auto", "none")
        require(not (forced and self._thinking), "Thinking mode does not support this tool_choice")

    def check_format(self, body: dict[str, Any]) -> None:
        format = body.get("response_format", {}).get("type")
        require(format != "json_schema", "This response_format type is unavailable now")
        if format == "json_object":
            mentioned = "json" in str(body["messages"]).lower()
            require(mentioned, "Prompt must contain the word 'json' in some form to use 'response_format'.")

    def encode_error(self, refusal: Refusal) -> dict[str, Any]:
        return {
            "error": {
                "message": refusal.message,
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_request_error",
            }
        }

    def reasoning_deltas(self, answer: Answer) -> list[dict[str, Any]]:
        thought = "".join(answer.thinking) if self._thinking else ""
        return [{"content": None, "reasoning_content": piece} for piece in split(thought) if piece]

    def call_extras(self, id: str, index: int, answer: Answer) -> dict[str, Any]:
        self._thoughts[id] = "".join(answer.thinking)
        return {}

    def count_usage(self, body: dict[str, Any], answer: Answer) -> dict[str, Any]:
        usage = super().count_usage(body, answer)
        hit = usage.pop("prompt_tokens_details")["cached_tokens"]
        return {**usage, "prompt_cache_hit_tokens": hit, "prompt_cache_miss_tokens": usage["prompt_tokens"] - hit}

    def _is_thinking(self, body: dict[str, Any]) -> bool:
        return body.get("thinking", {}).get("type") != "disabled"
