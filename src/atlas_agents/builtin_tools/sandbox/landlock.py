"""Sandbox with Landlock and seccomp, through `sandlock`, for machines that cannot create user namespaces.

Landlock grants rights to whole folders and cannot revoke them below, so paths that should be read-only cannot be read
either. It does not control sockets and the metadata of files: the filter refuses sockets, and the launcher changes
metadata for the command, and names in folders if some are protected. Without a PID namespace, the processes of a run
are found by ancestry.
"""

import asyncio
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import msgspec

from atlas_agents.builtin_tools.sandbox import process, seccomp
from atlas_agents.builtin_tools.sandbox.bubblewrap import resolve_protected
from atlas_agents.builtin_tools.sandbox.process import ETC, PATH, ProcessIO, ProcessResult, SandboxCommand
from atlas_agents.core import install_command
from atlas_agents.core.errors import SandboxUnavailable

_LAUNCHER = Path(__file__).with_name("landlock_launcher.py")
_READABLE = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/dev/urandom", "/dev/random", "/dev/zero"),
    *(f"/etc/{name}" for name in ETC),
)
REMEDY = f"run: {install_command('sandbox')} (requires Linux 6.12 or newer)"


class Landlock(process.Sandbox):
    """Runs commands under Landlock rules: file access by path, no network, no signals to other processes."""

    name = "landlock"
    confines = True
    not_hidden = (
        "whether a file exists elsewhere; its size, owner, mode and times; where a link points; which processes run"
    )

    async def start(self, command: SandboxCommand, io: ProcessIO) -> process.SandboxProcess:
        if command.network:
            raise SandboxUnavailable("Landlock cannot allow network access", "install bubblewrap, or disable network")
        package = find_spec("sandlock")
        if package is None or package.origin is None:
            raise SandboxUnavailable("sandlock is not installed", REMEDY)
        started = _LandlockProcess(command, io)
        request = msgspec.json.encode(_launch_request(command, Path(package.origin).parent.parent)).decode()
        argv = [sys.executable, "-I", "-S", str(_LAUNCHER), request]
        await started.open(argv, env={"PATH": PATH, "LANG": "C.UTF-8"}, cwd=str(command.cwd))
        return started


class _LandlockProcess(process.SandboxProcess):
    """The launcher process, which reports whether it could confine the command."""

    reaps_children = True

    async def wait(self) -> ProcessResult:
        result = await super().wait()
        process.check_confined(result, "Landlock", REMEDY)
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


async def probe() -> Landlock:
    """Return the Landlock sandbox if it confines a test command on this machine; otherwise SandboxUnavailable."""
    sandbox = Landlock()
    with tempfile.NamedTemporaryFile() as outside:
        argv = ("/bin/sh", "-c", 'cat /proc/1/environ; chmod 777 "$0"; echo inside', outside.name)
        async with asyncio.timeout(10):
            result = await sandbox.run(SandboxCommand(argv=argv, cwd=Path("/")))
        if result.stdout.text != "inside\n":
            raise SandboxUnavailable(f"Landlock could not run a test command: {result.stderr.text[:300]}", REMEDY)
        if os.stat(outside.name).st_mode & 0o077:
            raise SandboxUnavailable("Landlock and sandlock do not protect file modes here", REMEDY)
    return sandbox
