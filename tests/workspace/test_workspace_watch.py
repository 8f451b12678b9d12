"""`Workspace.watch` reports each complete edit once; an invalid edit changes nothing."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from atlas_agents.core.trust import Trust, read_files, workspace_files
from atlas_agents.testing import VirtualClock
from atlas_agents.workspace import Workspace, WorkspaceState
from atlas_agents.workspace import workspace as module
from checks import TIMEOUT, cpu_factor

GOOD = "## a\nDescription: one\n"


class Watched:
    """A workspace that is watched with a virtual clock, and the states that were reported."""

    def __init__(self, folder: Path, trust: Trust | None = None) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.states: list[WorkspaceState] = []
        (folder / "AGENTS.md").write_text(GOOD)
        self.workspace = Workspace(folder, trust)
        self.first = self.workspace.load()

    async def run(self) -> None:
        async with aclosing(self.workspace.watch(clock=self.clock)) as new_states:
            async for state in new_states:
                self.states.append(state)

    async def polls(self, count: int) -> list[str]:
        """Advance the clock by this many polls; return the prompts reported since."""
        before = len(self.states)
        await self.clock.advance(count)
        return [state.prompt for state in self.states[before:]]

    def write(self, text: str, name: str = "SOUL.md") -> None:
        (self.folder / name).write_text(text)


@asynccontextmanager
async def watching(folder: Path, trust: Trust | None = None) -> AsyncGenerator[Watched, None]:
    watched = Watched(folder, trust)
    task = asyncio.create_task(watched.run())
    await watched.polls(1)
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_edit_is_reported_once_it_is_stable(tmp_path: Path) -> None:
    async with watching(tmp_path) as watched:
        assert await watched.polls(5) == []
        watched.write("S")
        assert await watched.polls(1) == []
        assert await watched.polls(1) == [f"{GOOD}\n\n---\n\nS"]
        assert await watched.polls(5) == []
        assert watched.workspace.system_prompt() == f"{GOOD}\n\n---\n\nS"
        watched.write("## b\nRole: r\n", "AGENTS.md")
        (tmp_path / "SOUL.md").unlink()
        assert await watched.polls(2) == ["## b\nRole: r\n"]
        assert [spec.id for spec in watched.workspace.state.agents] == ["b"]


async def test_edit_before_the_watch_starts_is_reported(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.write("S")
    task = asyncio.create_task(watched.run())
    assert await watched.polls(3) == [f"{GOOD}\n\n---\n\nS"]
    task.cancel()


async def test_watch_waits_for_a_file_that_is_being_written(tmp_path: Path) -> None:
    async with watching(tmp_path) as watched:
        text = ""
        for piece in ("One ", "two ", "three."):
            text += piece
            watched.write(text)
            assert await watched.polls(1) == []
        assert await watched.polls(1) == [f"{GOOD}\n\n---\n\nOne two three."]


async def test_file_replaced_by_rename_is_reported(tmp_path: Path) -> None:
    """Same size and times: only the inode differs."""
    async with watching(tmp_path) as watched:
        watched.write("Old")
        assert await watched.polls(2) == [f"{GOOD}\n\n---\n\nOld"]
        old = (tmp_path / "SOUL.md").stat()
        watched.write("New", "SOUL.md~")
        os.utime(tmp_path / "SOUL.md~", ns=(old.st_atime_ns, old.st_mtime_ns))
        os.replace(tmp_path / "SOUL.md~", tmp_path / "SOUL.md")
        assert await watched.polls(2) == [f"{GOOD}\n\n---\n\nNew"]


async def test_file_missing_for_a_moment_is_reported_once(tmp_path: Path) -> None:
    """Some editors move the old file away before they write the new one."""
    async with watching(tmp_path) as watched:
        (tmp_path / "AGENTS.md").rename(tmp_path / "AGENTS.md~")
        assert await watched.polls(1) == []
        watched.write("## c\nRole: r\n", "AGENTS.md")
        assert await watched.polls(2) == ["## c\nRole: r\n"]


async def test_touched_file_is_not_reported(tmp_path: Path) -> None:
    async with watching(tmp_path) as watched:
        os.utime(tmp_path / "AGENTS.md")
        assert await watched.polls(5) == []


async def test_invalid_edit_is_reported_and_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(tmp_path) as watched:
        watched.write("## a\nModel: gpt\n", "AGENTS.md")
        watched.write("S")
        assert await watched.polls(2) == [GOOD]
        broken = watched.states[-1]
        assert (broken.agents, broken.findings) == (watched.first.agents, ())
        assert [error.partition(": Model: ")[0] for error in broken.errors] == [f"{tmp_path}/AGENTS.md:2"]
        assert caplog.text.count("workspace edit rejected: error=") == 1
        os.utime(tmp_path / "AGENTS.md")
        assert await watched.polls(3) == []  # the same error is not reported again
        watched.write(GOOD, "AGENTS.md")
        assert await watched.polls(2) == [f"{GOOD}\n\n---\n\nS"]
        assert watched.states[-1].errors == ()


async def test_reverted_invalid_edit_is_reported(tmp_path: Path) -> None:
    async with watching(tmp_path) as watched:
        watched.write("x" * 300_000)
        await watched.polls(2)
        assert "larger than the maximum of 256 KiB" in watched.workspace.state.errors[0]
        (tmp_path / "SOUL.md").unlink()
        assert await watched.polls(2) == [GOOD]
        assert watched.workspace.state == watched.first


async def test_removed_folder_keeps_the_last_state(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    async with watching(tmp_path / "w") as watched:
        (tmp_path / "w").rename(tmp_path / "away")
        assert await watched.polls(2) == [GOOD]
        assert "workspace folder not found" in watched.states[-1].errors[0]
        (tmp_path / "away").rename(tmp_path / "w")
        assert await watched.polls(2) == [GOOD]
        assert watched.states[-1].errors == ()


async def test_file_written_during_the_read_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(tmp_path) as watched:
        read = module.read

        def slow(folder: Path, name: str, trust: None) -> str | None:
            text = read(folder, name, trust)
            if name == "TOOLS.md" and text == "half":
                watched.write("the whole", "TOOLS.md")
            return text

        monkeypatch.setattr(module, "read", slow)
        watched.write("half", "TOOLS.md")
        assert await watched.polls(4) == [f"{GOOD}\n\n---\n\nthe whole"]


WRITER = """
import os
for number in range(400):
    with open("SOUL.md~", "w") as file:
        file.write(f"{number} " * (number % 50 + 1) * 100)
    os.replace("SOUL.md~", "SOUL.md")
