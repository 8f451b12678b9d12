"""Two processes on one SQLite file: neither resumes a turn that the other one runs."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import fork_server
from atlas_agents import Agent, Atlas, StoreError
from atlas_agents.core.errors import StoreInUse
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Scripted, says
from checks import TIMEOUT

PROGRAM = str(Path(__file__).parent / "library_process.py")


@asynccontextmanager
async def other_process(database: Path, session: str = "theirs") -> AsyncGenerator[fork_server.ForkedProcess, None]:
    """Another process, while the tool of its turn runs."""
    gate = database.with_name("gate")
    os.mkfifo(gate)
    process = await fork_server.start(PROGRAM, str(database), session, str(gate))
    try:
        assert await asyncio.wait_for(process.stdout.readline(), TIMEOUT) == b"running\n"
        yield process
    finally:
        process.kill()
        await process.wait()


async def finish(process: fork_server.ForkedProcess, database: Path) -> bytes:
    """Let the tool of the other process end, and return the answer of its turn."""
    await asyncio.to_thread(database.with_name("gate").write_text, "go")
    return await asyncio.wait_for(process.stdout.readline(), TIMEOUT)


@asynccontextmanager
async def opened(database: Path, *replies: str) -> AsyncGenerator[Atlas, None]:
    store = SqliteStore(database)
    await store.open()
    try:
        async with Atlas([Agent("assistant", model=Scripted(*[says(each) for each in replies]))], store=store) as atlas:
            yield atlas
    finally:
        await store.close()


async def test_recovery_beside_a_running_turn_is_refused_and_names_the_other_process(tmp_path: Path) -> None:
    database = tmp_path / "atlas.db"
    async with other_process(database) as other, opened(database) as atlas:
        with pytest.raises(StoreInUse, match=rf"process {other.pid} \(library_process\.py, since 20\S+Z\)"):
            await atlas.recover()
        assert await finish(other, database) == b"Done.\n"


async def test_recovery_through_a_symlink_is_refused_too(tmp_path: Path) -> None:
    database, link = tmp_path / "atlas.db", tmp_path / "other" / "link.db"
    link.parent.mkdir()
    async with other_process(database) as other:
        link.symlink_to(database)
        async with opened(link) as atlas:
            with pytest.raises(StoreInUse, match=f"process {other.pid}"):
                await atlas.recover()
        assert await finish(other, database) == b"Done.\n"


async def test_killed_process_frees_its_turns_at_once(tmp_path: Path) -> None:
    database = tmp_path / "atlas.db"
    async with other_process(database) as other, opened(database, "Resumed.") as atlas:
        other.kill()
        await other.wait()
        (stream,) = await atlas.recover()
        assert (await stream.reply()).text == "Resumed."


async def test_session_with_a_turn_of_another_process_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "atlas.db"
    async with other_process(database) as other, opened(database, "Mine.") as atlas:
        with pytest.raises(StoreInUse, match=f"process {other.pid}"):
            await atlas.ask("Hello", session="theirs")
        assert await finish(other, database) == b"Done.\n"


async def test_turns_in_other_sessions_run_side_by_side(tmp_path: Path) -> None:
    database = tmp_path / "atlas.db"
    async with other_process(database) as other, opened(database, "Mine.") as atlas:
        assert (await atlas.ask("Hello", session="mine")).text == "Mine."
        assert await finish(other, database) == b"Done.\n"


async def test_process_that_recovered_keeps_others_from_recovering(tmp_path: Path) -> None:
    database = tmp_path / "atlas.db"
    async with opened(database, "Mine.") as atlas:
        assert await atlas.recover() == []
        done = await asyncio.to_thread(fork_server.run, PROGRAM, str(database), "theirs", "", "recover")
        assert f"StoreInUse: database {database} is in use by process {os.getpid()} (" in done.stdout
        assert (await atlas.ask("Hello")).text == "Mine."
    done = await asyncio.to_thread(fork_server.run, PROGRAM, str(database), "theirs", "", "recover")
    assert done.stdout == "", "the lease ends when the store is closed"


async def test_jobs_are_not_run_beside_another_process(tmp_path: Path) -> None:
    database = tmp_path / "atlas.db"
    async with other_process(database) as other, opened(database) as atlas:
        with pytest.raises(StoreInUse, match=f"process {other.pid}"):
            async with atlas.jobs.running():
                pass
        assert await finish(other, database) == b"Done.\n"


async def test_reading_needs_no_lease(tmp_path: Path) -> None:
    database = tmp_path / "atlas.db"
    async with other_process(database) as other, opened(database) as atlas:
        assert [session.key for session in await atlas.sessions.list()] == ["theirs"]
        assert len(await atlas.sessions.history("theirs")) >= 1
        assert await finish(other, database) == b"Done.\n"


async def test_child_process_of_the_owner_does_not_keep_the_lease(tmp_path: Path) -> None:
    database = tmp_path / "atlas.db"
    async with opened(database) as atlas:
        await atlas.recover()
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:  # it outlives the lease of its parent
            os.close(write_end)
            os.read(read_end, 1)
            os._exit(0)
        os.close(read_end)
    try:
        done = await asyncio.to_thread(fork_server.run, PROGRAM, str(database), "theirs", "", "recover")
        assert done.stdout == ""
    finally:
        os.close(write_end)
        await asyncio.to_thread(os.waitpid, child, 0)


async def test_two_stores_of_one_process_share_its_lease(tmp_path: Path) -> None:
    database = tmp_path / "atlas.db"
    async with opened(database, "First.") as first:
        await first.ask("Hello")
        async with opened(database) as second:
            assert await second.recover() == []
        done = await asyncio.to_thread(fork_server.run, PROGRAM, str(database), "theirs", "", "recover")
        assert "StoreInUse" in done.stdout, "the first store still holds it"


async def test_lock_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    database = tmp_path / "atlas.db"
    (tmp_path / "atlas.db-lock").mkdir()
    async with opened(database) as atlas:
        with pytest.raises(StoreError, match=r"cannot open .*atlas\.db-lock"):
            await atlas.recover()
