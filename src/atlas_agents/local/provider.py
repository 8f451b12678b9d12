"""Local models: `LocalProvider` downloads a model and starts a llama.cpp server for it at the first request.

All providers of a process share one `ModelServer` per configuration, which restarts its process after a crash.
"""

import asyncio
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from atlas_agents.core import install_command
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock, run_in_thread
from atlas_agents.core.errors import ModelUnavailable
from atlas_agents.core.http import backoff
from atlas_agents.core.paths import Environment, Secret, home
from atlas_agents.core.text import wire_name
from atlas_agents.local import models, prompting
from atlas_agents.local.download import Progress, ensure_model
from atlas_agents.providers import catalogue
from atlas_agents.providers.adaptation import IMAGES
from atlas_agents.providers.base import (
    BaseProvider,
    Capabilities,
    Chunk,
    DoneChunk,
    Price,
    Request,
    TextChunk,
    ToolCallChunk,
)
from atlas_agents.providers.http import HttpClient, Timeouts, exchange, header_value, merge_body
from atlas_agents.providers.openai import OpenAIReader, encode_request
from atlas_agents.providers.settings import ModelSettings

_CHILD_SCRIPT = Path(__file__).with_name("child.py")
_LOAD_TIMEOUT = 120.0
_STOP_TIMEOUT = 5.0
_REPORT_SECONDS = 0.5
_HEALTHY_AFTER = 60.0  # seconds after which a crash does not count as a failed start
_RETRY_AFTER_FAILURE = 2.0  # seconds before a failed start is tried again
_MAX_LOG_SIZE = 1 << 20
_FREE = Price(0, 0)
_TIMEOUTS = Timeouts(first_byte=300, idle=120, total=1800)  # a long prompt is read at a few hundred tokens per second
logger = logging.getLogger("atlas_agents.local")


class ServerSetup(msgspec.Struct, frozen=True):
    """Configuration of a server; equal configurations share one server."""

    path: str
    alias: str
    context: int
    log: str
    parallel: int = 2
    threads: int = 0


class Endpoint(msgspec.Struct, frozen=True):
    """Address and key of a running server. `guided` if it supports llguidance grammars."""

    url: str
    key: Secret
    guided: bool


