"""Callable providers: sync or async functions that return a chat completion as a dict or an object."""

import asyncio
import threading
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from atlas_agents import ProviderError, Request, RetryPolicy, Usage, tool
from atlas_agents.testing import VirtualClock, in_memory_atlas
from checks import TIMEOUT, collect_events, monitor_loop

ONE_SHOT = {"retry": RetryPolicy(retries=0)}


@tool
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"Sunny in {city}"


def call(arguments: Any, id: str = "c1", name: str = "weather") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def completion(content: str | None, *tool_calls: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = list(tool_calls)
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-x",
        "choices": [
            {"index": 0, "message": message, "finish_reason": finish or ("tool_calls" if tool_calls else "stop")}
        ],
        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
    }


def as_dict(shape: dict[str, Any]) -> Any:
    return shape


def as_attributes(shape: Any) -> Any:
    """Convert a dict to objects with attributes, recursively."""
    if isinstance(shape, dict):
        return SimpleNamespace(**{key: as_attributes(value) for key, value in shape.items()})
    if isinstance(shape, list):
        return [as_attributes(item) for item in shape]
    return shape


def as_sdk(shape: dict[str, Any]) -> Any:
    return ChatCompletion.model_validate(shape)


@pytest.mark.parametrize("shaped", [as_dict, as_attributes, as_sdk])
@pytest.mark.parametrize("kind", ["sync", "async", "object", "partial", "lambda"])
async def test_any_callable_may_return_a_completion_in_any_form(kind: str, shaped: Any) -> None:
    def sync(request: Request) -> Any:
        last = request.messages[-1]
        if last.role == "tool":
            return shaped(completion(f"It is: {last.tool_results[0].result}."))
        return shaped(completion(None, call('{"city": "Lima"}')))

    async def later(request: Request) -> Any:
        await asyncio.sleep(0)
        return sync(request)

    def with_name(name: str, request: Request) -> Any:
        return sync(request)

    class Provider:
        async def __call__(self, request: Request) -> Any:
            return sync(request)

    models: dict[str, Any] = {
        "sync": sync,
        "async": later,
        "object": Provider(),
        "partial": partial(with_name, "x"),
        "lambda": lambda request: later(request),
    }
    async with in_memory_atlas(models[kind], [weather]) as atlas:
        result = await atlas.run("Lima?")
    assert result.answer == "It is: Sunny in Lima."
    assert result.usage == Usage(24, 6)
    assert result.message.metadata["model"] == "gpt-x"


async def test_callable_receives_the_request() -> None:
    asked: list[Request] = []

    def model(request: Request) -> Any:
        asked.append(request)
        return completion("ok")

    settings = {"system_prompt": "Be brief.", "metadata": {"user": "Al"}, "temperature": 0.1}
    async with in_memory_atlas(model, [weather], agent=settings) as atlas:
        await atlas.ask("Lima?")
    (request,) = asked
    assert [message.text for message in request.messages] == ["Lima?"]
    assert [spec.name for spec in request.tools] == ["weather"]
    assert (request.system, request.settings.temperature) == ("Be brief.", 0.1)
    assert request.metadata is not None and request.metadata.get("user") == "Al"


async def test_arguments_may_be_text_an_object_or_missing() -> None:
    @tool
    async def ping(note: str = "none") -> str:
        """Ping."""
        return note

    calls = [
        call(given, id=f"c{place}", name="ping")
        for place, given in enumerate(['{"note": "a"}', {"note": "b"}, "", None])
    ]
    answers = iter([completion("Pinging.", *calls), completion("Done.")])

    def model(request: Request) -> Any:
        return next(answers)

    async with in_memory_atlas(model, [ping]) as atlas:
        result = await atlas.run("go")
    assert [step.output for step in result.steps] == ["a", "b", "none", "none"]
    assert [call.id for call in result.intermediate[0].tool_calls] == ["c0", "c1", "c2", "c3"]
    assert result.intermediate[0].text == "Pinging."


async def test_two_complete_calls_with_the_same_id_stay_separate() -> None:
    answers = iter([completion(None, call('{"city": "Lima"}'), call('{"city": "Oslo"}')), completion("Done.")])

    def model(request: Request) -> Any:
        return next(answers)

    async with in_memory_atlas(model, [weather]) as atlas:
        result = await atlas.run("go")
    assert [step.output for step in result.steps] == ["Sunny in Lima", "Sunny in Oslo"]


async def test_missing_usage_is_estimated() -> None:
    def model(request: Request) -> Any:
        return {"choices": [{"message": {"content": "x" * 36}, "finish_reason": "stop"}]}

    async with in_memory_atlas(model) as atlas:
        result = await atlas.run("y" * 36)
    assert result.usage.estimated
    assert result.usage.output_tokens == 10
    assert 10 <= result.usage.input_tokens <= 40
    assert result.message.metadata["estimated"] is True


async def test_answer_of_a_callable_is_one_chunk() -> None:
    def model(request: Request) -> Any:
        return completion("Hello there.")

    async with in_memory_atlas(model) as atlas:
        events = await collect_events(atlas.send("Hi"))
    assert [event.text for event in events if event.type == "stream:chunk"] == ["Hello there."]


