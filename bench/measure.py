"""Take one measurement of one adapter in a new process of its virtual environment."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import perf
from venvs import BENCH_FOLDER, Venvs, constant

# Packages that importing an agent library should not load.
HEAVY = {"aiohttp", "asyncpg", "httpx", "openai", "psycopg", "pydantic", "redis", "requests", "sqlalchemy", "sqlite3"}


class Failed(Exception):
    """The measured process returned no result."""


@dataclass(frozen=True)
class Cores:
    """CPU cores of worker and server; None leaves the choice to the kernel."""

    worker: int | None = None
    server: int | None = None

    @classmethod
    def separate(cls) -> "Cores":
        """Return one core for each if there are two."""
        allowed = sorted(os.sched_getaffinity(0))
        return cls(*allowed[:2]) if len(allowed) > 1 else cls()


@contextmanager
def running_server(cores: Cores) -> Generator[str]:
    """Run the model double and yield its URL."""
    command = [sys.executable, str(BENCH_FOLDER / "server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        if cores.server is not None:
            os.sched_setaffinity(process.pid, {cores.server})
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.stdin.close()


@dataclass(frozen=True)
class Measure:
    """Settings of the measurements of one run."""

    venvs: Venvs
    server: str
    cores: Cores
    timeout: float
    perf_event: str | None = None

    def take(self, adapter: str, scenario: str) -> dict[str, Any]:
        try:
            return self._import(adapter) if scenario == "import" else self._work(adapter, scenario)
        except (Failed, subprocess.TimeoutExpired) as error:
            return {"error": str(error)[-1200:]}

    def _work(self, adapter: str, scenario: str) -> dict[str, Any]:
        """Run the worker; its last line is the result."""
        command = [self.venvs.python(adapter), str(BENCH_FOLDER / "worker.py"), adapter, scenario, self.server]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OTEL_SDK_DISABLED": "true"}
        if self.cores.worker is not None:
            environment["BENCH_CORE"] = str(self.cores.worker)
        with tempfile.TemporaryDirectory() as folder:
            event = None if scenario in ("create", "rounds") else self.perf_event
            if event:
                command = [*perf.command(event, Path(folder)), *command]
                environment[perf.FOLDER] = folder
            done = self._run(command, env=environment, cwd=folder)
            result = json.loads(done.stdout.splitlines()[-1])
            if event and (count := perf.count(Path(folder))) is not None:
                result["perf"] = count / result["turns"]
        return result

    def _import(self, adapter: str) -> dict[str, Any]:
        """Measure the cost of the user's import statement beyond the start of Python."""
        python = [self.venvs.python(adapter), "-P"]
        statement = constant(adapter, "IMPORT")
        listing = self._run([*python, "-X", "importtime", "-c", statement]).stderr  # also warms the file cache
        modules = [line.split("|")[2].strip() for line in listing.splitlines() if line.count("|") == 2]
        empty_wall, empty_cpu = self._timed([*python, "-c", "pass"])
        wall, cpu = self._timed([*python, "-c", statement])
        return {
            "wall_ms": (wall - empty_wall) * 1e3,
            "cpu_ms": (cpu - empty_cpu) * 1e3,
            "modules": len(modules),
            "heavy": sorted(HEAVY.intersection(modules)),
        }

    def _timed(self, command: list[str]) -> tuple[float, float]:
        """Return the wall and CPU seconds of a whole process."""
        wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        self._run(command)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        return time.perf_counter() - wall, cpu

    def _run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.timeout, **options)
        if done.returncode:
            raise Failed((done.stdout[-300:] + done.stderr[-900:]).strip())
        return done
