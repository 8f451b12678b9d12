"""The `code_interpreter` tool: results, sessions, sandboxes and approval."""

import asyncio
import base64
import json
import sys
import venv
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from calling_tools import Person, call
from code_harness import SANDBOXES, SandboxHarness, is_unlocked

from atlas_agents import Approvals, MemoryAudit, Question
from atlas_agents.builtin_tools import sandbox as sandboxes
from atlas_agents.builtin_tools.code.tool import CodeInterpreter, SandboxKind, code_tool
from atlas_agents.core.errors import SandboxUnavailable
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import linux_only, wait_until

pytestmark = linux_only

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\n"


@pytest.fixture(params=SANDBOXES)
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SandboxHarness]:
    made = SandboxHarness(request.param, tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[SandboxHarness]:
    """Use the packages of the Python that runs the tests."""
    made = SandboxHarness("bubblewrap", tmp_path)
    yield made
    await made.close()


async def test_result_has_output_and_value_of_the_last_line(harness: SandboxHarness) -> None:
    code = "import sys\nx = 2\nprint('out')\nprint('bad', file=sys.stderr)\nx * 21"
    assert await harness.run(code) == {"stdout": "out\n", "stderr": "bad\n", "value": "42"}
    assert harness.notes["sandbox"] in SANDBOXES
    assert "out" in "".join(harness.progress)


async def test_empty_fields_are_omitted(harness: SandboxHarness) -> None:
    assert await harness.run("x = 1") == {"stdout": ""}
    assert await harness.run("None") == {"stdout": ""}


async def test_exception_is_returned_as_a_traceback(harness: SandboxHarness) -> None:
    result = await harness.run("def f():\n    return 1 / 0\nprint('before')\nf()")
    assert result["stdout"] == "before\n"
    assert result["error"].startswith('Traceback (most recent call last):\n  File "<code>", line 4, in <module>\n')
    assert result["error"].endswith("ZeroDivisionError: division by zero\n")
    assert "runner" not in result["error"]


async def test_created_files_are_listed_and_stored_in_the_session_folder(harness: SandboxHarness) -> None:
    code = (
        "import os\nos.mkdir('deep')\nopen('deep/a.txt', 'w').write('one')\nf = open('b.txt', 'w')\nx = f.write('open')"
    )
    assert (await harness.run(code))["files"] == ["b.txt (4 bytes)", "deep/a.txt (3 bytes)"]
    assert (harness.session_folder / "b.txt").read_text() == "open"
    assert (await harness.run("open('b.txt').read()")) == {"value": "'open'"}
    assert (await harness.run("open('b.txt', 'a').write('ed')"))["files"] == ["b.txt (6 bytes)"]


async def test_session_keeps_its_state(harness: SandboxHarness) -> None:
    await harness.run("x = 20", session=True)
    await harness.run("def double(n): return 2 * n", session=True)
    assert await harness.run("double(x) + 2", session=True) == {"value": "42"}
    assert "NameError" in (await harness.run("x"))["error"]
    assert "NameError" in (await harness.run("x", session=True, conversation="another"))["error"]


async def test_lost_state_is_reported(harness: SandboxHarness) -> None:
    await harness.run("x = 1", session=True)
    ended = await harness.run("import os; os._exit(3)", session=True)
    assert ended["note"] == "The state of this session is lost."
    assert "NameError" in (await harness.run("x", session=True))["error"]


async def test_idle_session_ends_and_the_next_call_reports_it(tmp_path: Path) -> None:
    harness = SandboxHarness("bubblewrap", tmp_path, idle=0.3)
    await harness.run("x = 1", session=True)
    await wait_until(harness.has_no_interpreter)
    result = await harness.run("2", session=True)
    assert result == {"value": "2", "note": "The state of this session was lost because it was idle for too long."}
    await harness.close()


async def test_session_restarts_after_a_timeout(tmp_path: Path) -> None:
    harness = SandboxHarness("bubblewrap", tmp_path, seconds=2)
    await harness.run("x = 1", session=True)
    late = await harness.run("print('so far', flush=True)\nwhile True: pass", session=True)
    assert late["kind"] == "timeout" and "so far" in late["fault"]
    assert "NameError" in (await harness.run("x", session=True))["error"]
    await harness.close()


async def test_number_of_sessions_is_limited(tmp_path: Path) -> None:
    harness = SandboxHarness("bubblewrap", tmp_path)
    for number in range(9):
        await harness.run(f"x = {number}", session=True, conversation=f"chat-{number}")
    first = await harness.run("2", session=True, conversation="chat-0")
    assert first["note"] == "The state of this session was lost because too many other sessions were in use."
    assert await harness.run("x", session=True, conversation="chat-8") == {"value": "8"}
    await harness.close()


async def test_calls_of_one_session_run_one_after_another(own: SandboxHarness) -> None:
    await own.run("x = 0", session=True)
    step = "y = x\nimport time; time.sleep(0.05)\nx = y + 1"
    await asyncio.gather(*(own.run(step, session=True) for _ in range(5)))
    assert await own.run("x", session=True) == {"value": "5"}


@pytest.mark.slow
async def test_plots_are_returned_as_images(own: SandboxHarness) -> None:
    shown = await own.run(PLOT + "plt.show()\nplt.figure()\nplt.bar([1], [2])\nNone")
    assert shown.get("error") is None
    assert [image["name"] for image in shown["images"]] == ["plot-1.png", "plot-2.png"]
    for image in shown["images"]:
        assert (image["type"], image["media_type"]) == ("image", "image/png")
        assert base64.b64decode(image["data"]).startswith(b"\x89PNG")
    saved = await own.run(PLOT + "plt.savefig('mine.png')")
    assert [image["name"] for image in saved["images"]] == ["mine.png"]
    table = await own.run("import numpy as np, pandas as pd\npd.DataFrame({'a': np.arange(2)})")
    assert table["value"] == "   a\n0  0\n1  1"


async def test_missing_package_has_an_install_hint(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    await asyncio.to_thread(venv.create, bare)
    harness = SandboxHarness("bubblewrap", tmp_path, python=bare)
    assert "pip install 'atlas-agents[code]'" in (await harness.run("import numpy.linalg"))["note"]
    assert "Ask the user to run: pip install nosuch" in (await harness.run("import nosuch"))["note"]
    assert (await harness.run("import sys; sys.prefix"))["value"] == repr(str(bare))
    await harness.close()


async def test_invalid_python_is_reported(tmp_path: Path) -> None:
    harness = SandboxHarness("bubblewrap", tmp_path, python=tmp_path / "nothing")
    assert "is not a working Python interpreter" in (await harness.run("1"))["fault"]
    await harness.close()


async def test_code_does_not_run_without_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def missing() -> Any:
        raise SandboxUnavailable("not installed", "install it")

    monkeypatch.setattr(sandboxes, "_working", {})
    monkeypatch.setattr(sandboxes, "_PROBES", {"bubblewrap": missing})
    harness = SandboxHarness("auto", tmp_path)
    result = await harness.run("open('made', 'w')")
    assert result["fault"] == "no sandbox available: not installed; install it"
    assert not (harness.session_folder / "made").exists()
    await harness.close()


async def test_cancelled_call_kills_its_code(own: SandboxHarness) -> None:
    code = (
        "import fcntl, signal\nlock = open('lock', 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)\n"
        "open('begun', 'w').close()\nsignal.pause()"
    )
    running = asyncio.create_task(own.run(code))
    await wait_until((own.session_folder / "begun").exists)
    assert not is_unlocked(own.session_folder / "lock")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await wait_until(lambda: is_unlocked(own.session_folder / "lock"))


async def test_call_needs_approval_and_its_audit_row_names_the_sandbox(tmp_path: Path) -> None:
    interpreter = CodeInterpreter(tmp_path, sandbox="bubblewrap")
    code, asked = "print('hi'); 6 * 7", list[Question]()
    model, audit = Scripted(calls("code_interpreter", code=code), says("It is 42.")), MemoryAudit()

    def approve(question: Question) -> bool:
        asked.append(question)
        return True

    async with in_memory_atlas(model, [code_tool(interpreter)], approve=approve, audit=audit) as atlas:
        reply = await atlas.ask("What is 6 times 7?")
    assert reply.text == "It is 42."
    assert [(question.tool, question.arguments) for question in asked] == [("code_interpreter", {"code": code})]
    (record,) = await audit.records()
    assert json.loads(record.entry.meta["result"]) == {"stdout": "hi\n", "value": "42"}
    assert record.entry.meta["notes"] == {"sandbox": "bubblewrap"}
    await interpreter.close()


def test_tool_is_unsafe_and_needs_approval() -> None:
    made = code_tool(CodeInterpreter(Path("/nowhere")))
    assert (made.effect, made.confirm, made.timeout) == ("unsafe", True, 70.0)
    assert set(made.parameters["properties"]) == {"code", "session"}
    assert sys.version_info >= (3, 11)


async def test_preview_shows_sandbox_folder_and_code(tmp_path: Path) -> None:
    code = "a = 1\nprint(a)\n" + "# long\n" * 5000
    confined = (
        f"Sandbox: Bubblewrap (no network; can write only to {tmp_path / 'code'}; can read only there and installed "
        "programs; cannot change other processes)\nTimeout: 60 s\n\na = 1"
    )
    unconfined = "No sandbox: this code can read and write everything your user account can, and use the network.\n"
    for kind, start in (("bubblewrap", confined), ("none", unconfined)):
        person = Person(False)
        interpreter = CodeInterpreter(tmp_path, sandbox=kind)
        await call([code_tool(interpreter)], "code_interpreter", person, code=code)
        (question,) = person.questions
        assert question.preview.startswith(start) and "\n\na = 1\nprint(a)\n" in question.preview
        assert question.facts == {"folder": str(tmp_path / "code"), "sandbox": kind}


async def test_permanent_approval_does_not_cover_code_without_a_sandbox(tmp_path: Path) -> None:
    store, person = MemoryStore(), Person("always")
    kinds: tuple[SandboxKind, ...] = ("bubblewrap", "bubblewrap", "none")
    for kind in kinds:
        interpreter = CodeInterpreter(tmp_path, sandbox=kind)
        model = Scripted(calls("code_interpreter", code="1 + 1"), says("ok"))
        atlas = in_memory_atlas(model, [code_tool(interpreter)], approve=Approvals(person), store=store)
        await atlas.ask("go")
    assert len(person.questions) == 2