"""


async def test_concurrent_writer_never_shows_partial_files(tmp_path: Path) -> None:
    whole = {f"{number} " * (number % 50 + 1) * 100 for number in range(400)}
    workspace = Workspace(tmp_path)
    workspace.load()
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, cwd=tmp_path)
    async with aclosing(workspace.watch(every=0.001)) as states, asyncio.timeout(TIMEOUT):
        async for state in states:
            assert state.errors == ()
            assert state.prompt in whole
            if state.prompt == "399 " * 50 * 100:
                break
    assert await writer.wait() == 0


async def test_polling_is_cheap(tmp_path: Path) -> None:
    async with watching(tmp_path) as watched:
        start = time.process_time()
        await watched.polls(2000)
        poll = (time.process_time() - start) / 2000  # one poll, and twenty iterations of the event loop by the clock
        assert poll < 0.005 * cpu_factor()


# Trust


async def test_file_that_a_command_writes_is_not_reported(tmp_path: Path) -> None:
    folder, trust = tmp_path / "w", Trust(tmp_path / "home")
    folder.mkdir()
    async with watching(folder, trust) as watched:
        trust.begin(workspace_files(folder), [folder], "while the agent a used bash")
        watched.write("evil")
        assert await watched.polls(5) == []
        trust.end(workspace_files(folder))
        assert await watched.polls(5) == [GOOD]
        notice = "SOUL.md was created and is not used until you agree; run: atlas trust"
        assert watched.states[-1].pending == (notice,)
        watched.write("## a\nDescription: two\n", "AGENTS.md")
        assert await watched.polls(5) == ["## a\nDescription: two\n"]
        trust.agree(folder / "SOUL.md", (folder / "SOUL.md").read_bytes())
        assert await watched.polls(5) == ["## a\nDescription: two\n\n\n---\n\nevil"]


async def test_edit_in_a_trusted_folder_is_reported_but_earlier_changes_wait(tmp_path: Path) -> None:
    folder, trust = tmp_path / "w", Trust(tmp_path / "home")
    folder.mkdir()
    (folder / "AGENTS.md").write_text(GOOD)
    trust.trust_folder(folder, read_files(workspace_files(folder)), folder)
    (folder / "TOOLS.md").write_text("evil")  # before the start: a person has not seen it
    async with watching(folder, trust) as watched:
        assert watched.first.prompt == GOOD
        watched.write("Be kind.")
        assert await watched.polls(8) == [f"{GOOD}\n\n---\n\nBe kind."]
    assert Workspace(folder, trust).load().prompt == f"{GOOD}\n\n---\n\nBe kind."
