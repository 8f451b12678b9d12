"""Sandboxes: what commands can access, their resource limits, and that all their processes end."""

import asyncio
import os
import secrets
import shutil
import stat
import struct
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atlas_agents.builtin_tools import sandbox as sandboxes
from atlas_agents.builtin_tools.sandbox import bubblewrap
from atlas_agents.builtin_tools.sandbox.process import (
    CapturedOutput,
    HeadTailBuffer,
    ProcessIO,
    ProcessResult,
    Sandbox,
    SandboxCommand,
    SandboxLimits,
)
from atlas_agents.builtin_tools.sandbox.seccomp import build_filter, syscall_numbers
from atlas_agents.core.errors import SandboxUnavailable
from checks import TIMEOUT, linux_only, wait_until

pytestmark = linux_only

Shell = Callable[..., Coroutine[Any, Any, ProcessResult]]


@pytest.fixture(params=["bubblewrap", "landlock"])
async def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Both sandboxes must work where the tests run."""
    return await sandboxes.choose(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def sleep() -> str:
    """A unique command that sleeps for longer than any test."""
    return f"sleep 600.{secrets.randbelow(10**9):09}"


@pytest.fixture
def shell(sandbox: Sandbox, folder: Path) -> Shell:
    async def run(script: str, io: ProcessIO = ProcessIO(), **options: Any) -> ProcessResult:  # noqa: B008 - frozen
        argv = ("/bin/sh", "-c", script)
        return await sandbox.run(SandboxCommand(argv=argv, cwd=folder, writable=folder, **options), io)

    return run


async def test_command_runs_in_its_folder_with_standard_input(shell: Shell, folder: Path) -> None:
    result = await shell("cat; pwd; echo bad >&2; echo text > made; exit 3", ProcessIO(stdin=b"fed\n"))
    assert (result.stdout, result.stderr) == (CapturedOutput(f"fed\n{folder}\n"), CapturedOutput("bad\n"))
    assert (result.exit_code, result.stopped_by, result.signal) == (3, None, None)
    assert (folder / "made").read_text() == "text\n"


async def test_output_is_reported_while_it_is_written(shell: Shell, folder: Path) -> None:
    chunks: list[tuple[str, bytes]] = []
    first = asyncio.Event()

    def on_output(stream: str, chunk: bytes) -> None:
        chunks.append((stream, chunk))
        first.set()

    script = "echo one; until [ -e go ]; do sleep 0.02; done; echo two"
    running = asyncio.create_task(shell(script, ProcessIO(on_output=on_output)))
    await asyncio.wait_for(first.wait(), TIMEOUT)
    assert chunks == [("stdout", b"one\n")]
    (folder / "go").touch()
    await running
    assert b"".join(chunk for _, chunk in chunks) == b"one\ntwo\n"


async def test_merged_streams_keep_their_order(shell: Shell) -> None:
    result = await shell("echo a; echo b >&2; echo c", ProcessIO(merge=True))
    assert result.stdout.text == "a\nb\nc\n"


async def test_environment_has_only_the_given_variables(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    result = await shell("env; cat /proc/*/environ", env={"GIVEN": "1"})
    assert "GIVEN=1" in result.stdout.text
    assert "canary" not in result.stdout.text


async def test_environment_of_a_command_does_not_reach_the_process_that_confines_it(
    sandbox: Sandbox, folder: Path, tmp_path: Path
) -> None:
    """A library in LD_PRELOAD would run before the command is confined, or outside of the sandbox."""
    (folder / "evil.c").write_text(
        "#include <stdio.h>\n#include <unistd.h>\n__attribute__((constructor)) static void run(void) {\n"
        f'  FILE *f = fopen("{tmp_path}/escaped", "a"); if (f) {{ fputs("x", f); fclose(f); }}\n'
        '  char name[64] = {0}; FILE *g = fopen("/proc/self/comm", "r"); if (g) fgets(name, 60, g);\n'
        '  fprintf(stderr, "loaded by %s\\n", name);\n}\n'
    )
    compile = ("gcc", "-shared", "-fPIC", "-o", "evil.so", "evil.c")
    limits = SandboxLimits(memory=1 << 30)
    await sandbox.run(SandboxCommand(argv=compile, cwd=folder, writable=folder, limits=limits))
    env = {"LD_PRELOAD": str(folder / "evil.so"), "SECRET": "hidden"}
    result = await sandbox.run(SandboxCommand(argv=("env",), cwd=folder, writable=folder, env=env, limits=limits))
    assert "escaped" not in os.listdir(tmp_path)
    assert "SECRET=hidden" in result.stdout.text
    loaded = {line for line in result.stderr.text.splitlines() if line.startswith("loaded by ")}
    assert loaded <= {"loaded by ", "loaded by env", "loaded by prlimit"}, result


async def test_masked_paths_are_hidden_and_read_only_paths_unchanged(shell: Shell, folder: Path) -> None:
    (folder / ".env").write_text("canary")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("before")
    (folder / "secrets").mkdir()
    (folder / "secrets" / "key").write_text("canary")
    script = "cat .env secrets/key; echo x > .env; echo after > .git/config; touch .git/new; rm -rf .git .env secrets"
    script += "; mv .git elsewhere; mv .env elsewhere; cat elsewhere; chmod 777 .env .git .git/config; touch .env .git"
    masked = (folder / ".env", folder / "secrets", folder / "missing")
    before = {entry.name: (entry.stat().st_mode, entry.stat().st_mtime) for entry in os.scandir(folder)}
    result = await shell(script, read_only=(folder / ".git",), masked=masked)
    assert {entry.name: (entry.stat().st_mode, entry.stat().st_mtime) for entry in os.scandir(folder)} == before
    assert "canary" not in result.stdout.text + result.stderr.text
    assert (folder / ".env").read_text() == (folder / "secrets" / "key").read_text() == "canary"
    assert [path.name for path in (folder / ".git").iterdir()] == ["config"]
    assert (folder / ".git" / "config").read_text() == "before"
    assert not (folder / "missing").exists()


async def test_link_in_place_of_a_protected_path_is_not_followed(shell: Shell, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").write_text("canary")
    (folder / ".git").symlink_to(tmp_path / "outside")
    result = await shell("cat .git/key", read_only=(folder / ".git",))
    assert "canary" not in result.stdout.text


@pytest.mark.parametrize(
    "script", ["SLEEP", "setsid SLEEP & SLEEP", "trap '' TERM INT HUP; SLEEP & while :; do :; done"]
)
async def test_timeout_kills_all_processes(shell: Shell, script: str, sleep: str) -> None:
    result = await shell(script.replace("SLEEP", sleep), limits=SandboxLimits(seconds=1))
    assert result.timed_out and result.exit_code is None
    await _wait_until_gone(sleep)


async def test_background_processes_end_with_the_command(shell: Shell, sleep: str) -> None:
    result = await shell(f"(setsid {sleep} >/dev/null 2>&1 &) ; setsid {sleep} & echo done")
    assert result.stdout.text == "done\n" and result.duration < TIMEOUT
    await _wait_until_gone(sleep)


async def test_cancelling_kills_the_process(shell: Shell, sleep: str) -> None:
    running = asyncio.create_task(shell(f"setsid {sleep} & {sleep}", limits=SandboxLimits(seconds=50)))
    await wait_until(lambda: _is_running(sleep))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await _wait_until_gone(sleep)


async def test_endless_output_is_killed_and_its_middle_dropped(shell: Shell) -> None:
    result = await shell("yes", limits=SandboxLimits(output=1_000_000, capture=2000))
    assert result.stopped_by == "output"
    assert result.stdout == CapturedOutput("y\n" * 500, "y\n" * 500, 998_000)


async def test_cpu_time_is_limited(shell: Shell) -> None:
    result = await shell("while :; do :; done", limits=SandboxLimits(seconds=50, cpu=1))
    assert result.stopped_by is None and result.exit_code != 0 and result.duration < 45


async def test_number_of_processes_is_limited(shell: Shell, sleep: str) -> None:
    script = f"i=0; while [ $i -lt 3000 ]; do {sleep} & i=$((i+1)); done; echo all of them"
    result = await shell(script, limits=SandboxLimits(processes=30, seconds=10))
    assert "all of them" not in result.stdout.text
    assert result.stopped_by == "processes" or "fork" in result.stderr.text
    await _wait_until_gone(sleep)


async def test_disk_usage_is_limited_in_total_and_per_file(shell: Shell, folder: Path) -> None:
    limits = SandboxLimits(disk=20_000_000, file_size=8_000_000, seconds=20)
    script = "i=0; while :; do head -c 20000000 /dev/zero > $i; i=$((i+1)); done"
    result = await shell(script, limits=limits)
    assert result.stopped_by == "disk"
    assert max(entry.stat().st_size for entry in os.scandir(folder)) <= 8_000_000


async def test_memory_is_limited_for_all_processes_together(shell: Shell, sandbox: Sandbox) -> None:
    script = "for i in 1 2 3 4; do (x=$(head -c 40000000 /dev/zero | tr '\\0' x); sleep 20; :) & done; wait"
    result = await shell(script, limits=SandboxLimits(memory=120_000_000, seconds=30))
    assert result.stopped_by == "memory"


async def test_setuid_files_cannot_be_created(shell: Shell, folder: Path) -> None:
    result = await shell("cp /bin/true mine; chmod 4755 mine; chmod 2755 mine; chmod 755 mine; echo done")
    assert result.stdout.text == "done\n"
    assert stat.S_IMODE((folder / "mine").stat().st_mode) == 0o755


ORDINARY = {
    "git": "git init -q . && git config user.email a@b.c && git config user.name n && echo x > f && git add f && "
    "git commit -qm first && git clone -q . copy && git -C copy log --format=%s && git gc -q && "
    "git config core.filemode",
    "gcc": "printf '#include <stdio.h>\\nint main(){puts(\"compiled\");}' > a.c && gcc a.c -o made && ./made",
    "node": 'node -e \'require("child_process").execSync("true"); require("fs").promises.stat(".").then('
    '() => new (require("worker_threads").Worker)("0", {eval: true}).on("exit", () => console.log("node")))\'',
    "tar": "mkdir a && echo x > a/f && chmod 640 a/f && touch -d 2001-02-03 a/f && tar czf a.tgz a && rm -r a && "
    "tar xpzf a.tgz && stat -c '%a %y' a/f | cut -c1-14",
    "make": "printf 'all: made\\nmade:\\n\\tcp /bin/true made\\n' > Makefile && make -s -j2 && ./made && echo made",
    "bash": "bash -c 'coproc cat; echo text >&${COPROC[1]}; read -u ${COPROC[0]} x; echo $x; ulimit -n 64; nice true'",
    "cp": "echo x > a && cp -p a b && install -m 755 b c && ln -s c d && mv d e && ls | tr -d '\\n'",
}
EXPECTED = {"git": "first\ntrue", "gcc": "compiled", "node": "node", "tar": "640 2001-02-03", "make": "made"}


@pytest.mark.parametrize("program", [name for name in ORDINARY if shutil.which(name)])
async def test_ordinary_programs_run(shell: Shell, program: str, folder: Path) -> None:
    env, limits = {"HOME": str(folder)}, SandboxLimits(memory=4 << 30, seconds=50)
    result = await shell(ORDINARY[program], env=env, limits=limits)
    output = result.stdout.text.strip()
    assert output == {**EXPECTED, "bash": "text", "cp": "abce"}[program], result


_PYTHON = """
import asyncio, concurrent.futures, numpy, shutil, sqlite3, subprocess, tempfile
numpy.linalg.inv(numpy.random.rand(200, 200))
assert subprocess.check_output(["echo", "1"]) == b"1\\n"
async def child(): return await (await asyncio.create_subprocess_exec("true")).wait()
assert asyncio.run(child()) == 0
with tempfile.TemporaryDirectory(dir=".") as made: shutil.copytree(made, "copy"); shutil.make_archive("a", "zip", made)
with sqlite3.connect("a.db") as database: database.execute("create table a (b)")
with concurrent.futures.ThreadPoolExecutor(4) as pool: list(pool.map(str, range(9)))
print("python")
"""


async def test_python_with_packages_runs(sandbox: Sandbox, folder: Path) -> None:
    installed = tuple({Path(sys.prefix), Path(sys.base_prefix)} - {Path("/usr")})
    command = SandboxCommand(
        argv=(sys.executable, "-c", _PYTHON),
        cwd=folder,
        writable=folder,
        programs=installed,
        env={"HOME": str(folder)},
        limits=SandboxLimits(memory=2 << 30, seconds=50),
    )
    result = await sandbox.run(command, ProcessIO(merge=True))
    assert result.stdout.text.endswith("python\n"), result


async def test_missing_command_has_exit_code_127(shell: Shell, sandbox: Sandbox, folder: Path) -> None:
    result = await sandbox.run(SandboxCommand(argv=("no-such-command",), cwd=folder, writable=folder))
    assert result.exit_code == 127 and "no-such-command" in result.stderr.text


async def test_no_sandbox_must_be_requested_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def missing() -> Sandbox:
        raise SandboxUnavailable("not installed", "install it")

    monkeypatch.setattr(sandboxes, "_working", {})
    monkeypatch.setattr(sandboxes, "_PROBES", {"bubblewrap": missing, "landlock": missing})
    with pytest.raises(SandboxUnavailable) as caught:
        await sandboxes.choose("auto")
    assert caught.value.reason == "not installed; not installed"
    assert caught.value.remedy == "install it, or install it"
    none = await sandboxes.choose("none")
    assert (none.name, none.confines) == ("none", False)


async def test_bubblewrap_that_cannot_start_is_reported_as_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxUnavailable, match="No permissions to create new namespace"):
        await bubblewrap.probe()


async def test_timeout_kills_all_processes_without_a_sandbox(folder: Path, sleep: str) -> None:
    none = await sandboxes.choose("none")
    argv = ("sh", "-c", f"setsid {sleep} & {sleep}")
    result = await none.run(SandboxCommand(argv=argv, cwd=folder, limits=SandboxLimits(seconds=1)))
    assert result.timed_out
    await _wait_until_gone(sleep)


def test_buffer_does_not_split_a_character_if_nothing_is_dropped() -> None:
    buffer = HeadTailBuffer(6)
    for byte in "äöü".encode():
        buffer.add(bytes([byte]))
    assert buffer.captured() == CapturedOutput("äöü")
    buffer.add(b"!")
    assert buffer.captured().dropped == 1


async def test_run_ends_before_the_disk_is_full(shell: Shell, monkeypatch: pytest.MonkeyPatch, sleep: str) -> None:
    """Also if another program fills it: a run can hide what it writes."""
    free = iter([4 << 30, 3 << 30])

    def measure(path: object) -> SimpleNamespace:
        return SimpleNamespace(f_frsize=1, f_bavail=next(free, 1 << 29), f_favail=10**6)

    monkeypatch.setattr(os, "statvfs", measure)
    assert (await shell(sleep, limits=SandboxLimits(seconds=20))).stopped_by == "disk"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("namespaces", [True, False])
def test_filter_allows_listed_calls_only(machine: str, namespaces: bool) -> None:
    """Run the filter for each number; the errors are those for which libraries have a fallback."""
    program = build_filter(machine, namespaces=namespaces)
    assert program is not None and len(program) % 8 == 0 and len(program) // 8 <= 4096
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    allow, permission, missing, family = 0x7FFF0000, 0x50001, 0x50026, 0x50061

    def decide(name: str | int, *arguments: int, arch: int = arch) -> int:
        number = name if isinstance(name, int) else syscall_numbers([name], machine)[name]
        return run_filter(program, number, arch, arguments)

    assert {decide(name) for name in ("read", "openat", "execve", "clone", "futex", "sendto")} == {allow}
    assert {decide(number) for number in range(424, 428)} == {missing}  # pidfd_send_signal, io_uring
    assert {decide(number) for number in (434, 435, 437, 438, *range(463, 1000))} == {missing}
    assert decide("read", arch=0x40000003) == missing
    assert decide("ptrace") == decide("mount") == permission
    assert decide("prlimit64", 0) == allow and decide("prlimit64", 7) == permission
    assert decide("setpriority", 0, 0) == allow
    assert {decide("setpriority", *each) for each in ((0, 7), (1, 0), (2, 0))} == {permission}
    assert decide("clone", 0x10000011) == permission
    assert decide("fchmod", 3, 0o4755) == permission and decide("fchmod", 3, 0o755) == allow
    assert decide("openat", 0, 0, 0o100, 0o4755) == permission and decide("openat", 0, 0, 0, 0o4755) == allow
    assert decide("ioctl", 0, 0x5412) == 0x50019 and decide("ioctl", 0, 0x5401) == allow
    sockets = {(f, 1, p) for f in range(46) for p in (0, 6, 132, 262)}
    allowed = {each for each in sockets if decide("socket", *each) == allow}
    assert {f for f, _, _ in allowed} == ({1, 2, 10, 16} if namespaces else set())
    assert decide("socket", 40, 1, 0) == family and decide("socketpair", 30, 1, 0) == family
    assert decide("socketpair", 1, 0x80001, 0) == allow
    if not namespaces:
        assert decide("socketpair", 1, 2, 0) != allow and decide("connect") == permission
        assert decide("sendto", 0, 0, 0, 0x20000000) == permission
        assert decide("sendto", 0, 0, 0, 0, 1 << 40) == decide("sendto", 0, 0, 0, 0, 1) == permission
    if machine == "x86_64":
        assert decide(0x40000000 + 41, 2, 1, 0) == missing


def test_unknown_machines_have_no_filter() -> None:
    assert build_filter("riscv64") is None


def run_filter(program: bytes, number: int, arch: int, arguments: tuple[int, ...]) -> int:
    """Interpret classic BPF."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    position = loaded = 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("=HBBI", program, 8 * position)
        position += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("=I", data, value)
            case 0x54:
                loaded &= value
            case 0x06:
                return value
            case _:
                met = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
                position += if_true if met else if_false


def _is_running(command: str) -> bool:
    return any(command.replace(" ", "\0") in _read_command(name) for name in os.listdir("/proc") if name.isdecimal())


def _read_command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


async def _wait_until_gone(command: str) -> None:
    await wait_until(lambda: not _is_running(command))
