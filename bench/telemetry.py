"""Cost of OpenTelemetry: CPU of a turn with telemetry off and on, side by side in one run.

python bench/telemetry.py [--rounds 15] [--turns 60] [--kinds memory,durable,gateway] [--modes off,all,tenth]

Needs the extras `otel` and `gateway`, the SDK and its OTLP exporter for HTTP, which sends to a collector in another
process. The kinds of turns are

memory   the library with one tool call and an answer of 20 deltas, which a model double sends over HTTP (S2)
durable  the same with an SQLite store
gateway  an answer of 50 deltas of a model in the process, over the WebSocket, with an SQLite store

and the modes are

off      no telemetry
all      every turn is recorded
tenth    every tenth turn is recorded: ParentBased(TraceIdRatioBased(0.1))
traces   every tenth turn is recorded, and no metrics
metrics  no spans, only metrics
bare     off, and after each turn the SDK alone creates as many spans, attributes and measurements as `all` has

A round measures a block of turns of every mode, in random order, each in a process of its own. The CPU time is that of
all threads of the process, with the spans encoded and sent. Metrics are sent once a minute, whatever the number of
turns, and are not. The figures are medians, and the ratio to `off` is the median of the ratios of the rounds.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from measure import Cores, running_server
from scenarios import MODEL, PROMPT, SYSTEM, make_tools

KINDS = ("memory", "durable", "gateway")
MODES = ("off", "all", "tenth", "traces", "metrics", "bare")
WARM_UP_TURNS = 30
SESSIONS = 10


# The measured process


class Sdk:
    """The SDK with its batch processor and the OTLP exporter, as in production."""

    def __init__(self, mode: str, collector: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.metrics import NoOpMeterProvider
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, TraceIdRatioBased

        tenth = ParentBased(TraceIdRatioBased(0.1))
        samplers = {"metrics": ALWAYS_OFF, "tenth": tenth, "traces": tenth}
        self.tracers = TracerProvider(samplers.get(mode, ParentBased(ALWAYS_ON)))
        self.tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{collector}/v1/traces")))
        if mode == "traces":
            self.meters: Any = NoOpMeterProvider()
            return
        self.meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(f"{collector}/v1/metrics"))])


class BareTurn:
    """Creates the spans and measurements of a turn with the SDK alone: as many as Atlas, with as many attributes."""

    CALL = {"operation": "chat", "provider": "openai", "model": MODEL}
    KINDS = ({**CALL, "type": "input"}, {**CALL, "type": "output"})
    REQUEST = {**CALL, "agent": "bench", "stream": True}
    REPLY = {"input": 100, "output": 200, "first": 0.1, "model": MODEL, "reasons": ("stop",)}
    TOOL = {"operation": "execute_tool", "name": "search", "id": "call_0_0", "type": "function"}
    TURN = {"operation": "invoke_agent", "run": "1", "agent": "bench", "name": "bench", "session": "1", "tenant": "x"}
    ENDED = {"status": "done", "resumed": False, "input": 100, "output": 200}

    def __init__(self, sdk: Sdk, rounds: int) -> None:
        from opentelemetry import trace

        meter, self._trace, self._rounds = sdk.meters.get_meter("bare"), trace, rounds
        self._tracer = sdk.tracers.get_tracer("bare")
        names = ("duration", "first", "tokens", "tool", "turn", "queue")
        self._record = {name: meter.create_histogram(name).record for name in names}

    def __call__(self) -> None:
        start, record, trace = self._tracer.start_span, self._record, self._trace
        root = start("invoke_agent bench", attributes=self.TURN)
        above = trace.set_span_in_context(root)
        for number in range(self._rounds):
            span = start(f"round {number}", above, attributes={"round": number})
            inside = trace.set_span_in_context(span)
            self._call_model(inside)
            if number + 1 < self._rounds:
                tool = start("execute_tool search", inside, attributes=self.TOOL)
                tool.set_attributes({"status": "ok"})
                tool.end()
                record["tool"](0.1, self.TOOL)
            span.end()
        root.set_attributes(self.ENDED)
        root.end()
        record["turn"](0.1, {"operation": "invoke_agent", "name": "bench", "status": "done"})
        record["queue"](0.1, {"operation": "invoke_agent", "name": "bench"})

    def _call_model(self, context: Any) -> None:
        chat = self._tracer.start_span(f"chat {MODEL}", context, self._trace.SpanKind.CLIENT, attributes=self.REQUEST)
        chat.set_attributes(self.REPLY)
        chat.end()
        self._record["duration"](0.1, self.CALL)
        self._record["first"](0.1, self.CALL)
        for kind in self.KINDS:
            self._record["tokens"](100, kind)


async def serve(kind: str, mode: str, home: Path, model: str, collector: str) -> None:
    """Run the measured process: a gateway, or the turns that stdin requests."""
    from atlas_agents import Agent, Atlas, OpenAIProvider, OpenTelemetry
    from atlas_agents.gateway.server import Gateway
    from atlas_agents.gateway.settings import GatewaySettings
    from atlas_agents.storage.sqlite import SqliteStore
    from gateway import Model

    sdk = None if mode == "off" else Sdk(mode, collector)
    telemetry = OpenTelemetry(tracer_provider=sdk.tracers, meter_provider=sdk.meters) if sdk else None
    if kind == "gateway":
        agent = Agent("assistant", model=Model(0.0))
    else:
        provider = OpenAIProvider(base_url=f"{model}/S2/v1", api_key="x", model=MODEL)
        tools: Any = make_tools(lambda: None, asynchronous=True)
        agent = Agent("assistant", model=provider, system_prompt=SYSTEM, tools=tools)
    store = None if kind == "memory" else SqliteStore(home / "atlas.db")
    if store is not None:
        await store.open()
    atlas = Atlas([agent], store=store, telemetry=None if mode == "bare" else telemetry)
    extra = BareTurn(sdk, 1 if kind == "gateway" else 2) if sdk is not None and mode == "bare" else None
    if kind == "gateway":
        add_to_turns(atlas, extra)
        await Gateway(atlas, GatewaySettings(home=home, port=0)).serve(lambda it: print(it.port, flush=True))
    else:
        print(0, flush=True)
        await run_turns(atlas, sdk, extra)
    if store is not None:
        await store.close()


def add_to_turns(atlas: Any, extra: Callable[[], None] | None) -> None:
    """Call a function at the end of each turn of a gateway."""
    if extra is None:
        return

    class Ended:
        def record_model(self, call: object) -> None: ...

        def record_tool(self, call: object) -> None: ...

        def record_turn(self, turn: object) -> None:
            extra()

    atlas.telemetry.recorders.append(Ended())


async def run_turns(atlas: Any, sdk: Sdk | None, extra: Callable[[], None] | None) -> None:
    """Run the turns that stdin requests, and print the CPU seconds that they took."""
    count = 0
    while line := await asyncio.to_thread(sys.stdin.readline):
        started = time.process_time()
        for _ in range(int(line)):
            count += 1
            async for _ in atlas.send(PROMPT, session=f"s{count}"):
                pass
            if extra is not None:
                extra()
        if sdk is not None:
            sdk.tracers.force_flush()
        print(time.process_time() - started, flush=True)


# The measuring process


class Measured:
    """A measured process of one mode."""

    def __init__(self, kind: str, home: Path, process: asyncio.subprocess.Process, port: int) -> None:
        self._kind, self._home, self._process, self._port = kind, home, process, port
        self._socket: Any = None
        self._count = 0

    async def cpu_of_turns(self, turns: int) -> float:
        """Run turns and return the CPU milliseconds of one of them."""
        if self._kind != "gateway":
            assert self._process.stdin and self._process.stdout
            self._process.stdin.write(b"%d\n" % turns)
            return float(await self._process.stdout.readline()) * 1000 / turns
        from gateway import turn

        if self._socket is None:
            self._socket = await self._connect()
        started = self._cpu()
        for _ in range(turns):
            self._count += 1
            await turn(self._socket, f"s{self._count % SESSIONS}")
        return (self._cpu() - started) * 1000 / turns

    async def _connect(self) -> Any:
        from websockets.asyncio.client import connect

        socket = await connect(f"ws://127.0.0.1:{self._port}/", compression=None)
        token = (self._home / "token").read_text().strip()
        await socket.send(json.dumps({"type": "auth", "token": token, "protocol": 1}))
        await socket.recv()
        return socket

    def _cpu(self) -> float:
        """Return the CPU seconds of all threads."""
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(path.read_text().split()[0]) for path in tasks) / 1e9


@asynccontextmanager
async def measured(kind: str, mode: str, model: str, collector: str) -> AsyncGenerator[Measured]:
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "OTEL_BSP_SCHEDULE_DELAY": "500"}
        command = (sys.executable, __file__, "serve", kind, mode, home, model, collector)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment)
        assert process.stdin and process.stdout
        try:
            yield Measured(kind, Path(home), process, int(await process.stdout.readline()))
        finally:
            process.terminate()
            await process.wait()


async def measure(kind: str, modes: list[str], rounds: int, turns: int, model: str, collector: str) -> list[str]:
    """Measure one kind of turns and return its rows of the table."""
    async with AsyncExitStack() as stack:
        found = {mode: await stack.enter_async_context(measured(kind, mode, model, collector)) for mode in modes}
        for each in found.values():
            await each.cpu_of_turns(WARM_UP_TURNS)
        results: dict[str, list[float]] = {mode: [] for mode in modes}
        for _ in range(rounds):
            for mode in random.sample(modes, len(modes)):
                results[mode].append(await found[mode].cpu_of_turns(turns))
    rows: list[str] = []
    for mode in modes:
        ratio = statistics.median([cpu / off for cpu, off in zip(results[mode], results["off"], strict=True)])
        rows.append(f"| {kind} | {mode} | {statistics.median(results[mode]):.2f} | {ratio - 1:+.1%} |")
    return rows


@contextmanager
def running_collector() -> Generator[str]:
    """Run a collector that discards what it receives, in a process of its own, and yield its URL."""
    command = [sys.executable, __file__, "collect"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


def collect() -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turns", type=int, default=60, help="turns of a block")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--modes", type=lambda text: text.split(","), default=list(MODES))
    options = parser.parse_args()
    modes = ["off", *[mode for mode in options.modes if mode != "off"]]
    print("| turn | telemetry | CPU ms | against off |\n|---|---|---|---|")
    with running_server(Cores()) as model, running_collector() as collector:
        for kind in options.kinds:
            for row in asyncio.run(measure(kind, modes, options.rounds, options.turns, model, collector)):
                print(row, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        collect()
    elif sys.argv[1:2] == ["serve"]:
        from atlas_agents.gateway.server import run

        start = run if sys.argv[2] == "gateway" else asyncio.run  # the gateway has an event loop of its own
        start(serve(sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5], sys.argv[6]))
    else:
        main()
