"""Tests wait for events and conditions, not for time to pass."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent
PROCESS_LEVEL = (
    "cli/",
    "dispatch/",
    "durable/crash/",
    "foreign/",
    "gateway/gateway_process.py",
    "gateway/kill_process.py",
    "gateway/reconnecting_client.py",
    "gateway/test_gateway_restarts.py",
    "gateway/test_many_sockets.py",
    "local/",
    "page/",
    "stores/",
    "toolbox/",
    "web/searx_server.py",
    "test_workers.py",
    "valkey_server.py",
)
"""Suites about other processes, and programs that run as such: no event tells what happens in another process."""
HELPERS = (
    "checks.py",  # `wait_until` polls with a bound, `monitor_loop` measures whether the loop is free
    "gateway/paced_model.py",  # a model that streams slowly
    "telegram/channel_setup.py",  # a model that streams slowly
)
_MODULES = ("asyncio", "time", "anyio")


def test_no_test_sleeps_but_those_about_other_processes() -> None:
    allowed = (*PROCESS_LEVEL, *HELPERS)
    names = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.py"))
    found = [f"{name}:{line}" for name in names if not name.startswith(allowed) for line in _sleeps(TESTS / name)]
    assert found == [], "wait for an event, or for a condition with checks.until"


def _sleeps(path: Path) -> list[int]:
    """The lines that sleep for longer than one round of the event loop."""
    source = path.read_text()
    if "sleep" not in source:  # parsing takes a hundred times longer
        return []
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return sorted(call.lineno for call in calls if _is_sleep(call.func) and not _is_zero(call.args))


def _is_sleep(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(ast.Name(module), "sleep"):
            return module in _MODULES
        case ast.Name("sleep"):
            return True
        case _:
            return False


def _is_zero(arguments: list[ast.expr]) -> bool:
    match arguments:
        case [ast.Constant(0)]:
            return True
        case _:
            return False


def test_a_sleep_is_found_wherever_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "sleeps.py"
    file.write_text("await asyncio.sleep(0)\ntime.sleep(1)\nawait asyncio.sleep(0.01)\nsleep(pause)\nclock.sleep(1)\n")
    assert _sleeps(file) == [2, 3, 4]
