"""What `code_interpreter` gives back, what it keeps, and how it stands on the governed path."""

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
from code_desk import SANDBOXES, Desk, is_unlocked

from atlas_agents import Approvals, MemoryAudit, Question
from atlas_agents.builtin_tools.code.tool import CodeInterpreter, Kind, code_tool
from atlas_agents.builtin_tools.sandbox import choose
from atlas_agents.core.errors import SandboxUnavailable
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import until

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\n"


@pytest.fixture(params=SANDBOXES)
async def desk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(request.param, tmp_path)
    yield made
    await made.close()


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[Desk]:
    """With the packages of this Python."""
    made = Desk("bubblewrap", tmp_path)
    yield made
    await made.close()


async def test_it_gives_what_was_printed_and_the_value_of_the_last_line(desk: Desk) -> None:
    code = "import sys\nx = 2\nprint('out')\nprint('bad', file=sys.stderr)\nx * 21"
    assert await desk.run(code) == {"stdout": "out\n", "stderr": "bad\n", "value": "42"}
    assert desk.notes["sandbox"] in SANDBOXES
    assert "out" in "".join(desk.progress)


async def test_nothing_is_said_of_what_is_not_there(desk: Desk) -> None:
    assert await desk.run("x = 1") == {"stdout": ""}
    assert await desk.run("None") == {"stdout": ""}


async def test_an_exception_is_told_as_people_know_it(desk: Desk) -> None:
    result = await desk.run("def f():\n    return 1 / 0\nprint('before')\nf()")
    assert result["stdout"] == "before\n"
    assert result["error"].startswith('Traceback (most recent call last):\n  File "<code>", line 4, in <module>\n')
    assert result["error"].endswith("ZeroDivisionError: division by zero\n")
    assert "runner" not in result["error"]


async def test_files_that_were_made_are_named_and_lie_in_the_session_s_folder(desk: Desk) -> None:
    code = (
        "import os\nos.mkdir('deep')\nopen('deep/a.txt', 'w').write('one')\nf = open('b.txt', 'w')\nx = f.write('open')"
    )
    assert (await desk.run(code))["files"] == ["b.txt (4 bytes)", "deep/a.txt (3 bytes)"]
    assert (desk.place / "b.txt").read_text() == "open"
    assert (await desk.run("open('b.txt').read()")) == {"value": "'open'"}
    assert (await desk.run("open('b.txt', 'a').write('ed')"))["files"] == ["b.txt (6 bytes)"]


async def test_state_is_kept_in_a_session_that_asks_for_it(desk: Desk) -> None:
    await desk.run("x = 20", session=True)
    await desk.run("def double(n): return 2 * n", session=True)
    assert await desk.run("double(x) + 2", session=True) == {"value": "42"}
    assert "NameError" in (await desk.run("x"))["error"]
    assert "NameError" in (await desk.run("x", session=True, conversation="another"))["error"]


async def test_state_that_is_lost_is_told(desk: Desk) -> None:
    await desk.run("x = 1", session=True)
    ended = await desk.run("import os; os._exit(3)", session=True)
    assert ended["note"] == "The state of this session is lost."
    assert "NameError" in (await desk.run("x", session=True))["error"]


async def test_an_idle_session_ends_and_says_so(tmp_path: Path) -> None:
    desk = Desk("bubblewrap", tmp_path, idle=0.3)
    await desk.run("x = 1", session=True)
    await asyncio.sleep(1)
    result = await desk.run("2", session=True)
    assert result == {"value": "2", "note": "The state of this session was lost, because it was idle for too long."}
    await desk.close()


async def test_a_session_that_ran_too_long_starts_anew(tmp_path: Path) -> None:
    desk = Desk("bubblewrap", tmp_path, seconds=2)
    await desk.run("x = 1", session=True)
    late = await desk.run("print('so far', flush=True)\nwhile True: pass", session=True)
    assert late["kind"] == "timeout" and "so far" in late["fault"]
    assert "NameError" in (await desk.run("x", session=True))["error"]
    await desk.close()


async def test_sessions_are_bounded(tmp_path: Path) -> None:
    desk = Desk("bubblewrap", tmp_path)
    for number in range(9):
        await desk.run(f"x = {number}", session=True, conversation=f"talk-{number}")
    first = await desk.run("2", session=True, conversation="talk-0")
    assert first["note"] == "The state of this session was lost, because others needed the room."
    assert await desk.run("x", session=True, conversation="talk-8") == {"value": "8"}
    await desk.close()


