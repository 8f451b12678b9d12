"""A sandbox holds what is run in it: what it sees, what it may use up, and that all of it ends."""

import asyncio
import os
import secrets
import stat
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from atlas_agents.builtin_tools.sandbox import bubblewrap, choose
from atlas_agents.builtin_tools.sandbox.base import CapturedOutput, ProcessResult, Sandbox, SandboxLimits
from atlas_agents.builtin_tools.sandbox.process import HeadTailBuffer
from atlas_agents.builtin_tools.sandbox.seccomp import program
from atlas_agents.core.errors import SandboxUnavailable
from checks import until

Shell = Callable[..., Coroutine[Any, Any, ProcessResult]]


@pytest.fixture(params=["bubblewrap", "landlock"])
async def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Each of them must work where the tests run: a sandbox that nobody tried holds nothing."""
    return await choose.choose(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
def nap() -> str:
    """A command that sleeps for a minute, and nobody else runs."""
    return f"sleep 60.{secrets.randbelow(10**9):09}"


@pytest.fixture
def shell(sandbox: Sandbox, folder: Path) -> Shell:
    async def run(words: str, **given: Any) -> ProcessResult:
        return await sandbox.run(["/bin/sh", "-c", words], cwd=folder, writable=folder, **given)

    return run


async def test_a_command_runs_in_its_folder_with_what_it_is_fed(shell: Shell, folder: Path) -> None:
    outcome = await shell("cat; pwd; echo bad >&2; echo kept > made; exit 3", stdin=b"fed\n")
    assert (outcome.stdout, outcome.stderr) == (CapturedOutput(f"fed\n{folder}\n"), CapturedOutput("bad\n"))
    assert (outcome.exit_code, outcome.stopped, outcome.signal) == (3, None, None)
    assert (folder / "made").read_text() == "kept\n"


async def test_output_is_passed_on_while_it_is_written(shell: Shell, folder: Path) -> None:
    heard: list[tuple[str, bytes]] = []
    first = asyncio.Event()

    def listen(stream: str, piece: bytes) -> None:
        heard.append((stream, piece))
        first.set()

    running = asyncio.create_task(shell("echo one; until [ -e go ]; do sleep 0.02; done; echo two", on_output=listen))
    await asyncio.wait_for(first.wait(), 10)
    assert heard == [("stdout", b"one\n")]
    (folder / "go").touch()
    await running
    assert b"".join(piece for _, piece in heard) == b"one\ntwo\n"


async def test_streams_can_be_merged_in_the_order_they_were_written(shell: Shell) -> None:
    outcome = await shell("echo a; echo b >&2; echo c", merge=True)
    assert outcome.stdout.text == "a\nb\nc\n"


async def test_the_environment_is_only_what_it_was_given(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    outcome = await shell("env; cat /proc/*/environ", env={"ASKED": "yes"})
    assert "ASKED=yes" in outcome.stdout.text
    assert "canary" not in outcome.stdout.text


async def test_what_is_masked_is_not_seen_and_what_is_read_only_not_changed(shell: Shell, folder: Path) -> None:
    (folder / ".env").write_text("canary")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("before")
    (folder / "secrets").mkdir()
    (folder / "secrets" / "key").write_text("canary")
    words = "cat .env secrets/key; echo x > .env; echo after > .git/config; touch .git/new; rm -rf .git .env secrets"
    words += "; mv .git elsewhere; mv .env elsewhere; cat elsewhere"
    masked = [folder / ".env", folder / "secrets", folder / "missing"]
    outcome = await shell(words, read_only=[folder / ".git"], masked=masked)
    assert "canary" not in outcome.stdout.text + outcome.stderr.text
    assert (folder / ".env").read_text() == (folder / "secrets" / "key").read_text() == "canary"
    assert [path.name for path in (folder / ".git").iterdir()] == ["config"]
    assert (folder / ".git" / "config").read_text() == "before"
    assert not (folder / "missing").exists()


async def test_a_link_in_place_of_a_protected_path_shows_nothing_of_where_it_leads(
    shell: Shell, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").write_text("canary")
    (folder / ".git").symlink_to(tmp_path / "outside")
    outcome = await shell("cat .git/key", read_only=[folder / ".git"])
    assert "canary" not in outcome.stdout.text


@pytest.mark.parametrize("words", ["NAP", "setsid NAP & NAP", "trap '' TERM INT HUP; NAP & while :; do :; done"])
async def test_a_run_that_takes_too_long_is_ended_whole(shell: Shell, words: str, nap: str) -> None:
    began = time.monotonic()
    outcome = await shell(words.replace("NAP", nap), limits=SandboxLimits(seconds=1))
    assert outcome.timed_out and outcome.exit_code is None
    assert time.monotonic() - began < 20
    await _nothing_runs(nap)


async def test_what_a_command_leaves_behind_ends_with_it(shell: Shell, nap: str) -> None:
    outcome = await shell(f"(setsid {nap} >/dev/null 2>&1 &) ; setsid {nap} & echo done")
    assert outcome.stdout.text == "done\n" and outcome.duration < 5
    await _nothing_runs(nap)


async def test_cancelling_ends_the_process(shell: Shell, nap: str) -> None:
    running = asyncio.create_task(shell(f"setsid {nap} & {nap}", limits=SandboxLimits(seconds=50)))
    await until(lambda: _runs(nap))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await _nothing_runs(nap)


async def test_endless_output_is_cut_and_ended_and_its_middle_counted(shell: Shell, tmp_path: Path) -> None:
    spill = tmp_path / "all"
    outcome = await shell("yes", limits=SandboxLimits(output=1_000_000, keep=2000), spill=spill)
    assert outcome.stopped == "output"
    assert outcome.stdout == CapturedOutput("y\n" * 500, "y\n" * 500, 998_000)
    assert outcome.spilled == spill and spill.stat().st_size == 1_000_000
    assert stat.S_IMODE(spill.stat().st_mode) == 0o600


async def test_a_spill_file_is_never_written_through_what_stands_there(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        await shell("echo theirs", spill=tmp_path / "link")
    assert (tmp_path / "victim").read_text() == "mine"


async def test_the_cpu_is_limited(shell: Shell) -> None:
    outcome = await shell("while :; do :; done", limits=SandboxLimits(seconds=20, cpu=1))
    assert outcome.stopped is None and outcome.exit_code != 0 and outcome.duration < 15


async def test_many_processes_end_the_run_or_are_refused(shell: Shell, nap: str) -> None:
    words = f"i=0; while [ $i -lt 500 ]; do {nap} & i=$((i+1)); done; echo all of them"
    outcome = await shell(words, limits=SandboxLimits(processes=30, seconds=10))
    assert "all of them" not in outcome.stdout.text
    assert outcome.stopped == "processes" or "fork" in outcome.stderr.text
    await _nothing_runs(nap)


async def test_the_disk_is_limited_in_all_and_by_file(shell: Shell, folder: Path) -> None:
    limits = SandboxLimits(disk=20_000_000, file_size=8_000_000, seconds=20)
    words = "i=0; while :; do head -c 20000000 /dev/zero > $i; i=$((i+1)); done"
    outcome = await shell(words, limits=limits)
    assert outcome.stopped == "disk"
    assert max(entry.stat().st_size for entry in os.scandir(folder)) <= 8_000_000


async def test_memory_is_limited_for_all_processes_together(shell: Shell, sandbox: Sandbox) -> None:
    words = "for i in 1 2 3 4; do (x=$(head -c 40000000 /dev/zero | tr '\\0' x); sleep 20; :) & done; wait"
    outcome = await shell(words, limits=SandboxLimits(memory=120_000_000, seconds=30))
    assert outcome.stopped == "memory"


async def test_a_file_that_gives_its_owner_s_rights_away_cannot_be_made(shell: Shell, folder: Path) -> None:
    outcome = await shell("cp /bin/true mine; chmod 4755 mine; chmod 2755 mine; chmod 755 mine; echo done")
    assert outcome.stdout.text == "done\n"
    assert stat.S_IMODE((folder / "mine").stat().st_mode) == 0o755


async def test_a_missing_command_is_told_by_its_exit_code(shell: Shell, sandbox: Sandbox, folder: Path) -> None:
    outcome = await sandbox.run(["no-such-command"], cwd=folder, writable=folder)
    assert outcome.exit_code == 127 and "no-such-command" in outcome.stderr.text


async def test_nothing_is_not_a_sandbox_unless_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def missing() -> Sandbox:
        raise SandboxUnavailable("it is not here", "install it")

    monkeypatch.setattr(choose, "_found", {})
    monkeypatch.setattr(choose, "_PROBES", {"bubblewrap": missing, "landlock": missing})
    with pytest.raises(SandboxUnavailable) as caught:
        await choose.choose("auto")
    assert caught.value.reason == "it is not here; it is not here"
    assert caught.value.remedy == "install it, or install it"
    none = await choose.choose("none")
    assert (none.name, none.confines) == ("none", False)


async def test_bubblewrap_that_cannot_start_is_no_failed_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxUnavailable, match="No permissions to create new namespace"):
        await bubblewrap.probe()


async def test_without_a_sandbox_all_of_a_run_ends_too(folder: Path, nap: str) -> None:
    none = await choose.choose("none")
    outcome = await none.run(["sh", "-c", f"setsid {nap} & {nap}"], cwd=folder, limits=SandboxLimits(seconds=1))
    assert outcome.timed_out
    await _nothing_runs(nap)


def test_a_keeper_cuts_no_letter_where_nothing_is_left_out() -> None:
    keeper = HeadTailBuffer(6)
    for byte in "äöü".encode():
        keeper.add(bytes([byte]))
    assert keeper.kept() == CapturedOutput("äöü")
    keeper.add(b"!")
    assert keeper.kept().dropped == 1


def test_the_filter_is_whole_instructions_and_unknown_machines_have_none() -> None:
    for machine in ("x86_64", "aarch64"):
        found = program(machine)
        assert found is not None and len(found) % 8 == 0
    assert program("riscv64") is None


def _runs(words: str) -> bool:
    return any(words.replace(" ", "\0") in _command(name) for name in os.listdir("/proc") if name.isdecimal())


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


async def _nothing_runs(words: str) -> None:
    await until(lambda: not _runs(words))
