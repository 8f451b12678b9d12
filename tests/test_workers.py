"""Worker pool: plain functions run in processes that are killed when a call is cancelled."""

import asyncio
import functools
import gc
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from atlas_agents import Agent
from atlas_agents.testing import Scripted, calls, says
from atlas_agents.tools.worker_pool import WorkerDied, Workers, report
from checks import TIMEOUT, cpu_factor, scaled, wait_until

STALL = 0.05
HEAVY = ("asyncio", "aiohttp", "pydantic", "msgspec", "cloudpickle", "atlas_agents", "atlas_agents.agents")


pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers() -> AsyncIterator[Workers]:
    """Shared to save time: what one test kills or breaks must not affect the next."""
    made = Workers(warm=1)
    yield made
    await made.close()


async def run(workers: Workers, function: Callable[..., Any], **arguments: Any) -> Any:
    async with asyncio.timeout(TIMEOUT):
        return await workers.run(function, arguments)


def is_dead(pid: int) -> bool:
    """Return whether a process does not exist, or is a zombie."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, timeout=TIMEOUT)
    return state.stdout.strip()[:1] in ("", "Z")


def worker_count() -> int:
    command = ["ps", "-A", "-o", "ppid=,args="]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT).stdout.splitlines()
    return sum(line.split()[0] == str(os.getpid()) and "atlas_agents_worker" in line for line in lines)


async def all_dead(*pids: int) -> bool:
    end = time.monotonic() + TIMEOUT
    while not all(map(is_dead, pids)):
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


class StartedCall:
    """A call that runs until it is cancelled, and the progress it reported."""

    def __init__(self, workers: Workers, function: Callable[..., Any], **arguments: Any) -> None:
        self.progress: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(workers.run(function, arguments, report=self.progress.set_result))

    async def cancel(self) -> list[int]:
        async with asyncio.timeout(TIMEOUT):
            progress = await self.progress
            self.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await self.task
        return [int(part) for part in progress.split()]


def add(a: int, b: int = 0) -> int:
    return a + b


def by_reference() -> bool:
    """Return whether this module, and not a copy of the function, runs."""
    return getattr(sys.modules.get(__name__), "__dict__", None) is globals()


class Wrapped:
    """Replaces a module's attribute, as `@tool` does."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


@Wrapped
def wrapped() -> bool:
    return getattr(sys.modules.get(__name__), "__dict__", None) is globals()


