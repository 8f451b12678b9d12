"""Sandbox with bubblewrap: separate user, mount, PID and network namespaces, without root."""

import asyncio
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from atlas_agents.builtin_tools.sandbox import process, seccomp
from atlas_agents.builtin_tools.sandbox.process import (
    ETC,
    PATH,
    ProcessIO,
    ProcessResult,
    SandboxCommand,
    SandboxLimits,
)
from atlas_agents.core.errors import SandboxUnavailable

_TMP_SIZE = str(64 * 1024 * 1024)
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DEVICES = tuple(f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero"))
_HIDDEN = tuple(
    f"/proc/{name}" for name in ("kcore", "key-users", "keys", "latency_stats", "sched_debug", "timer_list")
)
"""Files of /proc that reveal information about processes outside the sandbox."""
_RESOLVER_FILES = ("resolv.conf", "hosts", "nsswitch.conf")
_USER = 1000
_CHILD_PID = re.compile(rb'"child-pid": *(\d+)')
REMEDY = "install bubblewrap (Debian and Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"


class Bubblewrap(process.Sandbox):
    """Runs commands under `bwrap`: read-only system, one writable folder, no network, no other processes visible."""

    name = "bubblewrap"
    confines = True

    def __init__(self) -> None:
        self._bwrap = shutil.which("bwrap", path=f"{os.environ.get('PATH', '')}:{PATH}")
        self._prlimit = shutil.which("prlimit", path=f"{PATH}:/usr/sbin:/sbin")

    async def start(self, command: SandboxCommand, io: ProcessIO) -> process.SandboxProcess:
        if self._bwrap is None:
            raise SandboxUnavailable("bwrap not found on PATH", REMEDY)
        if self._prlimit is None:
            raise SandboxUnavailable("prlimit not found on PATH", "install util-linux")
        filter_program = seccomp.build_filter()
        as_root = os.geteuid() == 0
        if as_root and filter_program is None:
            raise SandboxUnavailable("as root, bubblewrap requires x86_64 or aarch64 here", "run Atlas as another user")
        env = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", **command.env}  # noqa: S108 - the sandbox's own
        rlimits = _rlimits(command.limits)
        if as_root and filter_program is not None:
            contents = [_inside_source(filter_program, rlimits, env)]
        else:
            variables = "".join(f"--setenv\0{name}\0{value}\0" for name, value in env.items())
            contents = [variables.encode(errors="surrogateescape"), *([filter_program] if filter_program else [])]
        with _LaunchDescriptors(contents) as launch:
            options = [*_namespaces(as_root), *_network(command), *launch.options, *_mounts(command, as_root)]
            if as_root:  # as an argument, the source would fill the list of processes in the sandbox
                (fd,) = launch.contents
                read = f"import os; source = os.read({fd}, 1 << 20); os.close({fd}); exec(source)"
                inner = [process.PYTHON, "-I", "-S", "-c", read]
            else:
                inner = [self._prlimit, *(f"--{name}={limit}" for name, limit in rlimits.items()), "--"]
                for option, fd in zip(("--args", "--seccomp"), launch.contents, strict=False):
                    options += [option, str(fd)]
            started = _BubblewrapProcess(command, io, launch.take_status())
            # Not the command's environment, with which bwrap itself could be made to load a library. Nor `--clearenv`:
            # a command can read the environment of bwrap in /proc/1/environ.
            bare = {"PATH": PATH, "LANG": "C.UTF-8"}
            await started.open([self._bwrap, *options, "--", *inner, *command.argv], env=bare, pass_fds=launch.fds)
        return started


class _BubblewrapProcess(process.SandboxProcess):
    """The bwrap process. Reading its status distinguishes a sandbox that did not start from a failed command."""

    def __init__(self, command: SandboxCommand, io: ProcessIO, status_fd: int) -> None:
        super().__init__(command, io)
        self._status_fd = status_fd
        self._status = b""
        self._status_lock = threading.Lock()
        self.find_init = self._find_init

    async def wait(self) -> ProcessResult:
        result = await super().wait()
        status = self._read_status(close=True)
        if b"exit-code" not in status and result.stopped_by is None and result.signal is None:
            output = result.stderr.text.strip() or result.stdout.text.strip()
            raise SandboxUnavailable(f"bubblewrap did not start: {output[:300]}", REMEDY)
        process.check_confined(result, "bubblewrap", REMEDY)
        return result

    async def kill(self) -> None:
        await super().kill()
        self._read_status(close=True)

    def _find_init(self) -> int | None:
        found = _CHILD_PID.search(self._read_status())
        return int(found[1]) if found else None

    def _read_status(self, *, close: bool = False) -> bytes:
        """Return all status that bwrap has written so far. The resource watch calls this from its own thread."""
        with self._status_lock:
            if self._status_fd >= 0:
                with suppress(OSError):
                    self._status += os.read(self._status_fd, 4096)
                if close:
                    os.close(self._status_fd)
                    self._status_fd = -1
            return self._status


class _LaunchDescriptors:
    """File descriptors passed to bwrap: contents to read, such as the seccomp filter, and a pipe for its status."""

    def __init__(self, contents: Sequence[bytes]) -> None:
        self._status, self._status_write = os.pipe()
        os.set_blocking(self._status, False)
        self.options = ["--json-status-fd", str(self._status_write)]
        self.contents = [os.memfd_create("content") for _ in contents]  # a pipe may be too small
        for fd, content in zip(self.contents, contents, strict=True):
            os.write(fd, content)
            os.lseek(fd, 0, os.SEEK_SET)

    @property
    def fds(self) -> list[int]:
        return [self._status_write, *self.contents]

    def take_status(self) -> int:
        status, self._status = self._status, -1
        return status

    def __enter__(self) -> "_LaunchDescriptors":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._status_write, *self.contents, self._status):
            if fd >= 0:
                os.close(fd)


