"""The doubles of chat completions refuse what their vendors refuse, and accept what the official SDK sends."""

import json
from typing import Any

import openai
import pytest

from vendors.common import KEY, Answer, Refusal, VendorRequest
from vendors.deepseek import DeepSeekDouble
from vendors.openai_chat import OpenAIChatDouble
from vendors.openai_compatible import GeminiChatDouble, GroqDouble, MistralDouble, OpenRouterDouble, VLLMDouble

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
CALL: dict[str, Any] = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CALLED = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": "Nothing."}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}

PDF = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def strict(**schema: Any) -> dict[str, Any]:
    spec = {"name": "a", "strict": True, "schema": {"type": "object", "additionalProperties": False, **schema}}
    return {"response_format": {"type": "json_schema", "json_schema": spec}}


OpenAI, DeepSeek = OpenAIChatDouble, DeepSeekDouble
REFUSED: list[tuple[type[OpenAIChatDouble], str, dict[str, Any]]] = [
    (OpenAI, "gpt-4.1", {"reasoning_content": "x"}),
    (OpenAI, "gpt-9", {}),
    (OpenAI, "o3-pro", {}),
    (OpenAI, "gpt-4.1", {"reasoning_effort": "low"}),
    (OpenAI, "gpt-5.6-sol", {"reasoning_effort": "max"}),
    (OpenAI, "gpt-6-astra", {"reasoning_effort": "none"}),
    (OpenAI, "gpt-5.6-sol", {"tools": [TOOL]}),
    (OpenAI, "gpt-6-astra", {"tools": [TOOL]}),
    (OpenAI, "gpt-5.1", {"max_tokens": 9}),
    (OpenAI, "o3", {"stop": ["END"]}),
    (OpenAI, "gpt-5.6-sol", {"temperature": 0.5}),
    (OpenAI, "gpt-5.6-sol", {"top_p": 0.5}),
    (OpenAI, "gpt-4.1", {"parallel_tool_calls": False}),
    (OpenAI, "gpt-4.1", {"tools": []}),
    (OpenAI, "gpt-4.1", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}),
    (OpenAI, "gpt-4.1", {"messages": CALLED}),
    (OpenAI, "gpt-4.1", {"messages": [*CALLED, {"role": "user", "content": "Hm."}, RESULT]}),
    (OpenAI, "gpt-4.1", {"messages": [*CALLED, RESULT, RESULT]}),
    (OpenAI, "gpt-4.1", {"messages": [*CALLED, {**RESULT, "content": [IMAGE]}]}),
    (OpenAI, "gpt-4.1", {"messages": user({"type": "file", "file": {"filename": "a.pdf", "file_data": ""}})}),
    (OpenAI, "gpt-4.1", {"messages": user({"type": "file", "file": {"file_url": "https://example.com/a.pdf"}})}),
    (OpenAI, "gpt-4.1", {"messages": user({"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}})}),
    (
        OpenAI,
        "gpt-audio",
        {"messages": user({"type": "input_audio", "input_audio": {"data": "aGk=", "format": "ogg"}})},
    ),
    (OpenAI, "gpt-4.1", {"response_format": {"type": "json_object"}}),
    (OpenAI, "gpt-4.1", strict(properties={"a": {"type": "integer"}})),
    (OpenAI, "gpt-4.1", strict(properties={"a": {"type": "integer", "default": 1}}, required=["a"])),
    (OpenAI, "gpt-4.1", strict(properties={"a": {"type": "object"}}, required=["a"])),
    (OpenAI, "gpt-4.1", strict(properties={"a": {"oneOf": [{"type": "integer"}]}}, required=["a"])),
    (OpenAI, "gpt-4.1", strict(properties={"a": {"type": "array"}}, required=["a"])),
    (OpenAI, "gpt-4.1", strict(type="array", items={"type": "integer"})),
    (DeepSeek, "deepseek-v4-pro", {"messages": [*CALLED, RESULT]}),
    (DeepSeek, "deepseek-v4-pro", {"tools": [TOOL], "tool_choice": "required"}),
    (DeepSeek, "deepseek-v4-pro", strict()),
    (GeminiChatDouble, "gemini-3.1-pro", {"messages": [*CALLED, RESULT]}),
    (MistralDouble, "mistral-large", {"stream_options": {"include_usage": True}, "stream": True}),
    (MistralDouble, "mistral-large", {"messages": [*CALLED, RESULT, {"role": "user", "content": "Hm."}]}),
    (MistralDouble, "mistral-large", {"seed": 7}),
    (
        GroqDouble,
        "openai/gpt-oss-120b",
        {"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}]},
    ),
    (DeepSeek, "deepseek-v4-pro", {"messages": user(IMAGE)}),
    (MistralDouble, "mistral-large", {"messages": user(PDF)}),
    (GroqDouble, "openai/gpt-oss-120b", {"messages": user(IMAGE)}),
    (GroqDouble, "meta-llama/llama-4-maverick", {"messages": user(PDF)}),
    (VLLMDouble, "Qwen/Qwen4-32B", {"messages": user(IMAGE)}),
    (VLLMDouble, "Qwen/Qwen4-VL-32B", {"messages": user(PDF)}),
    (OpenRouterDouble, "x-ai/grok-4.7", {"reasoning": {"effort": "low", "max_tokens": 9}}),
]


@pytest.mark.parametrize(("vendor", "model", "fields"), REFUSED)
def test_double_refuses_what_its_vendor_refuses(
    vendor: type[OpenAIChatDouble], model: str, fields: dict[str, Any]
) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi."}], **fields}
    request = VendorRequest("POST", "/v1/chat/completions", {}, {"authorization": f"Bearer {KEY}"}, _encode(body))
    with pytest.raises(Refusal):
        vendor().check(request)


def _encode(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


async def test_double_accepts_the_sdk_and_answers_in_the_format_that_it_reads() -> None:
    looked = Answer(calls=(("look", {}),))
    async with (
        OpenAIChatDouble(looked, Answer("Nothing.")) as double,
        openai.AsyncOpenAI(base_url=double.address, api_key=KEY, max_retries=0) as client,
    ):
        messages: Any = [{"role": "user", "content": "Look."}]
        tools: Any = [TOOL]
        async with client.chat.completions.stream(model="gpt-4.1", messages=messages, tools=tools) as stream:
            first = (await stream.get_final_completion()).choices[0].message
        assert first.tool_calls
        result = {**RESULT, "tool_call_id": first.tool_calls[0].id}
        messages += [first.model_dump(include={"role", "content", "tool_calls"}), result]
        del messages[1]["tool_calls"][0]["function"]["parsed_arguments"], messages[1]["tool_calls"][0]["index"]
        second = await client.chat.completions.create(model="gpt-4.1", messages=messages)
        assert second.choices[0].message.content == "Nothing."
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="gpt-5.1", messages=messages, max_tokens=9)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "max_tokens")