async def test_sync_callable_does_not_block_the_event_loop() -> None:
    async with monitor_loop() as monitor:

        def model(request: Request) -> Any:
            return completion(f"alive: {monitor.keeps_running()}")

        async with in_memory_atlas(model) as atlas:
            assert (await atlas.ask("Hi")).text == "alive: True"


async def test_sync_callables_run_concurrently() -> None:
    """More calls than a default thread pool has threads run concurrently."""
    together = threading.Barrier(50, timeout=TIMEOUT)

    def model(request: Request) -> Any:
        together.wait()
        return completion("met")

    async with in_memory_atlas(model) as atlas, asyncio.timeout(TIMEOUT):
        replies = await asyncio.gather(*(atlas.ask("Hi", session=str(n)) for n in range(50)))
    assert {reply.text for reply in replies} == {"met"}


# Errors


@dataclass
class SdkError(Exception):
    """An error like those of the vendors' SDKs."""

    status_code: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def response(self) -> Any:
        return SimpleNamespace(headers=self.headers)


ERRORS: list[tuple[Exception, str, int | None, bool]] = [
    (SdkError(400), "bad_request", 400, False),
    (SdkError(401), "auth", 401, False),
    (SdkError(403), "auth", 403, False),
    (SdkError(404), "model_not_found", 404, False),
    (SdkError(413), "context_length", 413, False),
    (SdkError(422), "bad_request", 422, False),
    (SdkError(429), "rate_limit", 429, True),
    (SdkError(429, {"error": {"code": "insufficient_quota", "message": "pay"}}), "quota", 429, False),
    (SdkError(500), "server", 500, True),
    (SdkError(503), "overloaded", 503, True),
    (SdkError(529), "overloaded", 529, True),
    (ConnectionResetError("gone"), "unknown", None, True),
    (ValueError("typo"), "unknown", None, True),
    (ProviderError("mine", "timeout"), "timeout", None, True),
]


@pytest.mark.parametrize(("error", "kind", "status", "retryable"), ERRORS, ids=[repr(case[0])[:40] for case in ERRORS])
async def test_exception_of_a_callable_becomes_a_provider_error(
    error: Exception, kind: str, status: int | None, retryable: bool
) -> None:
    def model(request: Request) -> Any:
        raise error

    async with in_memory_atlas(model, agent=ONE_SHOT) as atlas:
        with pytest.raises(ProviderError) as caught:
            await atlas.ask("Hi")
    assert (caught.value.kind, caught.value.status, caught.value.retryable) == (kind, status, retryable)
    if not isinstance(error, ProviderError):
        cause = caught.value.__cause__
        assert error in (cause, cause and cause.__cause__)


async def test_transient_error_is_retried_after_its_retry_after() -> None:
    clock, moments = VirtualClock(), list[float]()

    async def model(request: Request) -> Any:
        moments.append(clock.monotonic())
        if len(moments) == 1:
            raise SdkError(429, headers={"retry-after": "7"})
        return completion("ok")

    async with in_memory_atlas(model, clock=clock) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("Hi")
        await clock.advance(7)
        assert (await stream.reply()).text == "ok"
    assert moments == [0, 7]


def loop() -> Any:
    found: dict[str, Any] = {}
    found["choices"] = found
    return found


NO_COMPLETION: list[tuple[str, Any, str]] = [
    ("None", None, "must return a text or a chat completion, got NoneType"),
    ("number", 7, "must return a text or a chat completion, got int"),
    ("list", [completion("x")], "must return a text or a chat completion, got list"),
    ("cycle", loop(), "did not return a chat completion"),
    ("bare object", {"choices": [{"message": {"content": object()}}]}, "did not return a chat completion"),
    ("wrong type", {"choices": [{"message": {"content": 7}, "finish_reason": "stop"}]}, "content"),
]


@pytest.mark.parametrize(("name", "given", "words"), NO_COMPLETION, ids=[case[0] for case in NO_COMPLETION])
async def test_invalid_completion_error_names_the_callable(name: str, given: Any, words: str) -> None:
    def mine(request: Request) -> Any:
        return given

    async with in_memory_atlas(mine, agent=ONE_SHOT) as atlas:
        with pytest.raises(ProviderError, match=words) as caught:
            await atlas.ask("Hi")
        assert caught.value.kind in ("protocol", "incomplete", "empty_response", "bad_request")
        assert len(atlas.conversation()) == 1


async def test_truncated_call_never_runs() -> None:
    ran: list[str] = []

    async def pay(to: str) -> None:
        ran.append(to)

    answers = iter([completion(None, call('{"to": "bo', name="pay"), finish="length"), completion("Sorry.")])

    def model(request: Request) -> Any:
        return next(answers)

    async with in_memory_atlas(model, [pay]) as atlas:
        result = await atlas.run("pay")
    assert ran == []
    (step,) = result.steps
    assert step.status == "error" and step.output.endswith("Nothing was run; call again with one JSON object.")
