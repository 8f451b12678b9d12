"""The fork server runs a program as a new interpreter would."""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

import fork_server
from checks import TIMEOUT

PROGRAM = """\
import os, random, sys
from beside import WORD
print(os.getpid(), os.getcwd(), sys.argv[1:], os.environ.get("COLOUR"), WORD, __name__, flush=True)
print(random.random(), flush=True)
print("oops", file=sys.stderr)
if sys.argv[1] == "wait":
    sys.stdin.read()
    import signal; signal.pause()
sys.exit(int(sys.argv[1]))
"""

LEAVING = """\
import atexit, sys, threading
cycle = {"file": open(__file__)}
cycle["cycle"] = cycle
atexit.register(print, "exit handler")
def work():
    threading.main_thread().join()
    print("thread")
threading.Thread(target=work).start()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "beside.py").write_text("WORD = 'found'\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    return str(tmp_path / "program.py")


def test_program_has_its_own_arguments_environment_folder_and_exit_code(script: str, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "COLOUR": "red"}
    done = [fork_server.run(script, "3", env=env, cwd=tmp_path) for _ in range(2)]
    (first, number), (second, other) = [each.stdout.splitlines() for each in done]
    assert first.split(" ", 1)[1] == second.split(" ", 1)[1] == f"{tmp_path} ['3'] red found __main__"
    assert first.split()[0] != second.split()[0] and number != other
    assert [(each.returncode, each.stderr) for each in done] == [(3, "oops\n")] * 2


def test_program_exits_as_an_interpreter_does(tmp_path: Path) -> None:
    """Threads end, exit handlers run, buffers are written, and what was left open is reported."""
    (tmp_path / "leaving.py").write_text(LEAVING)
    done = fork_server.run(str(tmp_path / "leaving.py"), env={**os.environ, "PYTHONWARNINGS": "error"})
    assert (done.returncode, done.stdout) == (0, "thread\nexit handler\n")
    assert "ResourceWarning: unclosed file" in done.stderr
    (tmp_path / "refusing.py").write_text("import sys; sys.exit('no calendar')")
    done = fork_server.run(str(tmp_path / "refusing.py"))
    assert (done.returncode, done.stderr) == (1, "no calendar\n")


async def test_running_program_can_be_read_and_killed(script: str, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        one, two = [await fork_server.start(script, "wait", stderr=log) for _ in range(2)]
    async with asyncio.timeout(TIMEOUT):
        assert (await one.stdout.readline()).startswith(f"{one.pid} ".encode())
        assert one.returncode is None
        one.kill()
        assert await one.wait() == one.returncode == -signal.SIGKILL and two.returncode is None
        two.send_signal(signal.SIGTERM)
        assert await two.wait() == -signal.SIGTERM


def test_failing_program_ends_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise LookupError('no calendar')")
    done = fork_server.run(str(tmp_path / "broken.py"))
    assert done.returncode == 1 and done.stderr.endswith("LookupError: no calendar\n")


def test_program_is_killed_at_its_timeout(script: str) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        fork_server.run(script, "wait", timeout=0.1)
    assert fork_server.run(script, "3").returncode == 3, "the server still works, though the exit code was not read"
