"""Sandboxes for untrusted commands and code: confine them, limit their resources, and kill every process they start."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from atlas_agents.builtin_tools.sandbox import bubblewrap, process, seccomp
from atlas_agents.builtin_tools.sandbox.bubblewrap import resolve_protected
from atlas_agents.builtin_tools.sandbox.process import (
    ETC,
    PATH,
    ProcessIO,
    ProcessResult,
    Sandbox,
    SandboxCommand,
    SandboxProcess,
)
from atlas_agents.core import install_command
from atlas_agents.core.errors import SandboxUnavailable

_LAUNCHER = "import sys; sys.path.append(sys.argv.pop(1)); import landlock_launcher; landlock_launcher.main()"
"""Imports the launcher as a module: Python caches the bytecode of modules, but compiles a script at each start."""
_READABLE = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/dev/urandom", "/dev/random", "/dev/zero"),
    *(f"/etc/{name}" for name in ETC),
)
_LANDLOCK_REMEDY = f"run: {install_command('sandbox')} (requires Linux 6.12 or newer)"


class Landlock(Sandbox):
    """Runs commands under Landlock rules and seccomp, through `sandlock`, where user namespaces cannot be created.

    Files are accessible by path; there is no network, and no signal reaches other processes. Landlock grants rights to
    whole folders and cannot revoke them below, so paths that should be read-only cannot be read either. It does not
    control sockets and the metadata of files: the filter refuses sockets, and the launcher changes metadata for the
    command, and names in folders if some are protected. Without a PID namespace, the processes of a run are found by
    ancestry.
    """

    name = "landlock"
    confines = True
    not_hidden = (
        "whether a file exists elsewhere; its size, owner, mode and times; where a link points; which processes run"
    )

    async def start(self, command: SandboxCommand, io: ProcessIO) -> SandboxProcess:
        if command.network:
            raise SandboxUnavailable("Landlock cannot allow network access", "install bubblewrap, or disable network")
        package = find_spec("sandlock")
        if package is None or package.origin is None:
            raise SandboxUnavailable("sandlock is not installed", _LANDLOCK_REMEDY)
        started = _LandlockProcess(command, io)
        request = msgspec.json.encode(_launch_request(command, Path(package.origin).parent.parent)).decode()
        argv = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(Path(__file__).parent), request]
        await started.open(argv, env={"PATH": PATH, "LANG": "C.UTF-8"}, cwd=str(command.cwd))
        return started


class _LandlockProcess(SandboxProcess):
    """The launcher process, which reports whether it could confine the command."""

    reaps_children = True

    async def wait(self) -> ProcessResult:
        result = await super().wait()
        process.check_confined(result, "Landlock", _LANDLOCK_REMEDY)
        return result


def _launch_request(command: SandboxCommand, library: Path) -> dict[str, object]:
    limits = command.limits
    filter_program = seccomp.build_filter(namespaces=False)
    if filter_program is None:
        raise SandboxUnavailable("Landlock requires x86_64 or aarch64 here", "install bubblewrap")
    tmp = {"TMPDIR": str(command.writable)} if command.writable else {}  # there is no private /tmp
    rlimits = {
        "RLIMIT_CPU": limits.cpu,
        "RLIMIT_DATA": limits.memory,
        "RLIMIT_FSIZE": limits.file_size,
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_CORE": 0,
    }
    env = {"PATH": PATH, "HOME": str(command.writable or "/"), "LANG": "C.UTF-8", **tmp, **command.env}
    env.setdefault("GIT_CONFIG_NOSYSTEM", "1")  # git ends if there is an /etc/gitconfig that it cannot read
    programs = map(str, (*command.programs, *process.python_folders()))
    denied = [str(path) for path in resolve_protected(command, (*command.read_only, *command.masked))]
    # A protected link, unlike what it points to, is only a name in its folder.
    links = [path for path in (*command.read_only, *command.masked) if path.is_symlink()]
    return {
        "library": str(library),
        "argv": [process.PYTHON, "-I", "-S", "-c", process.inside_source(filter_program, rlimits, env), *command.argv],
        "cwd": str(command.cwd),
        "readable": [path for path in (*_READABLE, *programs) if Path(path).exists()],
        "writable": [*([str(command.writable)] if command.writable else []), "/dev/null"],
        "denied": denied,
        "unchangeable": [
            *(os.path.realpath(path) for path in denied),
            *(os.path.join(os.path.realpath(path.parent), path.name) for path in links),
        ],
        "env": {"PATH": PATH, "LANG": "C.UTF-8"},
        "processes": limits.processes,
        "supervised": seccomp.syscall_numbers(
            (*seccomp.SUPERVISED, *(seccomp.SUPERVISED_NAMES if denied or links else ()))
        ),
        "file_size": limits.file_size,
        "changeable": os.path.realpath(command.writable) if command.writable else "",
    }


async def _probe_landlock() -> Landlock:
    """Return the Landlock sandbox if it confines a test command on this machine; otherwise SandboxUnavailable."""
    sandbox = Landlock()
    with tempfile.NamedTemporaryFile() as outside:
        argv = ("/bin/sh", "-c", 'cat /proc/1/environ; chmod 777 "$0"; echo inside', outside.name)
        async with asyncio.timeout(10):
            result = await sandbox.run(SandboxCommand(argv=argv, cwd=Path("/")))
        if result.stdout.text != "inside\n":
            raise SandboxUnavailable(
                f"Landlock could not run a test command: {result.stderr.text[:300]}", _LANDLOCK_REMEDY
            )
        if os.stat(outside.name).st_mode & 0o077:
            raise SandboxUnavailable("Landlock and sandlock do not protect file modes here", _LANDLOCK_REMEDY)
    return sandbox


class Unconfined(Sandbox):
    """Runs commands without a sandbox, with resource limits where `prlimit` is installed."""

    name = "none"
    confines = False

    async def start(self, command: SandboxCommand, io: ProcessIO) -> SandboxProcess:
        limits = command.limits
        rlimits = [f"--cpu={limits.cpu}", f"--data={limits.memory}", f"--fsize={limits.file_size}", "--core=0", "--"]
        env = {"PATH": os.environ.get("PATH", PATH), "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}
        prlimit = shutil.which("prlimit")
        argv = [prlimit, *rlimits, *command.argv] if prlimit else list(command.argv)
        process = SandboxProcess(command, io)
        await process.open(argv, env={**env, **command.env}, cwd=str(command.cwd))
        return process


SandboxKind: TypeAlias = Literal["auto", "bubblewrap", "landlock", "none"]
_PROBES: dict[str, Callable[[], Awaitable[Sandbox]]] = (
    {"bubblewrap": bubblewrap.probe, "landlock": _probe_landlock} if sys.platform == "linux" else {}
)
_working: dict[str, Sandbox] = {}


async def choose(kind: SandboxKind = "auto") -> Sandbox:
    """Return the sandbox of this kind, or raise SandboxUnavailable; only "none" returns one that does not confine.

    "auto" is the strongest one that works. A sandbox that worked is cached; one that failed is tried again the next
    time.
    """
    if kind == "none":
        return Unconfined()
    if not _PROBES:
        raise SandboxUnavailable("bubblewrap and Landlock need Linux", "run Atlas on Linux")
    failures: list[SandboxUnavailable] = []
    for name in tuple(_PROBES) if kind == "auto" else (kind,):
        try:
            if name not in _working:
                _working[name] = await _PROBES[name]()
            return _working[name]
        except SandboxUnavailable as failure:
            failures.append(failure)
        except TimeoutError:
            failures.append(SandboxUnavailable(f"{name} timed out", f"run a command with {name} to see why it hangs"))
    raise SandboxUnavailable(
        "; ".join(each.reason for each in failures), ", or ".join(each.remedy for each in failures)
    )


def describe_sandbox(sandbox: Sandbox, subject: str, folder: Path | str, *, network: bool = False) -> str:
    """Describe for an approval request how a "command" or "code" is confined."""
    if not sandbox.confines:
        return (
            f"No sandbox: this {subject} can read and write everything your user account can, and use the network.\n"
            "Reason: the sandbox is set to 'none'."
        )
    claims = "; ".join(
        [
            "network allowed" if network else "no network",
            f"can write only to {folder}",
            "can read only there and installed programs",
            "cannot change other processes",
        ]
    )
    visible = f"\nNot hidden: {sandbox.not_hidden}" if sandbox.not_hidden else ""
    return f"Sandbox: {sandbox.name.capitalize()} ({claims}){visible}"