class LocalProvider(BaseProvider):
    """Provider of a local model. All providers of a process share one server per model; `close` releases it.

    Args:
        model: Name in the catalog, or path of a `.gguf` file.
        context: Size of the context window in tokens.
        download: Whether to download a model that is missing. By default the small default model is downloaded, and a
            larger one only with `pull`.
        progress: Called with the progress of a download.
        timeouts: Timeouts of a request.
        clock: Source of time.
        environment: Settings to read instead of the process environment and `.env`.
        report: Called with the name of a model and the progress of its download, and of loading it.
    """

    def __init__(
        self,
        model: str = models.DEFAULT,
        *,
        context: int = 8192,
        download: bool | None = None,
        progress: Progress | None = None,
        timeouts: Timeouts | None = None,
        clock: Clock = SYSTEM_CLOCK,
        environment: Environment | None = None,
        report: Callable[[str, int, int, str], None] | None = None,
    ) -> None:
        self.id = "local"
        self._report = report
        self.model = model
        self._context = context
        _register_prices(model)
        self._download = download
        self._progress = progress
        self._home = home(environment or Environment())
        self._http = HttpClient(timeouts or _TIMEOUTS, clock)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(structured=True)

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Stream a reply. The first request downloads the model and starts its server."""
        name = request.model or self.model
        endpoint = await self.endpoint(name)
        style = models.PromptStyle() if models.is_gguf_path(name) else models.find_model(name).style
        request = prompting.select_tools(request, style)
        if style.system and not request.system:
            request = msgspec.structs.replace(request, system=style.system)
        finder = prompting.CallFinder({wire_name(tool.name) for tool in prompting.callable_tools(request)})
        async with aclosing(self._request(endpoint, name, style, request)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, TextChunk):
                    if text := finder.add(chunk.text):
                        yield TextChunk(text)
                    continue
                if isinstance(chunk, DoneChunk):
                    text, call = finder.end(cut=chunk.stop_reason == "length")
                    if text:
                        yield TextChunk(text)
                    if call:
                        yield ToolCallChunk(call)
                        chunk = _with_tool_calls(chunk)
                yield chunk

    async def endpoint(self, model: str | None = None) -> Endpoint:
        """Return the endpoint of a model's server, for other clients of the OpenAI or Anthropic API."""
        name = model or self.model
        models.check_engine()
        is_file = models.is_gguf_path(name)
        path = (
            await run_in_thread(models.check_gguf_file, name)
            if is_file
            else await self._model_file(models.find_model(name))
        )
        log = self._home / "logs" / f"{path.stem}.log"
        setup = ServerSetup(str(path), path.stem, self._context, str(log))
        server = acquire_server(setup, self)
        if self._report is None or server.is_ready:
            return await server.endpoint()
        reporting = asyncio.create_task(_report_loading(server, partial(self._report, name)))
        try:
            return await server.endpoint()
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])
            self._report(name, 0, 0, "ready")

    async def close(self) -> None:
        """Release the servers; those without other users stop. A later request starts them again."""
        await self._http.close()
        await release_servers(self)

    def __repr__(self) -> str:
        return f"LocalProvider({self.model!r})"

    async def _model_file(self, model: models.LocalModel) -> Path:
        folder = self._home / "models"
        state = models.model_state(model, folder)
        allowed = model.auto_download if self._download is None else self._download
        if not state.installed and not allowed:
            raise ModelUnavailable(
                f"the local model {model.id} ({model.megabytes} MB) is not installed; run: atlas models pull {model.id}"
            )
        if not state.installed:
            logger.info("downloading local model: model=%s size_mb=%d folder=%s", model.id, model.megabytes, folder)
        progress = self._progress if self._report is None else partial(self._report, model.id)
        return await ensure_model(model, folder, progress)

    async def _request(
        self, endpoint: Endpoint, name: str, style: models.PromptStyle, request: Request
    ) -> AsyncGenerator[Chunk, None]:
        """Request a reply, constrained by a grammar if there are tools."""
        extra = dict(style.sampling)
        tools = prompting.callable_tools(request)
        flat = prompting.flatten_tools(request, tools)
        if tools and endpoint.guided:
            form = prompting.choose_form(request, style)
            if form == "text":
                flat = prompting.flatten_tools(request, ())
            elif form == "either" and style.call_bias and not request.output:
                form = await self._choose_form(endpoint, name, flat, prompting.first_token_options(request, style))
            extra |= prompting.decoding_options(request, style, form)
            flat = msgspec.structs.replace(flat, output=None)
        async with aclosing(self._exchange(endpoint, name, flat, extra)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _choose_form(self, endpoint: Endpoint, name: str, flat: Request, extra: dict[str, Any]) -> prompting.Form:
        """Generate the first token, and return whether it opens a call."""
        one_token = msgspec.structs.replace(flat, settings=ModelSettings(max_tokens=1))
        async with aclosing(self._exchange(endpoint, name, one_token, extra)) as chunks:
            text = "".join([chunk.text async for chunk in chunks if isinstance(chunk, TextChunk)])
        return "call" if text.startswith("{") else "text"

    def _exchange(
        self, endpoint: Endpoint, name: str, request: Request, extra: dict[str, Any]
    ) -> AsyncGenerator[Chunk, None]:
        request = msgspec.structs.replace(request, without=request.without | {IMAGES})
        body = merge_body(encode_request(request, name, extra=extra), request.settings.extra_body)
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Connection": "close",  # the server sometimes closes a kept-alive connection when the next request arrives
            "Authorization": f"Bearer {header_value(endpoint.key, 'the local model')}",
        }
        url = f"{endpoint.url}/v1/chat/completions"
        return exchange(self._http, url, headers, body, OpenAIReader(), [endpoint.key])


