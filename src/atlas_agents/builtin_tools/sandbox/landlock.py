"""Landlock and seccomp through `sandlock`, for machines where no user namespace can be made.

What is to be read-only below the writable folder cannot be read either: Landlock gives rights to whole folders, and
takes none back. There is no namespace that dies as one, so what was started is found by descent.
"""

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path
from socket import socket

import msgspec

from atlas_agents.builtin_tools.sandbox import seccomp
from atlas_agents.builtin_tools.sandbox.base import (
    PATH,
    OnOutput,
    ProcessResult,
    RunMixin,
    SandboxCommand,
    SandboxProcess,
)
from atlas_agents.builtin_tools.sandbox.bubblewrap import protected
from atlas_agents.builtin_tools.sandbox.process import Confined
from atlas_agents.core.errors import SandboxUnavailable

_HERE = Path(__file__).parent
_READ = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/dev/urandom", "/dev/random", "/dev/zero")
_ETC = ("alternatives", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "ssl/certs")
_FAILED = 113
"""What the launcher exits with when it could not confine anything, after a line on stderr that begins so:"""
_SORRY = "atlas-sandbox: "
REMEDY = "pip install 'atlas-agents[sandbox]' on Linux 6.12 or newer"


class Landlock(RunMixin):
    """Runs commands under rules that the kernel holds them to: files by path, no network, no signals to others."""

    name = "landlock"
    confines = True

    async def start(
        self,
        job: SandboxCommand,
        *,
        stdin: bytes | socket | None = None,
        on_output: OnOutput | None = None,
        spill: Path | None = None,
        merge: bool = False,
    ) -> SandboxProcess:
        if job.network:
            raise SandboxUnavailable("Landlock gives no command the network", "install bubblewrap, or do without")
        package = find_spec("sandlock")
        if package is None or package.origin is None:
            raise SandboxUnavailable("sandlock is not installed", REMEDY)
        process = _Launched(job, on_output=on_output, spill=spill)
        order = msgspec.json.encode(_order(job, Path(package.origin).parent.parent)).decode()
        argv = [sys.executable, "-I", "-S", str(_HERE / "landlock_launcher.py"), order]
        await process.open(argv, env={"PATH": PATH, "LANG": "C.UTF-8"}, stdin=stdin, merge=merge, cwd=str(job.cwd))
        return process


class _Launched(Confined):
    """A launcher at work, which says if it could not confine anything."""

    gently = True

    async def wait(self) -> ProcessResult:
        outcome = await super().wait()
        if outcome.exit_code == _FAILED and _SORRY in (said := outcome.stderr.text + outcome.stdout.text):
            raise SandboxUnavailable(f"Landlock did not hold: {said.partition(_SORRY)[2].strip()[:300]}", REMEDY)
        return outcome


def _order(job: SandboxCommand, library: Path) -> dict[str, object]:
    """All that the launcher needs to know."""
    limits = job.limits
    filter_program = seccomp.program()
    etc = [f"/etc/{name}" for name in _ETC]
    return {
        "library": str(library),
        "argv": job.argv,
        "python": sys.executable,
        "cwd": str(job.cwd),
        "readable": [path for path in (*_READ, *etc, *map(str, job.programs), *_python()) if Path(path).exists()],
        "writable": [*([str(job.writable)] if job.writable else []), "/dev/null"],
        "denied": [str(path) for path in protected(job, (*job.read_only, *job.masked))],
        "env": {"PATH": PATH, "HOME": str(job.writable or "/"), "LANG": "C.UTF-8", **_tmp(job), **job.env},
        "processes": limits.processes,
        "filter": filter_program.hex() if filter_program else "",
        "ceilings": {
            "RLIMIT_CPU": limits.cpu,
            "RLIMIT_DATA": limits.memory,
            "RLIMIT_FSIZE": limits.file_size,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_CORE": 0,
        },
    }


def _tmp(job: SandboxCommand) -> dict[str, str]:
    """There is no /tmp of its own here."""
    return {"TMPDIR": str(job.writable)} if job.writable else {}


def _python() -> list[str]:
    """The interpreter that sets the limits from inside, before the command takes its place."""
    return sorted({sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parent)})


async def probe() -> Landlock:
    """Landlock, if it really confines something here; else SandboxUnavailable."""
    sandbox = Landlock()
    async with asyncio.timeout(10):
        outcome = await sandbox.run(["/bin/sh", "-c", "cat /proc/1/environ; echo inside"], cwd=Path("/"))
    if outcome.stdout.text != "inside\n":
        raise SandboxUnavailable(f"Landlock ran nothing: {outcome.stderr.text[:300]}", REMEDY)
    return sandbox
