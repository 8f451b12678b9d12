"""Bubblewrap: namespaces of its own for files, processes, network and users, made by the kernel without root."""

import asyncio
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from atlas_agents.builtin_tools.sandbox import seccomp
from atlas_agents.builtin_tools.sandbox.base import (
    PATH,
    OnOutput,
    ProcessResult,
    RunMixin,
    SandboxCommand,
    SandboxLimits,
    SandboxProcess,
)
from atlas_agents.builtin_tools.sandbox.process import Confined
from atlas_agents.core.errors import SandboxUnavailable

_TMP = 64 * 1024 * 1024
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("alternatives", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "ssl/certs")
_NAMES = ("resolv.conf", "hosts", "nsswitch.conf")
_USER = "1000"
_CHILD = re.compile(rb'"child-pid": *(\d+)')
REMEDY = "install bubblewrap (Debian and Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"


class Bubblewrap(RunMixin):
    """Runs commands under `bwrap`: a system to read, one folder to write, no network, nobody else's processes."""

    name = "bubblewrap"
    confines = True

    def __init__(self) -> None:
        self._bwrap = shutil.which("bwrap", path=f"{os.environ.get('PATH', '')}:{PATH}")
        self._prlimit = shutil.which("prlimit", path=f"{PATH}:/usr/sbin:/sbin")

    async def start(
        self,
        job: SandboxCommand,
        *,
        stdin: bytes | socket.socket | None = None,
        on_output: OnOutput | None = None,
        spill: Path | None = None,
        merge: bool = False,
    ) -> SandboxProcess:
        if self._bwrap is None:
            raise SandboxUnavailable("there is no bwrap in PATH", REMEDY)
        if self._prlimit is None:
            raise SandboxUnavailable("there is no prlimit in PATH", "install util-linux")
        inner = [self._prlimit, *_ceilings(job.limits), "--", *job.argv]
        # Not `--clearenv`: the environment that bwrap itself was given can be read in the sandbox, in /proc/1/environ.
        env = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", **job.env}  # noqa: S108 - the sandbox's own
        with _LaunchDescriptors(seccomp.program()) as given:
            argv = [self._bwrap, *_walls(), *_line(job), *given.options, *_mounts(job), "--", *inner]
            process = _Wrapped(job, given.take_status(), on_output=on_output, spill=spill)
            await process.open(argv, env=env, stdin=stdin, merge=merge, pass_fds=given.fds)
        return process


class _Wrapped(Confined):
    """A run that tells whether the sandbox itself came to stand: a broken one must not pass for a failed command."""

    def __init__(self, job: SandboxCommand, status: int, *, on_output: OnOutput | None, spill: Path | None) -> None:
        super().__init__(job, on_output=on_output, spill=spill)
        self._status = status
        self._said = b""
        self._reading = threading.Lock()
        self.first = self._first_process

    async def wait(self) -> ProcessResult:
        outcome = await super().wait()
        said = self._hear(last=True)
        if b"exit-code" not in said and outcome.stopped is None and outcome.signal is None:
            raise SandboxUnavailable(f"bubblewrap did not start: {outcome.stderr.text.strip()[:300]}", REMEDY)
        return outcome

    async def kill(self) -> None:
        await super().kill()
        self._hear(last=True)

    def _first_process(self) -> int | None:
        found = _CHILD.search(self._hear())
        return int(found[1]) if found else None

    def _hear(self, *, last: bool = False) -> bytes:
        """What bwrap has said of itself so far; the watch asks from its own thread."""
        with self._reading:
            if self._status >= 0:
                with suppress(OSError):
                    self._said += os.read(self._status, 4096)
                if last:
                    os.close(self._status)
                    self._status = -1
            return self._said


class _LaunchDescriptors:
    """The descriptors that bwrap is started with: the filter to read, and where it says how far it came."""

    def __init__(self, filter_program: bytes | None) -> None:
        self._status, self._saying = os.pipe()
        os.set_blocking(self._status, False)
        self._filter = -1
        self.options = ["--json-status-fd", str(self._saying)]
        if filter_program is not None:
            self._filter, end = os.pipe()
            os.write(end, filter_program)
            os.close(end)
            self.options += ["--seccomp", str(self._filter)]

    @property
    def fds(self) -> list[int]:
        return [fd for fd in (self._saying, self._filter) if fd >= 0]

    def take_status(self) -> int:
        status, self._status = self._status, -1
        return status

    def __enter__(self) -> "_LaunchDescriptors":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._saying, self._filter, self._status):
            if fd >= 0:
                os.close(fd)


def _walls() -> list[str]:
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        *("--uid", _USER, "--gid", _USER, "--hostname", "sandbox", "--cap-drop", "ALL"),
    ]


def _line(job: SandboxCommand) -> list[str]:
    """The machine's own network, and how it finds names, for those who may use it."""
    if not job.network:
        return []
    files = [f"/etc/{name}" for name in _NAMES]
    return ["--share-net", *[word for file in files for word in ("--ro-bind-try", os.path.realpath(file), file)]]


def _ceilings(limits: SandboxLimits) -> list[str]:
    return [
        *(f"--cpu={limits.cpu}", f"--data={limits.memory}", f"--nproc={limits.processes}", "--core=0"),
        *(f"--fsize={limits.file_size}", f"--nofile={limits.open_files}"),
    ]


def _mounts(job: SandboxCommand) -> list[str]:
    """What the command sees of the outside, parents before children; the last word on a path counts."""
    words = [*_system(), "--proc", "/proc", "--dev", "/dev", "--size", str(_TMP), "--tmpfs", "/dev/shm"]  # noqa: S108
    words += ["--remount-ro", "/dev", "--size", str(_TMP), "--tmpfs", "/tmp"]  # noqa: S108
    shown = [("--ro-bind", path) for path in job.programs if path.exists()]
    if job.writable is not None:
        shown.append(("--bind", job.writable))
    for option, path in sorted(shown, key=lambda item: (len(item[1].parts), item[0])):
        words += [option, str(path), str(path)]
    for path in protected(job, job.read_only):
        words += ["--ro-bind", str(path), str(path)]
    for path in protected(job, job.masked):
        words += ["--tmpfs", str(path), "--remount-ro", str(path)] if path.is_dir() else _nothing_at(path)
    return [*words, "--chdir", str(job.cwd), "--remount-ro", "/"]


def _nothing_at(path: Path) -> list[str]:
    return ["--ro-bind", "/dev/null", str(path)]


def _system() -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for path in (*(Path("/etc", name) for name in _ETC), Path("/nix/store")):
        if path.exists():
            yield from ("--ro-bind", str(path), str(path))


def protected(job: SandboxCommand, paths: tuple[Path, ...]) -> list[Path]:
    """Those that exist below the writable folder, as they really are: a link that leads out of it shows nothing."""
    if job.writable is None:
        return []
    root, found = job.writable.resolve(), list[Path]()
    for path in paths:
        with suppress(OSError):
            real = path.resolve(strict=True)
            if real != root and real.is_relative_to(root):
                found.append(job.writable / real.relative_to(root))
    return sorted(set(found), key=lambda path: len(path.parts))


async def probe() -> Bubblewrap:
    """Bubblewrap, if it really runs something here; else SandboxUnavailable."""
    sandbox = Bubblewrap()
    async with asyncio.timeout(10):
        outcome = await sandbox.run(["/bin/sh", "-c", "echo inside"], cwd=Path("/"))
    if outcome.stdout.text != "inside\n":
        raise SandboxUnavailable(f"bubblewrap ran nothing: {outcome.stderr.text[:300]}", REMEDY)
    return sandbox