async def _report_loading(server: "ModelServer", report: Callable[[int, int, str], None]) -> None:
    """Report how much of a model's file its server has in memory, until cancelled."""
    while True:
        done, total = await run_in_thread(server.loaded)
        report(done, total, "loading")
        await asyncio.sleep(_REPORT_SECONDS)


def _register_prices(model: str) -> None:
    """Make local models free. An entry of the user takes precedence; an unknown name may be a vendor's model."""
    names = (*models.CATALOG, model) if models.is_gguf_path(model) else models.CATALOG
    unpriced = [name for name in names if name not in catalogue.registered]
    catalogue.register_models({name: catalogue.RegisteredModel(price=_FREE) for name in unpriced})


def local_provider(environment: Environment) -> LocalProvider:
    """Create the provider for model references `local/…`."""
    return LocalProvider(environment=environment)


class ModelServer:
    """The server of one configuration; a request after its process has ended starts a new one."""

    def __init__(self, setup: ServerSetup) -> None:
        self.holders: weakref.WeakSet[object] = weakref.WeakSet()
        self._setup = setup
        self._lock = threading.Lock()
        self._process: _ServerProcess | None = None
        self._crashes = 0

    async def endpoint(self) -> Endpoint:
        """Return the endpoint once the server listens. After repeated crashes the start is delayed."""
        delay = self._restart_delay()
        if delay:
            await asyncio.sleep(delay)
        with self._lock:
            if self._process is None:
                self._process = _ServerProcess(self._setup)
            process = self._process
        return await asyncio.shield(asyncio.wrap_future(process.ready))

    @property
    def is_ready(self) -> bool:
        """Whether the server is listening, so that a request need not wait for it."""
        process = self._process
        return process is not None and process.ready.done() and not process.ended.done()

    def loaded(self) -> tuple[int, int]:
        """Return the number of bytes of the model's file in the server's memory, and the size of the file.

        Both are zero if the system does not report them.
        """
        process = self._process
        mapped = _mapped_bytes(process.pid, self._setup.path) if process is not None and process.pid else 0
        return (0, 0) if mapped is None else (mapped, Path(self._setup.path).stat().st_size)

    def _restart_delay(self) -> float:
        """Return the delay before a restart; until then a failed start raises its error again."""
        with self._lock:
            process = self._process
            if process is None or not process.ended.done():
                return 0.0
            short_lived = process.ended_at - process.started_at < _HEALTHY_AFTER
            delay = backoff(self._crashes - 1, 1.0, 30.0) if short_lived and self._crashes else 0.0
            failure = process.ready.exception()
            if failure is not None and time.monotonic() < process.ended_at + max(delay, _RETRY_AFTER_FAILURE):
                raise failure
            self._crashes = self._crashes + 1 if short_lived else 0
            self._process = None
            return delay

    async def stop(self) -> None:
        """Kill the process, if any, and wait until it has ended."""
        with self._lock:
            process, self._process, self._crashes = self._process, None, 0
        if process is not None:
            process.kill()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(process.ended)), _STOP_TIMEOUT)


_servers: dict[ServerSetup, ModelServer] = {}
_lock = threading.Lock()

os.register_at_fork(after_in_child=_servers.clear)  # a forked child has none of the threads that watch the servers


def acquire_server(setup: ServerSetup, holder: object) -> ModelServer:
    """Return the server of a configuration in this process; it runs until every holder has released it."""
    with _lock:
        server = _servers.get(setup)
        if server is None:
            server = _servers[setup] = ModelServer(setup)
        server.holders.add(holder)
        return server


async def release_servers(holder: object) -> None:
    """Stop the servers that have no other holder."""
    with _lock:
        held = [server for server in _servers.values() if holder in server.holders]
        for server in held:
            server.holders.discard(holder)
        idle = [server for server in held if not server.holders]
    for server in idle:
        await server.stop()


