"""OpenTelemetry: the spans and metrics of turns, as a collector receives them from the exporter of the SDK."""

import asyncio
import base64
import json
import socket
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from atlas_agents import (
    Agent,
    Answer,
    Approvals,
    Atlas,
    Chunk,
    Compaction,
    ConfigError,
    History,
    OpenTelemetry,
    ProviderError,
    Request,
    Schedule,
    ToolContext,
    tool,
)
from atlas_agents.builtin_tools.team import delegate_task
from atlas_agents.core.telemetry import current_span, read_trace_context
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Scripted, calls, fails, in_memory_atlas, says
from checks import TIMEOUT, wait_until
from otlp_collector import Collector, collector

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3


class Exporting:
    """The SDK with exporters to a collector; `flush` sends what there is."""

    def __init__(self, url: str) -> None:
        self.collector: Collector | None = None
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces", timeout=1)))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{url}/v1/metrics", timeout=1), 3_600_000)
        self.meters = MeterProvider([reader])

    def telemetry(self, **options: Any) -> OpenTelemetry:
        return OpenTelemetry(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def flush(self) -> Collector:
        assert self.collector is not None
        self.tracers.force_flush()
        self.meters.force_flush()
        return self.collector

    def shutdown(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()


@contextmanager
def exporting(url: str) -> Generator[Exporting]:
    sdk = Exporting(url)
    try:
        yield sdk
    finally:
        sdk.shutdown()


@pytest.fixture
def sdk() -> Generator[Exporting]:
    with collector() as collected, exporting(collected.url) as found:
        found.collector = collected
        yield found


async def close_store(atlas: Atlas) -> None:
    assert isinstance(atlas.store, SqliteStore)
    await atlas.store.close()


@tool(effect="pure")
async def weather(city: str) -> str:
    """Return the weather."""
    return f"sunny in {city}"


async def test_turn_is_a_tree_of_spans_with_the_names_of_the_conventions(sdk: Exporting) -> None:
    model = Scripted(calls("weather", city="Lima"), says("Sunny."), id="openai/gpt-5.6")
    atlas = in_memory_atlas(model, [weather], telemetry=sdk.telemetry(), agent={"name": "Guide"})
    await atlas.ask("How is the weather in Lima?", session="s1")
    collected = sdk.flush()
    turn = collected.one("invoke_agent")
    assert collected.tree(turn.trace_id) == [
        "invoke_agent Guide",
        "  round 1",
        "    chat openai/gpt-5.6",
        "    execute_tool weather",
        "  round 2",
        "    chat openai/gpt-5.6",
    ]
    assert turn.attributes["gen_ai.agent.id"] == "assistant"
    assert turn.attributes["gen_ai.conversation.id"] == "s1"
    assert turn.attributes["atlas.run.status"] == "done"
    chat, _ = sorted(collected.named("chat"), key=lambda each: each.start)
    assert chat.attributes["gen_ai.operation.name"] == "chat"
    assert chat.attributes["gen_ai.provider.name"] == "openai"
    assert chat.attributes["gen_ai.request.model"] == "gpt-5.6"
    assert chat.attributes["gen_ai.usage.output_tokens"] >= 0
    assert chat.attributes["gen_ai.response.time_to_first_chunk"] >= 0
    call = collected.one("execute_tool")
    assert call.attributes["gen_ai.tool.name"] == "weather"
    assert call.attributes["atlas.tool.status"] == "ok"
    assert chat.start <= chat.end <= call.start <= call.end <= turn.end


async def test_content_is_not_exported_unless_it_is_captured(sdk: Exporting) -> None:
    question = f"How is the weather? My key is {SECRET}"
    for captured in (False, True):
        model = Scripted(calls("weather", city="Lima"), says("Sunny everywhere."), id="openai/gpt-5.6")
        atlas = in_memory_atlas(model, [weather], telemetry=sdk.telemetry(capture_content=captured))
        await atlas.ask(question)
        text = str([span.attributes for span in sdk.flush().spans])
        assert ("How is the weather?" in text) is captured
        assert ("Lima" in text) is captured
        assert ("Sunny everywhere" in text) is captured
        assert SECRET not in text


async def test_captured_content_has_no_password_that_a_result_or_reply_repeats(sdk: Exporting) -> None:
    password = 'tiger-"Wq7"-lake-93'

    @tool(effect="pure")
    async def login(user: str, password: str) -> dict[str, str]:
        """Log in."""
        return {"note": f"logged in with {password}"}

    replies = [calls("login", user="ann", password=password), says(f"I used {password}."), says(f"It was {password}.")]
    atlas = in_memory_atlas(Scripted(*replies), [login], telemetry=sdk.telemetry(capture_content=True))
    await atlas.ask("Log in", session="s")
    await atlas.ask("Which password was it?", session="s")
    spans = sdk.flush().spans
    captured = [str(value) for span in spans for name, value in span.attributes.items() if name.startswith("gen_ai.")]
    assert any("logged in with" in text for text in captured) and any("I used" in text for text in captured)
    assert any("It was" in text for text in captured)
    assert not [text for text in captured if "tiger" in text or "lake-93" in text]


async def test_captured_content_has_no_secret_of_a_result_and_none_in_another_encoding(sdk: Exporting) -> None:
    password, token = "tiger-Wq7/lake-93", "otter-Zx81-pond-40"
    written = [base64.b64encode(f"ann:{password}".encode()).decode(), quote(password, safe=""), password.encode().hex()]

    @tool(effect="pure")
    async def login(user: str, password: str) -> str:
        """Log in."""
        return json.dumps({"sent": written, "session_token": token})

    replies = [calls("login", user="ann", password=password), says(f"I sent {written} and got {token}."), says("Yes.")]
    atlas = in_memory_atlas(Scripted(*replies), [login], telemetry=sdk.telemetry(capture_content=True))
    await atlas.ask("Log in", session="s")
    await atlas.ask("Is that all?", session="s")
    attributes = [span.attributes for span in sdk.flush().spans]
    captured = [str(value) for each in attributes for name, value in each.items() if name.startswith("gen_ai.")]
    assert any("I sent" in text for text in captured)
    assert not [text for text in captured for secret in (*written, token) if secret[4:-4] in text]


async def test_failures_have_their_kind_but_no_message(sdk: Exporting) -> None:
    @tool
    async def explode() -> str:
        """Fail."""
        raise RuntimeError(f"the key {SECRET} is wrong")

    model = Scripted(calls("explode"), fails(ProviderError("no money: " + SECRET, "quota")), id="openai/gpt-5.6")
    atlas = in_memory_atlas(model, [explode], telemetry=sdk.telemetry())
    with pytest.raises(ProviderError):
        await atlas.ask("Go")
    collected = sdk.flush()
    assert collected.one("execute_tool").attributes["error.type"] == "internal"
    assert collected.one("execute_tool").failed
    assert collected.one("invoke_agent").attributes["error.type"] == "quota"
    assert collected.one("invoke_agent").attributes["atlas.run.status"] == "failed"
    assert SECRET not in str(collected.spans)


async def test_approval_wait_is_a_span(sdk: Exporting) -> None:
    @tool(confirm=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    store = MemoryStore()
    model = Scripted(calls("pay"), says("Paid."))
    atlas = in_memory_atlas(model, [pay], telemetry=sdk.telemetry(), store=store, approve=Approvals(wait=True))
    stream = atlas.send("Pay", session="s")
    (question,) = await wait_until(atlas.pending)
    await atlas.answer(question.id, Answer("once", by="ana"))
    await stream.reply()
    wait = sdk.flush().one("wait_for_approval pay")
    assert wait.attributes["atlas.approval.decision"] == "once"
    assert wait.end > wait.start


class Summarising(Scripted):
    """A model that answers at length, and writes a summary where one is requested."""

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        summary = "You compress the history" in request.system
        reply = says("<summary>Long answers.</summary>" if summary else "A long answer. " + "y" * 900)
        async for chunk in Scripted(reply).stream(request):
            yield chunk


async def test_summary_of_older_messages_is_a_span_with_its_model_call(sdk: Exporting) -> None:
    history = History(compaction=Compaction(window=1500))
    atlas = in_memory_atlas(Summarising(), telemetry=sdk.telemetry(), history=history)
    for _ in range(8):
        await atlas.ask("Go on " + "x" * 300, session="s")
    collected = sdk.flush()
    summary = collected.named("compact_context")[0]
    assert summary.attributes["atlas.compaction.messages"] > 0 and not summary.failed
    assert [span.name for span in collected.spans if span.parent_id == summary.span_id] == ["chat scripted"]


async def test_turn_belongs_to_the_trace_of_its_caller(sdk: Exporting) -> None:
    atlas = in_memory_atlas(Scripted(says("Hi."), says("Hi."), says("Hi.")), telemetry=sdk.telemetry())
    await atlas.ask("Hi", traceparent=CALLER)
    turn = sdk.flush().one("invoke_agent")
    assert (turn.trace_id, turn.parent_id) == (CALLER[3:35], CALLER[36:52])
    with sdk.tracers.get_tracer("app").start_as_current_span("request") as request:
        await atlas.ask("Hi")
    turn = sdk.flush().named("invoke_agent")[-1]
    assert turn.parent_id == f"{request.get_span_context().span_id:016x}"
    with pytest.raises(ConfigError, match="invalid traceparent 'nonsense'"):
        await atlas.ask("Hi", traceparent="nonsense")


async def test_tracestate_is_exported_and_reaches_tools_and_delegated_jobs(sdk: Exporting) -> None:
    seen: list[str] = []

    @tool(effect="pure")
    async def look(context: ToolContext) -> str:
        """Look."""
        seen.append(f"{context.traceparent[:35]} {context.tracestate}")
        return "seen"

    delegation = calls("delegate_task", task_description="Look.", target_agent="helper")
    chief = Agent("chief", model=Scripted(delegation, says("Asked."), says("Thanks.")), tools=[delegate_task])
    helper = Agent("helper", model=Scripted(calls("look"), says("Seen.")), tools=[look])
    async with Atlas([chief, helper], store=MemoryStore(), telemetry=sdk.telemetry()) as atlas, atlas.jobs.running():
        await atlas.ask("Go", traceparent=CALLER, tracestate="vendor=1")
        (job,) = await atlas.jobs.list()
        await atlas.jobs.ended(job.id)
    assert seen == [f"{CALLER[:35]} vendor=1"]
    assert {span.state for span in sdk.flush().spans if span.trace_id == CALLER[3:35]} == {"vendor=1"}


@pytest.mark.parametrize(("ratio", "recorded"), [(1.0, True), (0.0, False)])
async def test_scheduled_job_starts_a_trace_that_its_delegations_belong_to(
    sdk: Exporting, ratio: float, recorded: bool
) -> None:
    """The sampler decides about the whole trace, as it does about one that a turn starts."""
    sdk.tracers.sampler = ParentBased(TraceIdRatioBased(ratio))
    delegation = calls("delegate_task", task_description="Look.", target_agent="helper")
    chief = Agent("chief", model=Scripted(delegation, says("Asked."), says("Thanks.")), tools=[delegate_task])
    helper = Agent("helper", model=Scripted(says("Seen.")))
    async with Atlas([chief, helper], store=MemoryStore(), telemetry=sdk.telemetry()) as atlas, atlas.jobs.running():
        await atlas.jobs.schedules.add(Schedule("daily", "@daily", "chief", "Ask the helper."))
        job = await atlas.jobs.schedules.run("daily")
        await atlas.jobs.ended(job.id)
        (delegated,) = [each for each in await atlas.jobs.list() if each.kind == "delegation"]
        await atlas.jobs.ended(delegated.id)
        assert delegated.traceparent[-2:] == ("01" if recorded else "00")
    collected = sdk.flush()
    assert bool(collected.spans) is recorded
    if recorded:
        root, below = collected.one("run_job chief"), collected.one("run_job helper")
        assert (root.parent_id, below.trace_id) == ("", root.trace_id)
        known = {span.span_id for span in collected.spans}
        assert [span.name for span in collected.spans if span.parent_id not in known] == ["run_job chief"]


async def test_spans_and_log_ids_of_a_tool_are_below_its_call(sdk: Exporting) -> None:
    seen: list[str] = []

    @tool
    async def look(context: ToolContext) -> str:
        """Look."""
        with trace.use_span(trace.get_current_span()), sdk.tracers.get_tracer("app").start_as_current_span("inner"):
            seen.extend((context.traceparent, current_span().traceparent))
        return "seen"

    @tool
    def compute(context: ToolContext) -> str:
        """Compute in a worker process."""
        return context.traceparent

    model = Scripted(calls("look"), calls("compute"), says("Done."))
    atlas = in_memory_atlas(model, [look, compute], telemetry=sdk.telemetry())
    async with asyncio.timeout(TIMEOUT):
        result = await atlas.run("Go")
    await atlas.close()
    collected = sdk.flush()
    call = collected.one("execute_tool look")
    assert collected.one("inner").parent_id == call.span_id
    assert seen == [f"00-{call.trace_id}-{call.span_id}-01"] * 2
    worker = collected.one("execute_tool compute")
    assert result.steps[1].output == f"00-{worker.trace_id}-{worker.span_id}-01"


async def test_without_telemetry_the_trace_context_is_only_passed_on() -> None:
    @tool
    async def look(context: ToolContext) -> str:
        """Look."""
        return context.traceparent

    atlas = in_memory_atlas(Scripted(calls("look"), says("Done."), calls("look"), says("Done.")), [look])
    assert (await atlas.run("Go", traceparent=CALLER)).steps[0].output == CALLER
    assert (await atlas.run("Go")).steps[0].output == ""


async def test_resumed_turn_continues_the_span_of_the_process_that_crashed(sdk: Exporting, tmp_path: Path) -> None:
    """The first process dies after its first round: its turn span never ends, and the second process ends it."""
    reached = asyncio.Event()

    @tool(effect="pure")
    async def slow() -> str:
        """Wait in the first process."""
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return "done"

    async def open_atlas(*replies: Any) -> Atlas:
        store = SqliteStore(tmp_path / "atlas.db")
        await store.open()
        return in_memory_atlas(Scripted(*replies), [weather, slow], telemetry=sdk.telemetry(), store=store)

    first = await open_atlas(calls("weather", city="Lima"), calls("slow"))
    stream = first.send("Go", session="s")
    async with asyncio.timeout(TIMEOUT):
        await reached.wait()
    await first.close()  # the turn stays open
    await close_store(first)
    run_id = stream.stream_id
    assert not sdk.flush().named("invoke_agent")
    second = await open_atlas(says("Both done."))
    (resumed,) = await second.recover()
    await resumed.reply()
    await second.close()
    await close_store(second)
    collected = sdk.flush()
    turn = collected.one("invoke_agent")
    assert turn.attributes["atlas.run.id"] == run_id
    assert {span.trace_id for span in collected.spans} == {turn.trace_id}
    assert [line.strip() for line in collected.tree(turn.trace_id) if line.startswith("  round")] == [
        "round 1",
        "round 2",
        "round 3",
    ]
    assert len([line for line in collected.tree(turn.trace_id) if not line.startswith(" ")]) == 1
    assert turn.start <= min(span.start for span in collected.spans)


async def test_metrics_count_tokens_cost_times_and_outcomes(sdk: Exporting) -> None:
    model = Scripted(calls("weather", city="Lima"), says("Sunny."), id="openai/gpt-5.6")
    atlas = in_memory_atlas(model, [weather], telemetry=sdk.telemetry())
    await atlas.ask("How is the weather in Lima?")
    found = sdk.flush().metrics
    assert sum(point.count for point in found["gen_ai.client.operation.duration"]) == 2
    assert sum(point.count for point in found["gen_ai.client.operation.time_to_first_chunk"]) == 2
    assert sum(point.count for point in found["gen_ai.client.token.usage"]) == 4
    assert sum(point.count for point in found["gen_ai.execute_tool.duration"]) == 1
    assert sum(point.count for point in found["atlas.run.queue_time"]) == 1
    assert sum(point.as_double for point in found["atlas.usage.cost"]) > 0


@contextmanager
def broken_collector(how: str) -> Generator[str]:
    """Yield the URL of a collector that refuses connections, accepts them and never answers, or fails."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        if how == "hangs":
            listening.listen(64)
            yield url
            return
    if how == "refuses":
        yield url
        return
    with collector(status=503) as failing:
        yield failing.url


async def observe_turns(count: int, telemetry: OpenTelemetry | None) -> list[tuple[str, ...]]:
    """Return the types of the events of some turns with a tool call, and their answers."""
    replies = [reply for _ in range(count) for reply in (calls("weather", city="Lima"), says("Sunny."))]
    atlas, found = in_memory_atlas(Scripted(*replies), [weather], telemetry=telemetry), list[tuple[str, ...]]()
    for number in range(count):
        stream = atlas.send("Hi", session=str(number))
        events = [event.type async for event in stream]
        found.append((*events, (await stream.reply()).text))
    return found


@pytest.mark.parametrize("how", ["refuses", "hangs", "fails"])
async def test_broken_collector_changes_no_turn_and_does_not_delay_the_end(how: str) -> None:
    """More spans than a batch has: the exporter tries to send while turns run, and the turns do not wait for it."""
    turns = 100
    expected = await observe_turns(turns, None)
    with broken_collector(how) as url:
        sdk = Exporting(url)
        async with asyncio.timeout(TIMEOUT):
            assert await observe_turns(turns, sdk.telemetry()) == expected
            await asyncio.to_thread(sdk.shutdown)


async def test_turn_without_telemetry_creates_nothing_for_it() -> None:
    """Only the calls that time a model's reply remain, as many for a long answer as for a short one."""

    def count(frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and (file.endswith("core/telemetry.py") or "/opentelemetry/" in file):
            called[frame.f_code.co_name] += 1

    found: list[Counter[str]] = []
    for words in (2, 200):
        called = Counter[str]()
        atlas = in_memory_atlas(Scripted(calls("weather", city="Lima"), says("word " * words)), [weather])
        sys.setprofile(count)
        try:
            await atlas.ask("Hi")
        finally:
            sys.setprofile(None)
        found.append(called)
    short, long = found
    assert short == long and long.total() <= 36
    creates = {"start", "set", "fail", "event", "_request", "usage_attributes", "_derive", "_format_trace_context"}
    assert not creates & set(long)
    assert not [name for name in long if name.startswith(("record_", "capture"))]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (CALLER, CALLER),
        (f" {CALLER} ", CALLER),
        (CALLER.replace("00-4", "01-4") + "-more", CALLER),
        (CALLER + "-more", ""),
        (CALLER.upper(), ""),
        ("ff" + CALLER[2:], ""),
        ("00-" + "0" * 32 + CALLER[35:], ""),
        (CALLER[:36] + "0" * 16 + "-01", ""),
        ("", ""),
        (None, ""),
        (7, ""),
    ],
)
def test_traceparent_of_others_is_read_as_the_standard_says(given: object, read: str) -> None:
    assert read_trace_context(given) == read
    assert read_trace_context(given, "a=1") == (f"{read} a=1" if read else "")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("vendor=t61rcWkgMzE,other@tenant=a b", "vendor=t61rcWkgMzE,other@tenant=a b"),
        (" a=1 ,, b=2\t", "a=1,b=2"),
        ("a=1,a=2", ""),
        ("a=1,no value", ""),
        ("A=1", ""),
        ("a=1\r\nx: y", ""),
        ("a=é", ""),
        (",".join(f"k{number}=1" for number in range(33)), ""),
        (f"a=1,long={'x' * 200},b={'y' * 250},c={'z' * 100}", f"a=1,long={'x' * 200},c={'z' * 100}"),
        (7, ""),
    ],
)
def test_tracestate_of_others_is_read_as_the_standard_says(given: object, read: str) -> None:
    assert read_trace_context(CALLER, given) == f"{CALLER} {read}".rstrip()


async def test_turn_that_the_sampler_leaves_out_records_nothing_but_passes_its_context_on(sdk: Exporting) -> None:
    @tool
    async def look(context: ToolContext) -> str:
        """Look."""
        return context.traceparent

    atlas = in_memory_atlas(Scripted(calls("look"), says("Done.")), [look], telemetry=sdk.telemetry())
    unsampled = f"{CALLER[:-2]}00"
    found: str = (await atlas.run("Go", traceparent=unsampled)).steps[0].output
    assert (found[3:35], found[-2:]) == (CALLER[3:35], "00")
    assert sdk.flush().spans == []