def _inside_source(filter_program: bytes, rlimits: Mapping[str, int], env: Mapping[str, str]) -> bytes:
    limits = {f"RLIMIT_{name.upper()}": limit for name, limit in rlimits.items()}
    source = process.inside_source(filter_program, limits, env, read_only=("/proc", *_DEVICES), user=_USER)
    return source.encode()


def _namespaces(as_root: bool) -> list[str]:
    """Options for namespaces. To root, capabilities within them are left until some mounts are read-only.

    The kernel lets the real root change settings in /proc/sys and the modes of devices without any capability.
    """
    user = 0 if as_root else _USER
    return [
        *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--hostname", "sandbox"),
        *("--uid", str(user), "--gid", str(user), "--cap-drop", "ALL"),
        *(("--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETFCAP") if as_root else ("--disable-userns",)),
    ]


def _network(command: SandboxCommand) -> list[str]:
    """Options for the host's network and name resolution, if the command may use them."""
    if not command.network:
        return []
    files = [f"/etc/{name}" for name in _RESOLVER_FILES]
    return ["--share-net", *[option for file in files for option in ("--ro-bind-try", os.path.realpath(file), file)]]


def _rlimits(limits: SandboxLimits) -> dict[str, int]:
    return {
        **{"cpu": limits.cpu, "data": limits.memory, "nproc": limits.processes, "core": 0},
        **{"fsize": limits.file_size, "nofile": limits.open_files},
    }


def _mounts(command: SandboxCommand, as_root: bool) -> list[str]:
    """Mount options, parents before children: a later mount hides an earlier one."""
    options = [*_system_mounts(), "--proc", "/proc", "--dev", "/dev"]
    for path in filter(os.path.exists, _HIDDEN):
        options += ["--ro-bind", "/dev/null", path]
    options += ["--size", _TMP_SIZE, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
    options += ["--size", _TMP_SIZE, "--tmpfs", "/tmp"]  # noqa: S108
    programs = {*command.programs, *(process.python_folders() if as_root else ())}
    binds = [("--ro-bind", path) for path in programs if path.exists()]
    if command.writable is not None:
        binds.append(("--bind", command.writable))
    for option, path in sorted(binds, key=lambda bind: (len(bind[1].parts), bind[0])):
        options += [option, str(path), str(path)]
    for path in resolve_protected(command, command.read_only):
        options += ["--ro-bind", str(path), str(path)]
    for path in resolve_protected(command, command.masked):
        masked = str(path)
        options += ["--tmpfs", masked, "--remount-ro", masked] if path.is_dir() else ["--ro-bind", "/dev/null", masked]
    return [*options, "--chdir", str(command.cwd), "--remount-ro", "/"]


def _system_mounts() -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for path in (*(Path("/etc", name) for name in ETC), Path("/nix/store")):
        if path.exists():
            yield from ("--ro-bind", str(path), str(path))


def resolve_protected(command: SandboxCommand, paths: tuple[Path, ...]) -> list[Path]:
    """Resolve the paths that exist below the writable folder; a symlink that points outside is left out."""
    if command.writable is None:
        return []
    root, found = command.writable.resolve(), set[Path]()
    for path in paths:
        with suppress(OSError):
            real = path.resolve(strict=True)
            if real != root and real.is_relative_to(root):
                found.add(command.writable / real.relative_to(root))
    return sorted(found, key=lambda path: len(path.parts))


async def probe() -> Bubblewrap:
    """Return the bubblewrap sandbox if it runs a test command on this machine; otherwise raise SandboxUnavailable."""
    sandbox = Bubblewrap()
    async with asyncio.timeout(10):
        result = await sandbox.run(SandboxCommand(argv=("/bin/sh", "-c", "echo inside"), cwd=Path("/")))
    if result.stdout.text != "inside\n":
        raise SandboxUnavailable(f"bubblewrap could not run a test command: {result.stderr.text[:300]}", REMEDY)
    return sandbox
