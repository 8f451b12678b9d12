"""Rules for every test: no network beyond loopback, no settings from the host, bytecode files for child processes."""

import faulthandler
import gc
import ipaddress
import os
import resource
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import Generator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

import fork_server
from checks import scaled

if TYPE_CHECKING:
    from stores.postgres_server import PostgresServer

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # shells set this for background jobs
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests start hundreds of Python processes. Without bytecode files each one would compile every module it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# An example may take long on a busy machine.
hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("tests")

_SETTINGS = (
    *("ATLAS_", "BRAVE_", "TAVILY_", "EXA_", "SEARXNG_", "OPENAI_", "ANTHROPIC_", "GOOGLE_API_", "GEMINI_"),
    *("DEEPSEEK_", "GROQ_", "MISTRAL_", "OPENROUTER_", "XAI_"),
)


class NetworkIsClosed(RuntimeError):
    """A test tried to reach a host beyond loopback. Not an `OSError`, so no retry treats it as a network failure."""


def _refuse_beyond_loopback(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: Python calls it for every socket, whichever library opened it."""
    match event, arguments:
        case (("socket.connect" | "socket.sendto" | "socket.sendmsg"), (_, address)):
            _check(address)
        case (("socket.getaddrinfo" | "socket.gethostbyname" | "socket.gethostbyaddr"), (host, *_)):
            _check((host,))
        case _:
            pass


def _check(address: Any) -> None:
    match address:
        case (str() | bytes() as host, *_) if not _is_loopback(host):
            raise NetworkIsClosed(f"tests reach loopback only, not {address!r}")
        case _:
            pass  # a Unix socket's path, or a socket that is already connected


def _is_loopback(host: str | bytes) -> bool:
    name = host if isinstance(host, str) else host.decode()
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name in ("", "localhost")


def _connect(self: socket.socket, address: Any, /) -> None:
    """Check the address first: Python resolves a name before it raises the audit event for `connect`."""
    _check(address)
    _original_connect(self, address)


_original_connect = socket.socket.connect
socket.socket.connect = _connect
sys.addaudithook(_refuse_beyond_loopback)


_YOUNG_OBJECTS, _OLD_OBJECTS = 5_000, 50_000
"""Number of new objects after which the garbage collector runs, and of old ones that it scans at most."""
_LONG_TEST = 600.0
"""Time limit in seconds of a test that is known to take long."""
_GRACE = 60.0
"""Seconds after its time limit at which a test that still runs ends its process."""


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Generator["PostgresServer"]:
    """The Postgres of the whole run, with a database for this worker process."""
    from stores.postgres_server import shared_server

    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with shared_server(folder) as server, server.with_database() as own:
        yield own


def pytest_collectstart() -> None:
    """Search for no garbage while modules are imported and tests are collected: they stay."""
    gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu", action="store_true", help="print the files that took the most CPU time")


_cpu_before = pytest.StashKey[float]()
_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)  # what tests write to it later is captured


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Scale the time limit of a test to the speed of the machine as it is now, and end the process of one that hangs.

    The exception that the time limit raises in a test can be lost: in a callback of an event loop, or in C code that
    does not return. Then nothing else would end the run. The stacks of all threads are printed.
    """
    limit = scaled(_time_limit(item) or float(item.config.getini("timeout")))
    item.add_marker(pytest.mark.timeout(limit), append=False)
    _end_process_after(limit + scaled(_GRACE), item.config)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Limit the time of the teardown after a failure, too; pytest cancels the timer when a test fails."""
    if isinstance(node, pytest.Item) and not node.config.getoption("usepdb"):
        _end_process_after(scaled(_GRACE), node.config)


def _end_process_after(seconds: float, config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=config.stash[_stderr])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.config.getoption("cpu"):
        item.stash[_cpu_before] = _cpu_seconds()
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "teardown" and _cpu_before in item.stash:
        item.user_properties.append(("cpu_seconds", round(_cpu_seconds() - item.stash[_cpu_before], 2)))


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of those that it waited for; servers that still run are not included."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + fork_server.cpu_seconds()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each worker process start with its share of the longest tests, then of the slow files.

    So the run ends with quick tests, which idle workers take from busy ones. Tests that share a model server stay
    together: each worker would start one, and it would read every prompt anew. So do those that share the parsed
    modules of the repository, and those that share a browser.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers == 1:
        return
    together = [item for item in items if "shared_home" in getattr(item, "fixturenames", ())]
    parsed = [item for item in items if hasattr(getattr(item, "module", None), "structure")]
    browser = [item for item in items if "shared_browser" in getattr(item, "fixturenames", ())]
    shared = {*together, *parsed, *browser}
    longest = [item for item in items if _time_limit(item) >= _LONG_TEST and item not in shared]
    first = [longest[n::workers] for n in range(workers)]
    first[0][:0], first[1][:0], first[-1][:0] = together, browser, parsed
    chosen = {item for share in first for item in share}
    slow: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item not in chosen and item.get_closest_marker("slow") is not None:
            slow.setdefault(item.path, []).append(item)
    for tests in sorted(slow.values(), key=len, reverse=True):  # a file stays together for its fixtures
        min(first, key=len).extend(tests)
    chosen.update(item for share in first for item in share)
    quick = iter([item for item in items if item not in chosen])
    share = len(items) // workers
    items[:] = [item for tests in first for item in (*tests, *islice(quick, max(0, share - len(tests))))]
    items += quick


def _time_limit(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker is not None and marker.args else 0.0


def pytest_collection_finish() -> None:
    """Keep the garbage collector from scanning all imported modules and collected tests again and again."""
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 20)
    gc.enable()


_full_collections = 0


def pytest_runtest_logfinish() -> None:
    """Freeze what survives a full collection, such as modules that tests have imported, once it is too much."""
    global _full_collections
    if gc.get_stats()[2]["collections"] == _full_collections:
        return
    if len(gc.get_objects(generation=2)) > _OLD_OBJECTS:
        gc.collect()
        gc.freeze()
    _full_collections = gc.get_stats()[2]["collections"]


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the output of the run with a line that says nothing but how many tests passed and failed."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(reporter, pytest.TerminalReporter) and (counts := _count_outcomes(reporter)):
        print(counts)


def _count_outcomes(reporter: pytest.TerminalReporter) -> str:
    """Return `N passed, N failed`; errors count as failures, and nothing is returned if no test was run."""
    passed = len(reporter.getreports("passed"))
    failed = sum(len(reporter.getreports(kind)) for kind in ("failed", "error"))
    return f"{passed} passed, {failed} failed" if passed + failed else ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of crash cases run by all worker processes, and with `--cpu` the files that take the most."""
    reports: list[pytest.TestReport] = [
        report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)
    ]
    counts = [int(str(value)) for report in reports for name, value in report.user_properties if name == "crash_cases"]
    if counts:
        terminalreporter.write_line(f"{sum(counts)} crash cases")
    files = defaultdict[str, float](float)
    ended: list[pytest.TestReport] = terminalreporter.getreports("")
    for report in ended:
        files[report.nodeid.partition("::")[0]] += sum(
            float(str(value)) for name, value in report.user_properties if name == "cpu_seconds"
        )
    if any(files.values()):
        terminalreporter.section(f"CPU seconds: {sum(files.values()):.0f}")
        for file, seconds in sorted(files.items(), key=lambda each: -each[1])[:40]:
            terminalreporter.write_line(f"{seconds:8.1f} {file}")
