"""Take one measurement of one adapter in a new process of its virtual environment."""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from venvs import BENCH_FOLDER, Venvs, constant


class Failed(Exception):
    """The measured process returned no result."""


@contextmanager
def running_server() -> Generator[str]:
    """Run the model double and yield its URL. It has a core of its own; this process and its children have another."""
    own, *others = sorted(os.sched_getaffinity(0))
    command = [sys.executable, str(BENCH_FOLDER / "server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        if others:
            os.sched_setaffinity(process.pid, others[:1])
            os.sched_setaffinity(0, {own})
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.stdin.close()


@dataclass(frozen=True)
class Measure:
    """Settings of the measurements of one run."""

    venvs: Venvs
    server: str
    timeout: float

    def take(self, adapter: str, scenario: str) -> dict[str, Any]:
        try:
            return self._import(adapter) if scenario == "import" else self._work(adapter, scenario)
        except (Failed, subprocess.TimeoutExpired) as error:
            return {"error": str(error)[-1200:]}

    def _work(self, adapter: str, scenario: str) -> dict[str, Any]:
        """Run the worker; its last line is the result."""
        command = [self.venvs.python(adapter), str(BENCH_FOLDER / "worker.py"), adapter, scenario, self.server]
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OTEL_SDK_DISABLED": "true"}
        with tempfile.TemporaryDirectory() as folder:
            done = self._run(command, env=environment, cwd=folder)
        return json.loads(done.stdout.splitlines()[-1])

    def _import(self, adapter: str) -> dict[str, Any]:
        """Measure the CPU of the user's import statement beyond that of the start of Python."""
        python, statement = [self.venvs.python(adapter), "-P"], constant(adapter, "IMPORT")
        self._run([*python, "-c", statement])  # warms the file cache
        cpu = self._cpu([*python, "-c", statement]) - self._cpu([*python, "-c", "pass"])
        return {"cpu_ms": cpu * 1e3}

    def _cpu(self, command: list[str]) -> float:
        """Return the CPU seconds of a whole process."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._run(command)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    def _run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.timeout, **options)
        if done.returncode:
            raise Failed((done.stdout[-300:] + done.stderr[-900:]).strip())
        return done