async def test_calls_of_one_session_wait_for_each_other(own: Desk) -> None:
    await own.run("x = 0", session=True)
    step = "y = x\nimport time; time.sleep(0.05)\nx = y + 1"
    await asyncio.gather(*(own.run(step, session=True) for _ in range(5)))
    assert await own.run("x", session=True) == {"value": "5"}


@pytest.mark.slow
async def test_plots_are_pictures(own: Desk) -> None:
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


async def test_a_missing_package_comes_with_what_to_do(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    await asyncio.to_thread(venv.create, bare)
    desk = Desk("bubblewrap", tmp_path, python=bare)
    assert "pip install 'atlas-agents[code]'" in (await desk.run("import numpy.linalg"))["note"]
    assert "a person can: pip install nosuch" in (await desk.run("import nosuch"))["note"]
    assert (await desk.run("import sys; sys.prefix"))["value"] == repr(str(bare))
    await desk.close()


async def test_a_python_that_is_none_is_told(tmp_path: Path) -> None:
    desk = Desk("bubblewrap", tmp_path, python=tmp_path / "nothing")
    assert "is no Python that runs" in (await desk.run("1"))["fault"]
    await desk.close()


async def test_without_a_sandbox_no_code_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def missing() -> Any:
        raise SandboxUnavailable("it is not here", "install it")

    monkeypatch.setattr(choose, "_found", {})
    monkeypatch.setattr(choose, "_PROBES", {"bubblewrap": missing})
    monkeypatch.setattr("atlas_agents.builtin_tools.code.interpreter.installed", lambda: False)
    desk = Desk("auto", tmp_path)
    result = await desk.run("open('made', 'w')")
    assert result["fault"] == "no sandbox available: it is not here; install it"
    assert not (desk.place / "made").exists()
    await desk.close()


async def test_cancelling_a_call_ends_its_code(own: Desk) -> None:
    code = (
        "import fcntl, signal\nlock = open('lock', 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)\n"
        "open('begun', 'w').close()\nsignal.pause()"
    )
    running = asyncio.create_task(own.run(code))
    await until((own.place / "begun").exists)
    assert not is_unlocked(own.place / "lock")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await until(lambda: is_unlocked(own.place / "lock"))


async def test_on_the_governed_path_it_asks_first_and_its_row_names_the_sandbox(tmp_path: Path) -> None:
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


def test_it_is_unsafe_and_asks() -> None:
    made = code_tool(CodeInterpreter(Path("/nowhere")))
    assert (made.effect, made.confirm, made.timeout) == ("unsafe", True, 70.0)
    assert set(made.parameters["properties"]) == {"code", "session"}
    assert sys.version_info >= (3, 11)


async def test_a_question_shows_the_code_as_lines_what_holds_it_and_where_it_runs(tmp_path: Path) -> None:
    code = "a = 1\nprint(a)\n" + "# long\n" * 5000
    for kind, words in (("bubblewrap", "confined by bubblewrap: no network"), ("none", "NOT CONFINED")):
        person = Person(False)
        interpreter = CodeInterpreter(tmp_path, sandbox=kind)  # pyright: ignore[reportArgumentType]
        await call([code_tool(interpreter)], "code_interpreter", person, code=code)
        (question,) = person.questions
        assert question.preview.startswith(words) and "\n\na = 1\nprint(a)\n" in question.preview
        assert question.facts == {"folder": str(tmp_path / "code"), "sandbox": kind}


async def test_a_yes_for_always_does_not_hold_when_nothing_confines_the_code_any_more(tmp_path: Path) -> None:
    store, person = MemoryStore(), Person("always")
    kinds: tuple[Kind, ...] = ("bubblewrap", "bubblewrap", "none")
    for kind in kinds:
        interpreter = CodeInterpreter(tmp_path, sandbox=kind)
        model = Scripted(calls("code_interpreter", code="1 + 1"), says("ok"))
        atlas = in_memory_atlas(model, [code_tool(interpreter)], approve=Approvals(person), store=store)
        await atlas.ask("go")
    assert len(person.questions) == 2
