"""Memory: long answers are stopped, memory is given back, and new turns are refused before the limit is reached."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from gateway_client import connect_client, http, main_token, serve_gateway
from processes import Process, connect_process, run_gateway

import fork_server
from atlas_agents.agents.runner import ConversationCache
from atlas_agents.core.messages import Message, Text
from atlas_agents.gateway.hub import MemoryGuard
from checks import TIMEOUT, wait_until

MB = 1 << 20
SLOW_READERS = "32"
"""MB that may wait for a client: the six of a test share one process, which reads slower than the gateway sends."""


async def send_and_wait(process: Process, session: str) -> dict[str, Any]:
    async with connect_process(process, max_size=None) as client:
        answer = await client.request("chat.send", sessionKey=session, message="Go")
        if "error" in answer:
            return answer["error"]
        return await client.until("chat.final", "chat.error")


@pytest.mark.slow
async def test_six_huge_answers_at_once_are_stopped_and_their_memory_is_given_back(tmp_path: Path) -> None:
    environment = {"MEMORY": "500", "QUEUED": SLOW_READERS}
    async with run_gateway(tmp_path, *["*27000"] * 24, pause=0.0, environment=environment) as process:
        before = process.memory()
        ended = await asyncio.gather(*[send_and_wait(process, f"s{n}") for n in range(6)])
        assert all("the answer exceeds 4 million characters" in each["message"] for each in ended)
        await wait_until(lambda: process.memory() < before + 64 * MB)
        assert not process.ended


@pytest.mark.slow
async def test_long_answer_below_the_limit_is_complete_and_its_memory_is_given_back(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, *["*4000"] * 6, pause=0.0, environment={"QUEUED": SLOW_READERS}) as process:
        before = process.memory()
        ended = await asyncio.gather(*[send_and_wait(process, f"s{n}") for n in range(6)])
        assert [each for each in ended if isinstance(each["message"], str)] == []
        assert {len(each["message"]["parts"][0]["text"]) for each in ended} == {4_096_000}
        await wait_until(lambda: process.memory() < before + 96 * MB)


@pytest.mark.slow
async def test_new_turns_are_refused_near_the_memory_limit(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "Hi.", environment={"MEMORY": "2000", "USED": "1700"}) as process:
        error = await send_and_wait(process, "s")
        assert error["data"]["kind"] == "UNAVAILABLE" and error["data"]["retryable"]
        assert "memory is nearly exhausted" in error["message"]
        assert not process.ended


async def test_http_turns_are_refused_with_503_near_the_memory_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def problem(_: MemoryGuard) -> str:
        return "memory is nearly exhausted"

    monkeypatch.setattr(MemoryGuard, "problem", problem)
    async with serve_gateway(tmp_path) as gateway:
        body = '{"model": "assistant", "messages": [{"role": "user", "content": "Hello"}]}'
        request = "POST /v1/chat/completions"
        status, answer = await http(
            gateway, request, body=body, Authorization=f"Bearer {main_token(gateway)}", Content_Type="application/json"
        )
        assert status == 503 and "memory is nearly exhausted" in answer and "retry-after: 5" in answer.lower()
        async with connect_client(gateway) as client:
            assert (await client.get("sessions.list"))["sessions"] == [], "reading still works"


def test_conversations_in_memory_are_limited_by_size() -> None:
    cache = ConversationCache(max_size=64, max_tokens=2500)
    for name in ("a", "b", "c"):
        conversation = cache.get(name)
        conversation.messages.append(Message("user", (Text("x" * 3600),)))
        cache.measure(conversation)
        del conversation
    assert [len(cache.get(name).messages) for name in ("c", "b", "a")] == [1, 1, 0]


def test_turn_that_has_ended_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    program = str(Path(__file__).parent / "freed_turns.py")
    ended = fork_server.run(program, str(tmp_path), timeout=TIMEOUT)
    assert ended.stdout == "True 0\n", ended.stderr