def _replace(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def other() -> str:
        return "the replacement"

    return other


@_replace
def replaced() -> str:
    return "the original"


class Reasoned(Exception):
    """Has an attribute besides its message."""

    def __init__(self, message: str, *, reason: str = "none") -> None:
        super().__init__(message)
        self.reason = reason


class Picky(Exception):
    """Cannot be created from its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")


class Changing(Exception):
    """Has another message when it is created again."""

    def __init__(self, message: str) -> None:
        super().__init__(message + "!")


class BrokenMessage(Exception):
    """Has a `__str__` that raises."""

    def __str__(self) -> str:
        raise ValueError("no message")


def fail(error: BaseException) -> None:
    raise error


def fail_picky() -> None:
    raise Picky(7, "too hot")


def fail_holding_a_lock() -> None:
    error = ValueError("locked")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


def give(value: Any) -> Any:
    return value


def write_late(path: str, seconds: float) -> None:
    report(str(os.getpid()))
    time.sleep(seconds)
    Path(path).write_text("too late")


def start_a_child() -> None:
    child = subprocess.Popen(["sleep", "60"])
    report(f"{os.getpid()} {child.pid}")
    child.wait()


def never_yield() -> None:
    """Hold the GIL, so that no other thread of the process runs."""
    report(str(os.getpid()))
    re.match(r"(a+)+$", "a" * 60 + "b")


def sleep_long() -> None:
    report(str(os.getpid()))
    time.sleep(60)


# On other systems the kernel sends no signal, and a thread that cannot run does not notice that the parent exited.
stubborn = never_yield if sys.platform == "linux" else sleep_long


def leave_a_daemon_and_die() -> None:
    settled, settle = os.pipe()
    daemon = os.fork()
    if daemon == 0:
        os.setsid()
        os.close(settle)
        time.sleep(60)
        os._exit(0)
    os.close(settle)
    os.read(settled, 1)  # read once the daemon has left the process group, so that it is not killed with it
    report(str(daemon))
    os._exit(4)


def wait_for_others(folder: str, number: int) -> int:
    """Wait until `number` calls run at the same time."""
    (Path(folder) / str(os.getpid())).touch()
    while len(os.listdir(folder)) < number:
        time.sleep(0.005)
    return os.getpid()


def note(path: str, part: int) -> None:
    with open(path, "a") as file:
        file.write(f"{part} ")


# Calls and results


async def test_result_of_the_function_is_returned(workers: Workers) -> None:
    assert await run(workers, add, a=2, b=3) == 5
    assert await workers.run(add, {"b": 3}, positional=[2]) == 5
    assert await run(workers, os.getpid) != os.getpid()


async def test_module_function_is_sent_by_reference(workers: Workers) -> None:
    assert await run(workers, by_reference) is True
    assert await run(workers, wrapped.function) is True


async def test_function_shadowed_by_another_is_the_one_that_runs(workers: Workers) -> None:
    original = replaced.__wrapped__  # type: ignore[attr-defined]
    assert await run(workers, original) == "the original"
    assert await run(workers, replaced) == "the replacement"


async def test_closures_lambdas_partials_and_methods_are_sent_by_value(workers: Workers) -> None:
    offset = 10

    def closure(a: int) -> int:
        return a + offset

    assert await run(workers, closure, a=1) == 11
    assert await run(workers, lambda: offset * 2) == 20
    assert await run(workers, functools.partial(add, 1), b=2) == 3
    assert await run(workers, "a-b".split, sep="-") == ["a", "b"]


async def test_module_that_a_worker_cannot_import_is_sent_by_value(workers: Workers, tmp_path: Path) -> None:
    file = tmp_path / "hidden_module.py"
    file.write_text("class Box:\n    pass\n\ndef helper():\n    return 6\n\ndef box(old):\n    new = Box()\n")
    file.write_text(file.read_text() + "    new.size = old.size + helper()\n    return new\n")
    spec = importlib.util.spec_from_file_location("hidden_module", file)
    assert spec is not None and spec.loader is not None
    hidden = sys.modules["hidden_module"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(hidden)
        old = hidden.Box()
        old.size = 1
        new = await run(workers, hidden.box, old=old)
        assert (type(new), new.size) == (hidden.Box, 7)
        assert (await run(workers, hidden.box, old=new)).size == 13
    finally:
        del sys.modules["hidden_module"]


async def test_local_class_is_returned_as_the_same_class(workers: Workers) -> None:
    class Local:
        pass

    class LocalError(Exception):
        pass

    assert type(await run(workers, give, value=Local())) is Local
    assert type(await run(workers, lambda: Local())) is Local
    with pytest.raises(LocalError, match="mine"):
        await run(workers, fail, error=LocalError("mine"))


async def test_worker_uses_the_working_directory_of_its_parent(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await run(workers, os.getcwd) == os.getcwd()
    (tmp_path / "just_written.py").write_text("def answer():\n    return __file__\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import just_written  # pyrefly: ignore[missing-import] - written above

    try:
        assert await run(workers, just_written.answer) == str(tmp_path / "just_written.py")
        assert await run(workers, os.getcwd) == str(tmp_path)
    finally:
        del sys.modules["just_written"]


async def test_worker_imports_few_modules() -> None:
    workers = Workers(warm=1)
    modules = await workers.run(eval, {}, positional=["list(__import__('sys').modules)"])
    await workers.close()
    assert [name for name in HEAVY if name in modules] == []


# Errors


async def test_error_is_raised_with_its_type_and_attributes(workers: Workers) -> None:
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        await run(workers, lambda: 1 / 0)
    with pytest.raises(Reasoned, match="it rains") as caught:
        await run(workers, fail, error=Reasoned("it rains", reason="clouds"))
    assert caught.value.reason == "clouds"
    assert "in fail" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fail_picky, r"Picky: too hot \(7\)"),
        (fail_holding_a_lock, "ValueError: locked"),
        (lambda: fail(Changing("ha")), "Changing: ha!"),
    ],
)
async def test_error_that_cannot_be_pickled_keeps_its_name_and_message(
    workers: Workers, function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(RuntimeError, match=f"^{message}$"):
        await run(workers, function)


async def test_error_without_message_or_with_a_huge_one_is_handled(workers: Workers) -> None:
    with pytest.raises(BrokenMessage):
        await run(workers, lambda: fail(BrokenMessage()))
    with pytest.raises(RuntimeError, match=r"^ValueError: x{10000}$"):
        await run(workers, lambda: fail(ValueError("x" * 3_000_000)))


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(), asyncio.CancelledError()]
)
async def test_exit_exceptions_become_ordinary_errors(workers: Workers, error: BaseException) -> None:
    with pytest.raises(RuntimeError) as caught:
        await run(workers, fail, error=error)
    assert str(caught.value) == f"the function raised {error!r}"


async def test_process_that_exits_is_reported_and_replaced(workers: Workers) -> None:
    first = await run(workers, os.getpid)
    with pytest.raises(WorkerDied, match="exited with code 3"):
        await workers.run(os._exit, {}, positional=[3])
    with pytest.raises(WorkerDied, match="SIGSEGV"):
        await run(workers, lambda: os.kill(os.getpid(), signal.SIGSEGV))
    assert await run(workers, os.getpid) != first


async def test_forked_child_does_not_keep_the_socket_of_a_dead_worker_open(workers: Workers) -> None:
    started = StartedCall(workers, leave_a_daemon_and_die)
    with pytest.raises(WorkerDied, match="exited with code 4"):
        await asyncio.wait_for(started.task, TIMEOUT)
    daemon = int(started.progress.result())
    assert not is_dead(daemon)
    os.kill(daemon, signal.SIGKILL)


async def test_worker_that_died_idle_is_skipped(workers: Workers) -> None:
    idle = await run(workers, os.getpid)
    os.kill(idle, signal.SIGKILL)
    assert await run(workers, os.getpid) != idle


async def test_error_names_what_cannot_be_pickled(workers: Workers) -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot send argument 'value' of give to a worker: .*lock"):
        await run(workers, give, value=[lock])
    with pytest.raises(TypeError, match="cannot send argument 1 of give"):
        await workers.run(give, {}, positional=[lock])
    with pytest.raises(TypeError, match=r"cannot send .*locked to a worker: .*lock"):
        await run(workers, _locked(lock))
    with pytest.raises(TypeError, match=r"cannot send the result of .* \(lock\) from a worker: .*lock"):
        await run(workers, threading.Lock)


def _locked(lock: Any) -> Callable[[], bool]:
    def locked() -> bool:
        return lock.locked()

    return locked


async def test_deeply_nested_result_is_handled(workers: Workers) -> None:
    def deep() -> list[Any]:
        nested: list[Any] = []
        for _ in range(100_000):
            nested = [nested]
        return nested

    with pytest.raises(TypeError, match=r"cannot send the result of .*deep \(list\)"):
        await run(workers, deep)


async def test_result_over_the_limit_never_reaches_the_parent(workers: Workers) -> None:
    await run(workers, add, a=1)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"the result of bytes is larger than 32 MB"):
            await workers.run(bytes, {}, positional=[100_000_000])
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert await run(workers, lambda: b"x" * 20_000_000) == b"x" * 20_000_000


# Cancellation


async def test_cancelled_function_is_dead_before_the_cancellation_is_raised(workers: Workers, tmp_path: Path) -> None:
    path = tmp_path / "late"
    started = StartedCall(workers, write_late, path=str(path), seconds=0.5)
    (pid,) = await started.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await asyncio.sleep(0.6)
    assert not path.exists()
    assert await run(workers, os.getpid) != pid


async def test_function_that_holds_the_gil_is_killed(workers: Workers) -> None:
    (pid,) = await StartedCall(workers, never_yield).cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_child_processes_of_a_function_are_killed(workers: Workers) -> None:
    pids = await StartedCall(workers, start_a_child).cancel()
    assert len(pids) == 2
    assert await all_dead(*pids)


async def test_second_cancellation_does_not_shorten_the_wait(workers: Workers) -> None:
    started = StartedCall(workers, sleep_long)
    pid = int(await asyncio.wait_for(started.progress, TIMEOUT))
    for _ in range(3):
        started.task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(started.task), TIMEOUT)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_event_loop_is_never_blocked_by_a_worker() -> None:
    async def heartbeat(gaps: list[float]) -> None:
        while True:
            start = time.thread_time()
            await asyncio.sleep(0.001)
            gaps.append(time.thread_time() - start)

    worst: list[float] = []
    for _ in range(3):  # delays caused by the machine are occasional, ours would occur every time
        gaps: list[float] = []
        heartbeat_task = asyncio.create_task(heartbeat(gaps))
        workers = Workers()
        await run(workers, lambda: list(map(str, range(100_000))))
        await StartedCall(workers, sleep_long).cancel()
        await workers.close()
        heartbeat_task.cancel()
        worst.append(max(gaps))
        if worst[-1] < STALL:
            break
    assert min(worst) < STALL * cpu_factor()


# Progress


async def test_progress_arrives_in_order_and_before_the_result(workers: Workers) -> None:
    def count(to: int) -> str:
        for number in range(to):
            report(f"{number} of {to}")
        return "done"

    reported: list[str] = []
    assert await workers.run(count, {"to": 500}, report=reported.append) == "done"
    assert reported == [f"{number} of 500" for number in range(500)]
    assert await run(workers, count, to=3) == "done"


async def test_progress_outside_a_worker_is_ignored() -> None:
    report("ignored")


async def test_output_of_a_function_does_not_disturb_the_protocol(capfd: pytest.CaptureFixture[str]) -> None:
    def talk() -> str:
        print("on stdout")
        print("on stderr", file=sys.stderr)
        os.write(1, b"on descriptor 1\n")
        subprocess.run(["echo", "from a child"], check=True)
        return sys.stdin.read() + "quiet"

    workers = Workers(warm=1)  # its stderr is what this process's was when it started
    assert await run(workers, talk) == "quiet"
    await workers.close()
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ["on stdout", "on stderr", "on descriptor 1", "from a child"]


# Pool size


async def test_warm_worker_executes_one_call_after_another(workers: Workers) -> None:
    assert len({await run(workers, os.getpid) for _ in range(5)}) == 1


async def test_more_calls_than_workers_wait_in_order(tmp_path: Path) -> None:
    workers, path = Workers(warm=1, at_most=1), tmp_path / "order"
    await asyncio.gather(*(run(workers, note, path=str(path), part=part) for part in range(8)))
    await workers.close()
    assert path.read_text() == "0 1 2 3 4 5 6 7 "


async def test_workers_are_started_as_needed_and_only_the_warm_ones_stay(tmp_path: Path) -> None:
    workers = Workers(warm=1, at_most=3)
    pids = await asyncio.gather(*(run(workers, wait_for_others, folder=str(tmp_path), number=3) for _ in range(9)))
    assert len(set(pids)) == 3
    last = await run(workers, os.getpid)
    assert await all_dead(*(set(pids) - {last}))
    assert not is_dead(last)
    await workers.close()


async def test_pool_without_warm_workers_executes_all_calls() -> None:
    workers = Workers(warm=0, at_most=1)
    pids = {await run(workers, os.getpid) for _ in range(3)}
    await workers.close()
    assert len(pids) == 3


async def test_call_that_waits_for_a_worker_can_be_cancelled() -> None:
    workers = Workers(warm=1, at_most=1)
    started = StartedCall(workers, sleep_long)
    await asyncio.wait_for(started.progress, TIMEOUT)
    waiting = [asyncio.create_task(run(workers, add, a=number)) for number in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await started.cancel()
    assert await asyncio.gather(waiting[0], waiting[2]) == [0, 2]
    assert waiting[1].cancelled()
    await workers.close()


# Shutdown


async def test_closed_pool_kills_all_workers_and_can_be_used_again(workers: Workers) -> None:
    idle = await run(workers, os.getpid)
    started = StartedCall(workers, sleep_long)
    busy = int(await asyncio.wait_for(started.progress, TIMEOUT))
    await workers.close()
    assert await all_dead(idle, busy)
    with pytest.raises(WorkerDied):
        await asyncio.wait_for(started.task, TIMEOUT)
    await workers.close()
    assert await run(workers, add, a=1) == 1


async def test_pool_closed_while_workers_start_leaves_none_behind() -> None:
    workers, before = Workers(warm=3), worker_count()
    waiting = asyncio.create_task(run(workers, add, a=1))
    await asyncio.sleep(0.01)
    await workers.close()
    with pytest.raises(WorkerDied, match="closed"):
        await waiting
    assert worker_count() == before


async def test_call_that_is_being_pickled_when_the_pool_closes_fails(workers: Workers) -> None:
    packing = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Slow:
        def __reduce__(self) -> tuple[Any, ...]:
            loop.call_soon_threadsafe(packing.set)
            time.sleep(0.2)
            return int, ()

    waiting = asyncio.create_task(run(workers, give, value=Slow()))
    await asyncio.wait_for(packing.wait(), TIMEOUT)
    await workers.close()
    with pytest.raises(WorkerDied, match="closed"):
        await waiting


async def test_workers_end_with_their_event_loop() -> None:
    workers = Workers()
    for _ in range(2):
        pid = await asyncio.to_thread(asyncio.run, run(workers, os.getpid))
        assert is_dead(pid)


async def test_workers_of_a_closed_event_loop_are_killed_by_the_next() -> None:
    workers = Workers(warm=1)

    def close_at_once() -> int:
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(run(workers, os.getpid))
        finally:
            loop.close()

    left = await asyncio.to_thread(close_at_once)
    assert await run(workers, os.getpid) != left
    assert await all_dead(left)
    await workers.close()


async def test_workers_of_a_collected_agent_end(workers: Workers) -> None:
    def used() -> tuple[int, int, int]:
        gc.collect()
        threads = sum(thread.name == "atlas-worker" for thread in threading.enumerate())
        return worker_count(), threads, len(os.listdir("/dev/fd"))

    await run(workers, add, a=1)  # none of the shared ones starts or ends meanwhile
    before = used()
    for _ in range(3):
        agent = Agent("adds", model=Scripted(calls("add", a=1, b=2), says("3")), tools=[add])
        assert (await asyncio.wait_for(agent.run("Add"), TIMEOUT)).steps[0].output == 3
        del agent
    await wait_until(lambda: all(now <= then for now, then in zip(used(), before, strict=True)), seconds=scaled(20))


async def test_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerDied, match=r"could not be started: .*No such file"):
        await run(workers, add, a=1)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkerDied, match="exited with code 1 before it could start the function"):
        await run(workers, add, a=1)
    monkeypatch.undo()
    assert await run(workers, add, a=1) == 1
    await workers.close()


# Scripts

SCRIPT = """
import asyncio, os, sys
from dataclasses import dataclass
from atlas_agents.tools.worker_pool import Workers

print("the script runs")

@dataclass
class Point:
    x: int

class Off(Exception):
    pass

def move(point, by):
    print("moving")
    if by < 0:
        raise Off(f"no {by}")
    return Point(point.x + by)

async def main():
    workers = Workers(warm=1)
    print(await workers.run(move, {"point": Point(1), "by": 2}))
    try:
        await workers.run(move, {"point": Point(1), "by": -1})
    except Off as error:
        print("Off:", error)

asyncio.run(main())
"""

ORPHANS = """
import asyncio, os, signal, sys
sys.path.insert(0, {folder!r})
from test_workers import start_a_child, stubborn
from atlas_agents.tools.worker_pool import Workers

async def main():
    workers, messages, both = Workers(warm=2), [], asyncio.Event()

    def on_progress(message):
        messages.append(message)
        if len(messages) == 2:
            both.set()

    idle = await workers.run(os.getpid, {{}})
    calls = [asyncio.create_task(workers.run(f, {{}}, report=on_progress)) for f in (stubborn, start_a_child)]
    await both.wait()
    print(idle, *messages, await workers.run(os.getpid, {{}}), flush=True)
    {ending}

asyncio.run(main())
"""


async def run_script(path: Path, text: str) -> tuple[int | None, str, str]:
    path.write_text(text)  # noqa: ASYNC240 - nothing else runs here
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=path.parent
    )
    out, err = await asyncio.wait_for(process.communicate(), TIMEOUT)
    return process.returncode, out.decode(), err.decode()


async def test_functions_and_classes_of_a_script_work_without_running_it_again(tmp_path: Path) -> None:
    code, out, err = await run_script(tmp_path / "script.py", SCRIPT)
    assert (code, out) == (0, "the script runs\nPoint(x=3)\nOff: no -1\n")
    assert err == "moving\nmoving\n"


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)", "sys.exit()"])
async def test_no_worker_outlives_its_parent(tmp_path: Path, ending: str) -> None:
    script = ORPHANS.format(folder=str(Path(__file__).parent), ending=ending)
    _, out, err = await run_script(tmp_path / "script.py", script)
    pids = [int(part) for part in out.split()]
    assert len(pids) == 5, err
    assert await all_dead(*pids)
