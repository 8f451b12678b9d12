"""Code that exhausts resources, breaks its interpreter, or forges its result."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from code_harness import SANDBOXES, SandboxHarness

from atlas_agents.builtin_tools.code import tool
from checks import linux_only

pytestmark = linux_only

SECONDS, SHORT = 30.0, 1.0
# Each attempt with texts, one of which its result or error must contain.
GREEDY: dict[str, tuple[str, tuple[str, ...]]] = {
    "memory at once": ("x = bytearray(10**9)", ("MemoryError",)),
    "memory gradually": ("x = []\nwhile True: x.append(bytearray(10**6))", ("MemoryError", "memory", "ended")),
    "memory of many processes": (
        "import os, time\nfor _ in range(5):\n    if os.fork() == 0:\n        x = bytearray(b'x' * (90 << 20))\n"
        "        time.sleep(60)\ntime.sleep(60)",
        ("memory", "AttributeError", "no attribute"),
    ),
    "shared memory": (
        "import mmap\nkept = []\nwhile True:\n    kept.append(mmap.mmap(-1, 1 << 24))\n"
        "    kept[-1].write(b'x' * (1 << 24))",
        ("memory", "MemoryError", "OSError", "ModuleNotFoundError"),
    ),
    "a value of great length": ("list(range(10**6))", ("characters left out",)),
    "a value of great depth": ("a = []\nfor _ in range(10**5): a = [a]\na", ("RecursionError", "ended")),
    "recursion": ("def f(): return f()\nf()", ("RecursionError",)),
    "processes": (
        "import os, time\nfor _ in range(400):\n    if os.fork() == 0: time.sleep(60); os._exit(0)\n"
        "time.sleep(10)\n'all of them'",
        ("processes", "Resource temporarily unavailable", "BlockingIOError", "AttributeError"),
    ),
    "threads": (
        "import threading, time\nfor _ in range(500): threading.Thread(target=time.sleep, args=(60,)).start()\n'all'",
        ("processes", "can't start new thread"),
    ),
    "output without end": ("while True: print('x' * 1000)", ("printed more than",)),
    "output at once": ("print('x' * 30_000_000)", ("printed more than",)),
    "errors without end": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", ("printed more than",)),
    "a large file": ("open('big', 'wb').write(b'x' * (80 << 20))", ("too large", "size", "OSError", "ended")),
    "a file with a hole": ("open('big', 'wb').truncate(1 << 40)", ("too large", "size", "OSError", "ended")),
    "many large files": (
        "for n in range(100):\n    with open(f'f{n}', 'wb') as f: f.write(b'x' * (30 << 20))",
        ("to disk", "OSError", "ended"),
    ),
    "many files": (
        "import itertools, os\nfor n in itertools.count(): os.close(os.open(f'f{n}', os.O_CREAT | os.O_WRONLY))",
        ("to disk", "OSError"),
    ),
    "files in its own memory": (
        "import os\nfor n in range(400):\n    with open(f'/dev/shm/f{n}', 'wb') as f: f.write(b'x' * (1 << 20))",
        ("No space left", "Permission denied", "No such file", "OSError"),
    ),
    "open files": (
        "kept = [open('/dev/null') for _ in range(10_000)]",
        ("Too many open files", "No such file", "OSError"),
    ),
}
ENDLESS: dict[str, tuple[str, tuple[str, ...]]] = {
    "recursion without a limit": (
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1) + 1\nf(0)",
        ("ended", "MemoryError", "RecursionError", "memory", "ran longer"),
    ),
    "time": ("while True: pass", ("ran longer than 1 s",)),
    "time, sleeping": ("import time; time.sleep(100)", ("ran longer than 1 s",)),
    "time, in the representation": (
        "class A:\n    def __repr__(self):\n        while True: pass\nA()",
        ("ran longer than 1 s",),
    ),
    "time, ignoring signals": (
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        ("ran longer than 1 s",),
    ),
    "time, in one long operation": ("10 ** 10 ** 9 and None", ("ran longer than 1 s", "MemoryError", "memory")),
    "time, in a regular expression": ("import re; re.match(r'(a+)+$', 'a' * 50 + 'b')", ("ran longer than 1 s",)),
}
BREAKING: dict[str, tuple[str, tuple[str, ...]]] = {
    "os._exit": ("import os; os._exit(7)", ("ended with exit code 7", "ended with exit code 1")),
    "sys.exit": ("import sys; sys.exit(3)", ("SystemExit: 3",)),
    "it is interrupted": ("raise KeyboardInterrupt", ("KeyboardInterrupt",)),
    "it kills itself": ("import os; os.kill(os.getpid(), 9)", ("ended", "AttributeError")),
    "it aborts": ("import os; os.abort()", ("ended",)),
    "it crashes": ("import ctypes; ctypes.string_at(0)", ("ended", "ModuleNotFoundError")),
    "it closes all descriptors": ("import os; os.closerange(0, 256); 'all'", ("ended", "OSError", "'all'")),
    "it closes its streams": (
        "import sys; sys.stdout.close(); sys.stderr.close(); 'still'",
        ("'still'", "no attribute"),
    ),
    "it replaces its streams": ("import sys; sys.stdout = sys.stderr = None; 'still'", ("'still'",)),
    "it deletes builtins": (
        "import builtins; del builtins.repr, builtins.isinstance; 5",
        ("ended", "NameError"),
    ),
    "it asks for input": ("input()", ("EOFError", "OSError")),
    "it reads standard input": ("import sys; sys.stdin.read(9)", ("''", "OSError", "AttributeError")),
    "an error without a message": (
        "class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E",
        ("E", "exception str() failed"),
    ),
    "an error with a long message": ("raise ValueError('x' * 10**7)", ("characters left out",)),
    "an error of many causes": (
        "e = None\nfor n in range(3000):\n    try: raise ValueError from e\n    except ValueError as x: e = x\nraise e",
        ("ValueError", "ended"),
    ),
    "a value that cannot be shown": (
        "class A:\n    def __repr__(self): raise RuntimeError('no')\nA()",
        ("RuntimeError: no",),
    ),
    "a repr that is not a string": ("class A:\n    def __repr__(self): return 5\nA()", ("TypeError",)),
    "a value with a surrogate": ("'\\ud800'", ("ud800", "�")),
    "invalid Python": ("this is (no Python", ("SyntaxError",)),
    "a NUL in the code": ("x = 1\0", ("SyntaxError", "ValueError", "null byte")),
    "much code": ("x = 1\n" * 5_000 + "x", ("1",)),
    "code of great depth": ("(" * 5000 + ")" * 5000, ("SyntaxError", "MemoryError", "RecursionError", "ended")),
    "exit handlers": (
        "import atexit, time\natexit.register(time.sleep, 60)\natexit.register(print, 'never')\n'done'",
        ("'done'",),
    ),
    "a thread that does not end": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n'done'",
        ("'done'", "can't start new thread"),
    ),
}
_FIND_CHANNEL = """
import json, os, socket, struct
found = [n for n in range(3, 99) if os.path.exists(f"/proc/self/fd/{n}")]
channel = socket.socket(fileno=next(n for n in found if os.readlink(f"/proc/self/fd/{n}").startswith("socket")))
def send(body): channel.sendall(struct.pack("!I", len(body)) + body)
"""
FORGED = {
    "another ID": "send(json.dumps({'id': 'x', 'value': 'forged'}).encode())\n'true'",
    "many replies": "for _ in range(1000): send(json.dumps({'id': 'x', 'value': 'forged'}).encode())\n'true'",
    "invalid JSON": "send(b'{')\n'true'",
    "not an object": "send(b'[1]')\n'true'",
    "deeply nested": "send(b'[' * 200_000 + b']' * 200_000)\n'true'",
    "wrong types": "send(json.dumps({'id': 5, 'value': {'a': 1}}).encode())\n'true'",
    "a long reply": "channel.sendall(struct.pack('!I', 2**32 - 1) + b'x' * 100_000)\n'true'",
    "half a reply": "channel.sendall(struct.pack('!I', 1000) + b'x')\nimport os; os._exit(0)",
}


@pytest.fixture(params=SANDBOXES)
async def harness(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SandboxHarness]:
    monkeypatch.setattr(tool, "_MAX_WRITTEN", 200 << 20)
    made = SandboxHarness(request.param, tmp_path, seconds=SECONDS)
    yield made
    await made.close()


def result_text(result: dict[str, Any]) -> str:
    return " ".join(str(result.get(name, "")) for name in ("error", "fault", "value", "stderr"))


@pytest.mark.slow
async def test_greedy_code_is_limited(harness: SandboxHarness) -> None:
    found = await _run_all(harness, GREEDY)
    assert [(name, result_text(found[name])) for name in found if not _as_expected(found[name], GREEDY[name][1])] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", SANDBOXES)
async def test_endless_code_is_killed(kind: str, tmp_path: Path) -> None:
    harness = SandboxHarness(kind, tmp_path, seconds=SHORT)
    found = await _run_all(harness, ENDLESS)
    assert [(name, result_text(found[name])) for name in found if not _as_expected(found[name], ENDLESS[name][1])] == []
    assert {result.get("kind") for name, result in found.items() if name.startswith("time")} <= {"timeout", "failed"}
    assert max(result["took"] for result in found.values()) < SHORT + 30, "of 100 seconds and more"
    await harness.close()


@pytest.mark.slow
async def test_broken_code_does_not_affect_later_calls(harness: SandboxHarness) -> None:
    """Each sandbox runs every other attempt: they break the interpreter, which is the same in both."""
    breaking = dict(list(BREAKING.items())[SANDBOXES.index(harness.kind) :: len(SANDBOXES)])
    found = await _run_all(harness, breaking)
    assert [
        (name, result_text(found[name])) for name in found if not _as_expected(found[name], BREAKING[name][1])
    ] == []
    assert (await harness.run("6 * 7"))["value"] == "42"


async def _run_all(
    harness: SandboxHarness, attempts: dict[str, tuple[str, tuple[str, ...]]]
) -> dict[str, dict[str, Any]]:
    gate = asyncio.Semaphore(4)

    async def one(code: str) -> dict[str, Any]:
        async with gate:
            began = time.monotonic()
            result = await harness.run(code, conversation=secrets.token_hex(8))
            return {**result, "took": time.monotonic() - began}

    return dict(zip(attempts, await asyncio.gather(*(one(code) for code, _ in attempts.values())), strict=True))


def _as_expected(result: dict[str, Any], texts: tuple[str, ...]) -> bool:
    return any(text in result_text(result) for text in texts) and len(str(result)) < 50_000


@pytest.mark.parametrize("attempt", FORGED)
async def test_forged_replies_affect_only_their_own_call(attempt: str, tmp_path: Path) -> None:
    harness = SandboxHarness("bubblewrap", tmp_path, seconds=SECONDS)
    try:
        await harness.run("x = 1", session=True)
        result = await harness.run(_FIND_CHANNEL + FORGED[attempt], session=True)
        assert result.get("value") == "'true'" or "error" in result
        after = await harness.run("x", session=True)
        assert after.get("value") == "1" or "NameError" in after["error"]
        assert "forged" not in str(after)
        assert harness.notes == {"sandbox": "bubblewrap"}
    finally:
        await harness.close()


async def test_output_is_decoded_as_text(harness: SandboxHarness) -> None:
    code = "import os, sys\nsys.stdout.write('a\\x1b[31m\\0b')\nsys.stdout.flush()\nos.write(1, b'\\xff\\xfe!')"
    result = await harness.run(code)
    assert result["stdout"].startswith("a\x1b[31m\0b")
    assert os.linesep not in result["stdout"]
    assert result["stdout"].endswith("!")


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_what_a_session_writes_is_limited_per_call(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the files are deleted, so that the folder does not grow."""
    monkeypatch.setattr(tool, "_MAX_WRITTEN", 60 << 20)
    harness = SandboxHarness(kind, tmp_path)
    write = "import os\nfor _ in range({}):\n    open('f', 'wb').write(b'x' * (10 << 20)); os.remove('f')\n1"
    for _ in range(3):
        assert (await harness.run(write.format(4), session=True)).get("value") == "1"
    result = await harness.run(write.format(500), session=True)
    assert "to disk, or the disk is almost full" in result["fault"]
    await harness.close()
