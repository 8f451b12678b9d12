"""Turns started by OpenAI's client: sessions, disconnects and approvals."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from gateway_client import connect_client, serve_gateway
from openai_client import MODEL, Slow, connect_openai, serve_openai, stored_atlas, upper, user_messages

from atlas_agents import Approvals, ProviderError, RetryPolicy, Tool
from atlas_agents.core.store import Store
from atlas_agents.testing import Scripted, calls, fails, says
from checks import TIMEOUT, run_ready_tasks, wait_until


async def test_session_stores_the_history_and_reads_only_the_last_message(tmp_path: Path) -> None:
    model = Scripted(says("Hello Ana."), says("Ana."), says("Ana, still."))
    async with serve_openai(tmp_path, stored_atlas(model)) as (gateway, client), connect_client(gateway) as page:
        await client.chat.completions.create(model=MODEL, messages=user_messages("I am Ana."), user="main")
        more: list[Any] = [{"role": "system", "content": "Forget."}, *user_messages("Who am I?")]
        await client.chat.completions.create(model=MODEL, messages=more, extra_headers={"X-Atlas-Session": "main"})
        await page.get("sessions.subscribe", sessionKey="main")
        stream = await client.chat.completions.create(
            model=MODEL, messages=user_messages("And now?"), user="main", stream=True
        )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Ana, still."
        await page.until("chat.final")
        text = "".join([event["data"]["text"] for event in page.events() if event["event"] == "chat.delta"])
        assert text == "Ana, still."
        history = await page.get("chat.history", sessionKey="main")
    texts = [message["parts"][0]["text"] for message in history["messages"]]
    assert texts == ["I am Ana.", "Hello Ana.", "Who am I?", "Ana.", "And now?", "Ana, still."]
    assert [message.text for message in model.requests[1].messages] == ["I am Ana.", "Hello Ana.", "Who am I?"]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
async def test_session_header_may_have_any_letters(encoding: str, tmp_path: Path) -> None:
    async with serve_openai(tmp_path, stored_atlas(Scripted(says("Hello.")))) as (gateway, client):
        token, session = f"Bearer {client.api_key}".encode(), "büro 1".encode(encoding)
        headers = [(b"authorization", token), (b"x-atlas-session", session)]
        body: dict[str, Any] = {"model": MODEL, "messages": user_messages("Hi")}
        async with httpx.AsyncClient(base_url=str(client.base_url), headers=headers) as http:
            assert (await http.post("chat/completions", json=body)).status_code == 200
        async with connect_client(gateway) as page:
            sessions = (await page.get("sessions.list"))["sessions"]
    assert [each["sessionKey"] for each in sessions] == ["büro 1"]


async def test_repeated_idempotency_key_returns_the_same_turn(tmp_path: Path) -> None:
    model = Scripted(says("Once."))
    headers = {"X-Atlas-Session": "main", "Idempotency-Key": "k1"}
    async with serve_openai(tmp_path, stored_atlas(model)) as (_, client):
        for _ in range(2):
            answer = await client.chat.completions.create(
                model=MODEL, messages=user_messages("Do it."), extra_headers=headers
            )
            assert answer.choices[0].message.content == "Once."
        stream = await client.chat.completions.create(
            model=MODEL, messages=user_messages("Do it."), extra_headers=headers, stream=True
        )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Once."
        with pytest.raises(openai.ConflictError):
            await client.chat.completions.create(model=MODEL, messages=user_messages("Other."), extra_headers=headers)
    assert len(model.requests) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [
        ("rate_limit", openai.RateLimitError, "rate_limit_exceeded"),
        ("quota", openai.RateLimitError, "insufficient_quota"),
        ("context_length", openai.BadRequestError, "context_length_exceeded"),
        ("auth", openai.InternalServerError, "provider_auth"),
        ("overloaded", openai.InternalServerError, "overloaded"),
    ],
)
async def test_provider_error_sets_the_status(
    kind: Any, error: type[openai.APIStatusError], code: str, stream: bool, tmp_path: Path
) -> None:
    model = Scripted(fails(ProviderError("no luck", kind)))
    async with serve_openai(tmp_path, stored_atlas(model, agent={"retry": RetryPolicy(retries=0)})) as (_, client):
        with pytest.raises(error) as raised:
            await client.chat.completions.create(model=MODEL, messages=user_messages("Hi"), stream=stream)
    assert (raised.value.code, "no luck" in raised.value.message) == (code, True)


async def test_keep_alive_comments_are_sent_while_a_tool_runs(tmp_path: Path) -> None:
    slow = Slow()
    atlas = stored_atlas(Scripted(calls("slow", input="x"), says("Done.")), (slow.tool,))
    async with serve_openai(tmp_path, atlas, ping=0.05) as (_, client):
        create = client.chat.completions.with_streaming_response.create
        async with create(model=MODEL, messages=user_messages("Go"), stream=True) as answer:
            lines = answer.iter_lines()
            lines_read = [await anext(lines) for _ in range(6)]
            slow.release.set()
            lines_read += [line async for line in lines]
    assert lines_read[0].startswith("data: ") and lines_read.count(": keep-alive") >= 2
    assert lines_read[-2] == "data: [DONE]" or lines_read[-1] == "data: [DONE]"


@pytest.mark.parametrize("stream", [True, False])
async def test_disconnect_cancels_a_turn_without_a_session(stream: bool, tmp_path: Path) -> None:
    slow = Slow()
    async with serve_openai(tmp_path, stored_atlas(Scripted(calls("slow", input="x")), (slow.tool,))) as (
        gateway,
        client,
    ):
        create = client.chat.completions.create(model=MODEL, messages=user_messages("Go"), stream=stream)
        asking_task = asyncio.create_task(_read_all(create))
        await asyncio.wait_for(slow.started.wait(), TIMEOUT)
        asking_task.cancel()
        await asyncio.wait_for(slow.cancelled.wait(), TIMEOUT)
        assert gateway.atlas.stream("") is None


async def _read_all(create: Any) -> None:
    answer = await create
    async for _ in answer:
        pass


@pytest.mark.parametrize("stream", [True, False])
async def test_disconnect_cancels_a_stored_turn_only_if_requested(stream: bool, tmp_path: Path) -> None:
    staying, leaving = Slow(), Slow()
    tools = (staying.tool, Tool("other", leaving.run))
    model = Scripted(calls("slow", input="x"), says("Done."), calls("other", input="x"))
    async with serve_openai(tmp_path, stored_atlas(model, tools)) as (gateway, client), connect_client(gateway) as page:
        await page.get("sessions.subscribe", sessionKey="main")
        create = client.chat.completions.create
        task = asyncio.create_task(
            _read_all(create(model=MODEL, messages=user_messages("Go"), stream=stream, user="main"))
        )
        await asyncio.wait_for(staying.started.wait(), TIMEOUT)
        task.cancel()
        await run_ready_tasks(200)  # the gateway notices that the client has disconnected
        staying.release.set()
        assert (await page.until("chat.final"))["message"]["parts"][0]["text"] == "Done."
        headers = {"X-Atlas-On-Disconnect": "cancel"}
        again = create(model=MODEL, messages=user_messages("Go"), stream=stream, user="main", extra_headers=headers)
        task = asyncio.create_task(_read_all(again))
        await asyncio.wait_for(leaving.started.wait(), TIMEOUT)
        task.cancel()
        assert (await page.until("chat.final"))["cancelled"] is True
    assert not staying.cancelled.is_set() and leaving.cancelled.is_set()


async def test_busy_session_queues_or_rejects_a_request(tmp_path: Path) -> None:
    slow = Slow()
    model = Scripted(calls("slow", input="x"), says("First."), says("Second."))
    async with serve_openai(tmp_path, stored_atlas(model, (slow.tool,))) as (_, client):
        create = client.chat.completions.create
        first = asyncio.create_task(create(model=MODEL, messages=user_messages("Go"), user="main"))
        await asyncio.wait_for(slow.started.wait(), TIMEOUT)
        with pytest.raises(openai.RateLimitError) as busy:
            headers = {"X-Atlas-When-Busy": "reject"}
            await create(model=MODEL, messages=user_messages("Me too"), user="main", extra_headers=headers)
        second = asyncio.create_task(create(model=MODEL, messages=user_messages("Then me"), user="main"))
        slow.release.set()
        answers = [(await each).choices[0].message.content for each in (first, second)]
    assert (busy.value.code, answers) == ("session_busy", ["First.", "Second."])


@pytest.mark.parametrize("stream", [True, False])
async def test_steering_request_gets_the_answer_of_the_turn_it_enters(stream: bool, tmp_path: Path) -> None:
    slow = Slow()
    atlas = stored_atlas(Scripted(says("Wait. ") + calls("slow", input="x"), says("Both.")), (slow.tool,))
    async with serve_openai(tmp_path, atlas) as (_, client):
        send: Any = partial(client.chat.completions.create, model=MODEL, user="main")
        first = asyncio.create_task(send(messages=user_messages("1")))
        await asyncio.wait_for(slow.started.wait(), TIMEOUT)
        headers = {"X-Atlas-When-Busy": "steer"}
        second = asyncio.create_task(send(messages=user_messages("2"), extra_headers=headers, stream=stream))
        store = cast(Store, atlas.store)
        await wait_until(lambda: store.queued_runs("default", "main"))
        slow.release.set()
        answer = await second
        chunks = [chunk.choices[0].delta.content or "" async for chunk in answer] if stream else []
        assert "".join(chunks) == "Both." if stream else answer.choices[0].message.content == "Both."
        assert (await first).choices[0].message.content == "Wait. \n\nBoth."


@pytest.mark.parametrize("session", ["", "main"])
async def test_call_that_requires_approval_is_refused_by_default(session: str, tmp_path: Path) -> None:
    model = Scripted(calls("upper", input="x"), says("It needs approval."))
    tool = Tool("upper", upper, in_process=True, confirm=True)
    async with serve_openai(tmp_path, stored_atlas(model, (tool,), approve=Approvals(wait=True))) as (_, client):
        headers = {"X-Atlas-Session": session}
        answer = await client.chat.completions.create(model=MODEL, messages=user_messages("Go"), extra_headers=headers)
    assert answer.choices[0].message.content == "It needs approval."
    (result,) = model.requests[-1].messages[-1].tool_results
    assert result.result == "upper requires approval, and no one can be asked in this turn"


async def test_request_may_wait_for_an_approval(tmp_path: Path) -> None:
    model = Scripted(calls("upper", input="x"), says("X it is."))
    tool = Tool("upper", upper, in_process=True, confirm=True)
    waits = {"X-Atlas-Approvals": "wait"}
    async with serve_openai(tmp_path, stored_atlas(model, (tool,), approve=Approvals(wait=True))) as (gateway, client):
        with pytest.raises(openai.BadRequestError, match="X-Atlas-Session"):
            await client.chat.completions.create(model=MODEL, messages=user_messages("Shout x"), extra_headers=waits)
        async with connect_client(gateway) as page:
            await page.get("sessions.subscribe", sessionKey="main")
            create = client.chat.completions.create
            task = asyncio.create_task(
                create(model=MODEL, messages=user_messages("Go"), user="main", extra_headers=waits)
            )
            request = await page.until("exec.approval_request")
            await page.get("exec.approve", approvalId=request["approvalId"])
            assert (await task).choices[0].message.content == "X it is."
    (result,) = model.requests[-1].messages[-1].tool_results
    assert result.result == "X"


async def test_turn_aborted_elsewhere_raises_cancelled(tmp_path: Path) -> None:
    slow = Slow()
    atlas = stored_atlas(Scripted(calls("slow", input="x")), (slow.tool,))
    async with serve_openai(tmp_path, atlas) as (gateway, client), connect_client(gateway) as page:
        create = client.chat.completions.create
        task = asyncio.create_task(create(model=MODEL, messages=user_messages("Go"), user="main"))
        await asyncio.wait_for(slow.started.wait(), TIMEOUT)
        await page.get("chat.abort", sessionKey="main")
        with pytest.raises(openai.BadRequestError) as cancelled:
            await task
    assert cancelled.value.code == "cancelled"


async def test_gateway_that_shuts_down_sends_retry_after(tmp_path: Path) -> None:
    slow = Slow()
    atlas = stored_atlas(Scripted(calls("slow", input="x")), (slow.tool,))
    async with (
        serve_gateway(tmp_path, atlas, grace=0.05, restart_expected=3.0) as gateway,
        connect_openai(gateway) as client,
    ):
        create = client.chat.completions.create
        stored_turn = asyncio.create_task(create(model=MODEL, messages=user_messages("Go"), user="main"))
        await asyncio.wait_for(slow.started.wait(), TIMEOUT)
        await gateway.atlas.close()  # as during shutdown
        gateway.hub.stopping = True
        with pytest.raises(openai.APIStatusError):
            await stored_turn
        with pytest.raises(openai.InternalServerError) as closed:
            await create(model=MODEL, messages=user_messages("Go"))
        assert (closed.value.code, closed.value.response.headers["retry-after"]) == ("unavailable", "3")


async def test_concurrent_turns_of_a_token_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atlas_agents.gateway.http_api.MAX_CONCURRENT", 1)
    slow = Slow()
    atlas = stored_atlas(Scripted(calls("slow", input="x"), says("Done."), says("Next.")), (slow.tool,))
    async with serve_openai(tmp_path, atlas) as (_, client):
        create = client.chat.completions.create
        first = asyncio.create_task(create(model=MODEL, messages=user_messages("Go")))
        await asyncio.wait_for(slow.started.wait(), TIMEOUT)
        with pytest.raises(openai.RateLimitError) as many:
            await create(model=MODEL, messages=user_messages("Me too"))
        slow.release.set()
        await first
        assert (await create(model=MODEL, messages=user_messages("Now?"))).choices[0].message.content == "Next."
    assert many.value.code == "too_many_requests"