class _ServerProcess:
    """Server process and the thread that started it.

    The kernel kills the process when that thread ends, so the thread waits for the process.
    """

    def __init__(self, setup: ServerSetup) -> None:
        self.ready: Future[Endpoint] = Future()
        self.ended: Future[None] = Future()
        self.started_at = self.ended_at = time.monotonic()
        self._setup = setup
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._killed = False
        threading.Thread(target=self._run, name="atlas-local-model", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """Id of the process while it runs."""
        return self._pid

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            self._kill_group()

    def _run(self) -> None:
        try:
            with _open_log(self._setup) as log, _start_process(log) as process:
                self._watch(process)
        except OSError as error:
            self._fail(f"cannot start the process: {error}.")
        finally:
            self._fail("the process ended.")
            self.ended_at = time.monotonic()
            self.ended.set_result(None)

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        with self._lock:
            self._pid = process.pid
            if self._killed:
                self._kill_group()
        key = Secret(secrets.token_urlsafe(32))
        timer = threading.Timer(_LOAD_TIMEOUT, self.kill)
        timer.daemon = True
        timer.start()
        assert process.stdin and process.stdout  # noqa: S101 - both are pipes
        with suppress(BrokenPipeError):
            process.stdin.write(_encode_config(self._setup, key))
            process.stdin.flush()
        report = process.stdout.readline()
        timer.cancel()
        if report:
            self._read_report(json.loads(report), key)
        process.stdout.read()  # returns when the process ends
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._kill_group()  # before the process is reaped, so that its id cannot belong to another process
            code = process.wait()
            self._pid = None
        self._fail(_describe_exit(code, self._killed))

    def _read_report(self, report: dict[str, Any], key: Secret) -> None:
        match report:
            case {"url": str(url), "guided": bool(guided)}:
                self.ready.set_result(Endpoint(url, key, guided))
            case {"missing": _}:
                self._fail(f"an optional package is missing; run: {install_command('local')}.")
            case _:
                self._fail("llama.cpp cannot load the model: the file may be damaged, or there is too little memory.")

    def _fail(self, reason: str) -> None:
        if not self.ready.done():
            name, log = self._setup.alias, self._setup.log
            self.ready.set_exception(ModelUnavailable(f"the local model {name} does not start: {reason} Log: {log}"))

    def _kill_group(self) -> None:
        if self._pid is not None:
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)


def _mapped_bytes(pid: int, path: str) -> int | None:
    """Return the number of bytes of a file that a process has mapped in memory; None if unknown."""
    try:
        lines = Path(f"/proc/{pid}/smaps").read_bytes().splitlines()
    except OSError:
        return None if sys.platform != "linux" else 0
    total, is_file, name = 0, False, os.path.realpath(path).encode()
    for line in lines:
        if not line.split(maxsplit=1)[0].endswith(b":"):  # the first line of a mapping
            is_file = line.endswith(name)
        elif is_file and line.startswith(b"Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def _start_process(log: BinaryIO) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-u", str(_CHILD_SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={"OMP_WAIT_POLICY": "passive", **os.environ},  # waiting threads must not spin on busy cores
        start_new_session=True,
    )


def _encode_config(setup: ServerSetup, key: Secret) -> bytes:
    """Return the child's configuration for its pipe: others could read arguments and environment variables."""
    config = {**msgspec.structs.asdict(setup), "key": key.reveal(), "parent": os.getpid()}
    config["threads"] = setup.threads or min(len(os.sched_getaffinity(0)) if sys.platform == "linux" else 4, 8)
    return json.dumps(config).encode() + b"\n"


def _open_log(setup: ServerSetup) -> BinaryIO:
    path = Path(setup.log)
    path.parent.mkdir(parents=True, exist_ok=True)
    truncate = not path.exists() or path.stat().st_size > _MAX_LOG_SIZE
    return path.open("wb" if truncate else "ab")


def _describe_exit(code: int, killed: bool) -> str:
    if killed:
        return "the process was stopped while loading."
    if code == -signal.SIGKILL:
        return "the process was killed while loading: there may be too little memory."
    return "llama.cpp cannot load the model: the file may be damaged."


def _with_tool_calls(done: DoneChunk) -> DoneChunk:
    return msgspec.structs.replace(done, stop_reason="tool_calls") if done.stop_reason == "stop" else done
