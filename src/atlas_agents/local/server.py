"""Server processes of local models: started on demand, shared by providers, restarted after a crash."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from atlas_agents.core.errors import ModelUnavailable
from atlas_agents.core.http import backoff
from atlas_agents.core.paths import Secret

_CHILD_SCRIPT = Path(__file__).with_name("child.py")
_LOAD_TIMEOUT = 120.0
_STOP_TIMEOUT = 5.0
_HEALTHY_AFTER = 60.0  # seconds after which a crash does not count as a failed start
_RETRY_AFTER_FAILURE = 2.0  # seconds before a failed start is tried again
_MAX_LOG_SIZE = 1 << 20


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


class _ServerProcess:
    """A server process and the thread that started it.

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

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            self._kill_group()

    def _run(self) -> None:
        try:
            with _open_log(self._setup) as log, _start(log) as process:
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
        process.stdout.read()  # until it ends
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
                self._fail("an optional package is missing; run: pip install 'atlas-agents[local]'.")
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


class ModelServer:
    """The server of one configuration. It is restarted when its process has ended."""

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
        """Kill the process, if any, and wait for its end."""
        with self._lock:
            process, self._process, self._crashes = self._process, None, 0
        if process is not None:
            process.kill()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(process.ended)), _STOP_TIMEOUT)


_servers: dict[ServerSetup, ModelServer] = {}
_lock = threading.Lock()
os.register_at_fork(after_in_child=_servers.clear)  # a forked child does not have the threads that watch the servers


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


def _start(log: BinaryIO) -> "subprocess.Popen[bytes]":
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
