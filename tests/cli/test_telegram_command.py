"""The Telegram channel: a bot double, `atlas serve` as a process, and the owner's commands."""

import asyncio
import json
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from atlas_command import STORY, Home, ServeProcess

from bot_double import TOKEN, BotDouble, Fault, Person, bot_double

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@asynccontextmanager
async def serving(home: Home, double: BotDouble) -> AsyncGenerator[ServeProcess, None]:
    home.env |= {"ATLAS_TELEGRAM_TOKEN": TOKEN, "ATLAS_TELEGRAM_URL": double.url, "ATLAS_TELEGRAM_CHANNEL": "true"}
    served = ServeProcess(home, (), {})
    await asyncio.to_thread(served.start)
    try:
        yield served
    finally:
        await asyncio.to_thread(served.kill)


async def paired(home: Home, double: BotDouble) -> Person:
    ana = double.person(42, "Ana")
    ana.says("hello?")
    await double.until(lambda: ana.sees)
    code = ana.sees[0].text.split()[-1]
    done = await asyncio.to_thread(home.run, "telegram", "pair", code.lower())
    assert (done.returncode, done.stderr) == (0, "Ana @ana (Telegram user 42) can now chat with your agents.\n")
    await double.until(lambda: "You are paired" in ana.sees[-1].text)
    ana.sees.clear()
    return ana


async def test_messages_and_approvals_survive_kills_without_duplicates(home: Home) -> None:
    async with bot_double() as double, serving(home, double) as served:
        ana = await paired(home, double)
        ana.says("good morning")
        await double.until(lambda: [each.text for each in ana.sees] == ["You wrote: good morning"])
        await _approve_over_a_kill(home, served, ana)
        await _hear_over_a_kill(home, served, ana)
        audit = await asyncio.to_thread(home.run, "audit", "list", "--json")
        await _leave(home, ana)
        assert await asyncio.to_thread(served.kill, signal.SIGTERM) == 0
    assert "Traceback" not in served.output
    kept = b"".join(path.read_bytes() for path in home.path.rglob("*") if path.is_file())
    assert TOKEN.encode() not in kept and TOKEN not in served.output + audit.stdout


async def _approve_over_a_kill(home: Home, served: ServeProcess, ana: Person) -> None:
    double = ana.double
    ana.says("act wisely")
    await double.until(lambda: any(each.buttons for each in ana.sees))
    asked = next(each for each in ana.sees if each.buttons)
    assert asked.marked("pre") == ['command = "wisely"']
    await asyncio.to_thread(served.kill)
    ana.presses(asked, "Allow once")  # while the gateway is down
    await asyncio.to_thread(served.start)
    await double.until(lambda: any("It came out: did 'wisely'" in each.text for each in ana.sees))
    await double.until(lambda: "Allowed once by you." in asked.text)
    assert (home.folder / "acted").read_text() == "'wisely' 1\n"


async def _hear_over_a_kill(home: Home, served: ServeProcess, ana: Person) -> None:
    double, before = ana.double, len(ana.sees)
    ana.says("a story, please")
    await double.until(lambda: len(ana.sees) > before and ana.sees[-1].edits)
    assert len(ana.sees[-1].text) < len(STORY)
    await asyncio.to_thread(served.kill)
    last = ana.says("and goodbye")
    await asyncio.to_thread(served.start)
    await double.until(lambda: ana.sees[-1].text == "You wrote: and goodbye")
    assert [each.text for each in ana.sees[before:]] == [STORY, "You wrote: and goodbye"]
    await double.until(lambda: _offset(home.path) == last + 1)


async def _leave(home: Home, ana: Person) -> None:
    found = await asyncio.to_thread(home.run, "telegram", "list", "--json")
    assert [each["user"] for each in json.loads(found.stdout)] == [42]
    found = await asyncio.to_thread(home.run, "doctor")
    assert "✓ telegram: bot @atlas_test_bot; channel on, 1 person paired" in found.stdout
    gone = await asyncio.to_thread(home.run, "telegram", "unpair", "@ana")
    assert gone.stderr == "Ana @ana (Telegram user 42) can no longer chat with your agents.\n"
    ana.says("still there?")
    await ana.double.until(lambda: "atlas telegram pair" in ana.sees[-1].text)


def _offset(home: Path) -> int:
    return json.loads((home / "telegram" / "state-7000001.json").read_text())["offset"]


async def test_doctor_reports_problems_of_the_bot(home: Home) -> None:
    async with bot_double() as double:
        double.faults.append(Fault("getMe", 401, "Unauthorized"))
        env = {"ATLAS_TELEGRAM_TOKEN": TOKEN, "ATLAS_TELEGRAM_URL": double.url}
        found = await asyncio.to_thread(lambda: home.run("doctor", **env))
        assert "✗ telegram: Telegram rejected the request: Unauthorized (HTTP 401)" in found.stdout
        assert "copy it again from @BotFather" in found.stdout
        found = await asyncio.to_thread(lambda: home.run("doctor", ATLAS_TELEGRAM_CHANNEL="true"))
        assert "telegram_channel requires a bot" in found.stdout


def test_unknown_code_and_user_are_rejected(home: Home) -> None:
    done = home.run("telegram", "pair", "ABCDEFGH")
    assert done.returncode == 2 and "'ABCDEFGH'" in done.stderr
    done = home.run("telegram", "unpair", "7")
    assert done.returncode == 2 and "'7' is not paired" in done.stderr
    assert "No one is paired" in home.run("telegram", "list").stderr
