"""The process that runs a model: started when first asked, shared by all who want the same, gone with its parent."""

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

_CHILD = Path(__file__).with_name("child.py")
_LOADING = 120.0
_ENDING = 5.0
_HEALTHY = 60.0  # seconds after which a server that dies is not taken for one that cannot live
_AGAIN = 2.0  # seconds for which a start that failed is not tried again
_LOG = 1 << 20


class Setup(msgspec.Struct, frozen=True):
    """What a server is started with; two who want the same share one."""

    path: str
    alias: str
    context: int
    log: str
    parallel: int = 2
    threads: int = 0


class Endpoint(msgspec.Struct, frozen=True):
    """Where a running server listens. `guided` if it can hold its model to a grammar of ours."""

    url: str
    key: Secret
    guided: bool


class _Life:
    """One process from its start to its end. The thread that starts it outlives it.

    The kernel ends it with the thread that started it, not only with the process, so that must be one that stays.
    """

    def __init__(self, setup: Setup) -> None:
        self.ready: Future[Endpoint] = Future()
        self.ended: Future[None] = Future()
        self.began = self.died = time.monotonic()
        self._setup = setup
        self._lock = threading.Lock()
        self._pid: int | None = None
        self._doomed = False
        threading.Thread(target=self._live, name="atlas-local-model", daemon=True).start()

    def kill(self) -> None:
        with self._lock:
            self._doomed = True
            self._kill_group()

    def _live(self) -> None:
        try:
            with _log(self._setup) as log, _start(log) as process:
                self._outlive(process)
        except OSError as error:
            self._fail(f"its process cannot be started: {error}.")
        finally:
            self._fail("its process ended.")
            self.died = time.monotonic()
            self.ended.set_result(None)

    def _outlive(self, process: "subprocess.Popen[bytes]") -> None:
        with self._lock:
            self._pid = process.pid
            if self._doomed:
                self._kill_group()
        key = Secret(secrets.token_urlsafe(32))
        alarm = threading.Timer(_LOADING, self.kill)
        alarm.daemon = True
        alarm.start()
        assert process.stdin and process.stdout  # noqa: S101 - both are pipes
        with suppress(BrokenPipeError):
            process.stdin.write(_wanted(self._setup, key))
            process.stdin.flush()
        line = process.stdout.readline()
        alarm.cancel()
        if line:
            self._hear(json.loads(line), key)
        process.stdout.read()  # until it ends
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._kill_group()  # before it is reaped: until then its number cannot be a stranger's
            code = process.wait()
            self._pid = None
        self._fail(_how(code, self._doomed))

    def _hear(self, answer: dict[str, Any], key: Secret) -> None:
        match answer:
            case {"url": str(url), "guided": bool(guided)}:
                self.ready.set_result(Endpoint(url, key, guided))
            case {"missing": _}:
                self._fail("what runs it is not installed: install atlas-agents[local].")
            case _:
                self._fail("llama.cpp cannot load it: is the file whole, and is there enough memory?")

    def _fail(self, why: str) -> None:
        if not self.ready.done():
            name, log = self._setup.alias, self._setup.log
            self.ready.set_exception(ModelUnavailable(f"the local model {name} does not start: {why} Its log: {log}"))

    def _kill_group(self) -> None:
        if self._pid is not None:
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)


class ModelServer:
    """The server of one setup. It may die and be started again; who asks for its endpoint does not notice."""

    def __init__(self, setup: Setup) -> None:
        self.holders: weakref.WeakSet[object] = weakref.WeakSet()
        self._setup = setup
        self._lock = threading.Lock()
        self._life: _Life | None = None
        self._deaths = 0

    async def endpoint(self) -> Endpoint:
        """Where it listens, once it does. One that died young again and again is not started again at once."""
        pause = self._pause()
        if pause:
            await asyncio.sleep(pause)
        with self._lock:
            if self._life is None:
                self._life = _Life(self._setup)
            life = self._life
        return await asyncio.shield(asyncio.wrap_future(life.ready))

    def _pause(self) -> float:
        """How long to wait before a start; one that could not even begin fails again at once until then."""
        with self._lock:
            life = self._life
            if life is None or not life.ended.done():
                return 0.0
            young = life.died - life.began < _HEALTHY
            pause = backoff(self._deaths - 1, 1.0, 30.0) if young and self._deaths else 0.0
            failure = life.ready.exception()
            if failure is not None and time.monotonic() < life.died + max(pause, _AGAIN):
                raise failure
            self._deaths = self._deaths + 1 if young else 0
            self._life = None
            return pause

    async def stop(self) -> None:
        """End the process, if there is one, and wait until it is gone."""
        with self._lock:
            life, self._life, self._deaths = self._life, None, 0
        if life is not None:
            life.kill()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(life.ended)), _ENDING)


_servers: dict[Setup, ModelServer] = {}
_lock = threading.Lock()
os.register_at_fork(after_in_child=_servers.clear)  # a forked child has none of the threads that watch them


def server_for(setup: Setup, holder: object) -> ModelServer:
    """The one server of this setup in this process; it runs on until all who hold it have let go."""
    with _lock:
        server = _servers.get(setup)
        if server is None:
            server = _servers[setup] = ModelServer(setup)
        server.holders.add(holder)
        return server


async def let_go(holder: object) -> None:
    """Stop the servers that nobody else holds."""
    with _lock:
        held = [server for server in _servers.values() if holder in server.holders]
        for server in held:
            server.holders.discard(holder)
        idle = [server for server in held if not server.holders]
    for server in idle:
        await server.stop()


def _start(log: BinaryIO) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-u", str(_CHILD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env={"OMP_WAIT_POLICY": "passive", **os.environ},  # waiting threads must not spin on busy cores
        start_new_session=True,
    )


def _wanted(setup: Setup, key: Secret) -> bytes:
    """What the child is told. The key goes through a pipe: others can read arguments and environments."""
    wanted = {**msgspec.structs.asdict(setup), "key": key.reveal(), "parent": os.getpid()}
    wanted["threads"] = setup.threads or min(len(os.sched_getaffinity(0)) if sys.platform == "linux" else 4, 8)
    return json.dumps(wanted).encode() + b"\n"


def _log(setup: Setup) -> BinaryIO:
    path = Path(setup.log)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists() or path.stat().st_size > _LOG
    return path.open("wb" if fresh else "ab")


def _how(code: int, doomed: bool) -> str:
    if doomed:
        return "it was stopped while it loaded."
    if code == -signal.SIGKILL:
        return "its process was killed while it loaded: is there enough memory?"
    return "llama.cpp cannot load it: is the file whole?"
