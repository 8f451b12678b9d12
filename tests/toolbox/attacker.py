"""Hostile Python in a sandbox, as root and as an unprivileged user, next to files and a process of the same user."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from code_harness import SANDBOXES

from atlas_agents.builtin_tools import sandbox as sandboxes
from atlas_agents.builtin_tools.sandbox.process import ProcessIO, SandboxCommand, SandboxLimits

_UNPRIVILEGED_ID = 65534
USERS = ("root", "unprivileged") if os.geteuid() == 0 else ("unprivileged",)
BACKENDS = tuple(f"{kind} {user}" for kind in SANDBOXES for user in USERS)
"""Every sandbox of this machine, as every kind of user that the tests can become."""

_LOOP = """
import json as _json
_results = {}
for _name, _source in ATTEMPTS.items():
    try:
        _names = dict(VALUES)
        exec(PRELUDE + _source, _names)
        _results[_name] = _names.get("result", "done")
    except BaseException as _error:
        _results[_name] = f"error: {type(_error).__name__}: {_error}"
print("RESULTS " + _json.dumps(_results))
"""
_PRELUDE = """
import os
def syscall(number, *arguments):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(NUMBERS.get(number, number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""
_NUMBERS = {  # x86_64, aarch64
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "prlimit64": (302, 261),
    "get_robust_list": (274, 100),
    "fchmodat": (268, 53),
    "utimensat": (280, 88),
    "fchownat": (260, 54),
    "name_to_handle_at": (303, 264),
    "inotify_init1": (294, 26),
    "socket": (41, 198),
    "mq_open": (240, 180),
    "shmget": (29, 194),
    "semget": (64, 190),
    "clone": (56, 220),
    "unshare": (272, 97),
    "mount": (165, 40),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "fanotify_init": (300, 262),
    "swapoff": (168, 225),
    "renameat2": (316, 276),
}
NUMBERS = {name: both[os.uname().machine != "x86_64"] for name, both in _NUMBERS.items()}
"""System calls that have different numbers on x86_64 and aarch64."""


class Arena:
    """A workspace of the attacking user, with a key file, a readable program, listeners and a process beside it."""

    def __init__(self, backend: str) -> None:
        self.kind, self.user = backend.split()
        self._drops = self.user == "unprivileged" and os.geteuid() == 0
        self.uid = _UNPRIVILEGED_ID if self._drops else os.geteuid()
        self.canary = f"canary-{secrets.token_hex(8)}"
        self.root = Path(tempfile.mkdtemp(prefix="atlas-arena-"))
        self.root.chmod(0o755)
        self.workspace, self.programs = self.root / "workspace", self.root / "programs"
        for folder in (self.workspace, self.programs):
            folder.mkdir()
        self.key, self.program = self.root / "key", self.programs / "library.txt"
        self.key.write_text(self.canary)
        self.key.chmod(0o600)
        self.program.write_text("public")
        self.program.chmod(0o644)
        self.reached: list[str] = []
        self._listeners: list[socket.socket] = []
        self.tcp, self.udp = self._listen("tcp"), self._listen("udp")
        for kind in ("unix", "unix datagrams"):
            self._listen(kind)
        for path in (self.root, *self.root.rglob("*")):
            os.chown(path, self.uid, -1)
        self.victim = subprocess.Popen(
            ["cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            **self._credentials(),
        )
        assert self.victim.stdin and self.victim.stdout
        self.victim.stdin.write(b"started\n")
        self.victim.stdout.read(8)

    def close(self) -> None:
        self.victim.kill()
        self.victim.communicate()
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        shutil.rmtree(self.root, ignore_errors=True)

    async def attempt(self, attempts: Mapping[str, str], **options: Any) -> dict[str, Any]:
        """Run all attempts in one interpreter in the sandbox; return the result or error of each."""
        output = await self.run(_LOOP, ATTEMPTS=dict(attempts), **options)
        lines = [line for line in output["output"].splitlines() if line.startswith("RESULTS ")]
        assert lines, output
        return json.loads(lines[-1].removeprefix("RESULTS "))

    async def run(
        self,
        code: str,
        *,
        limits: dict[str, Any] | None = None,
        protected: dict[str, list[str]] | None = None,
        **values: Any,
    ) -> dict[str, Any]:
        """Run code in the sandbox as the user of this arena; return its output and the limit that it exceeded.

        `protected` has names in the workspace that are `read_only` or `masked`.
        """
        values |= {
            "PRELUDE": _PRELUDE,
            "VALUES": {
                "NUMBERS": NUMBERS,
                **{"KEY": str(self.key), "PROGRAM": str(self.program), "ROOT": str(self.root)},
                **{"VICTIM": self.victim.pid, "US": os.getpid(), "TCP": self.tcp, "UDP": self.udp},
            },
        }
        source = "".join(f"{name} = {value!r}\n" for name, value in values.items()) + code
        request = [self.kind, str(self.workspace), str(self.programs), source, limits or {}, protected or {}]
        process = await asyncio.create_subprocess_exec(
            *(_python() if self._drops else sys.executable, __file__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(_import_path()), "SECRET": self.canary},
            cwd="/",
            **self._credentials(),
        )
        async with asyncio.timeout(120):
            output, _ = await process.communicate(json.dumps(request).encode())
        return json.loads(output)

    def _credentials(self) -> dict[str, Any]:
        return {"user": _UNPRIVILEGED_ID, "group": _UNPRIVILEGED_ID, "extra_groups": []} if self._drops else {}

    def _listen(self, kind: str) -> int:
        family = socket.AF_UNIX if kind.startswith("unix") else socket.AF_INET
        stream = kind in ("tcp", "unix")
        listener = socket.socket(family, socket.SOCK_STREAM if stream else socket.SOCK_DGRAM)
        listener.bind(str(self.root / kind.replace(" ", "-")) if family == socket.AF_UNIX else ("127.0.0.1", 0))
        if stream:
            listener.listen()
        self._listeners.append(listener)
        threading.Thread(target=self._wait, args=(listener, kind), daemon=True).start()
        return listener.getsockname()[1] if family == socket.AF_INET else 0

    def _wait(self, listener: socket.socket, kind: str) -> None:
        with suppress(OSError):
            if listener.type == socket.SOCK_STREAM:
                listener.accept()[0].close()
                self.reached.append(kind)
            elif listener.recv(1):
                self.reached.append(kind)


def _python() -> str:
    """Return a Python of this version that every user can start."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for path in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        real = Path(path).resolve()
        if real.exists() and all(folder.stat().st_mode & 0o001 for folder in (real, *real.parents)):
            return path
    raise AssertionError(f"no {version} that unprivileged users can start: install it in /usr")


def _import_path() -> list[str]:
    tests = Path(__file__).parent
    return [str(tests.parents[1] / "src"), str(tests), str(tests.parent), sysconfig.get_paths()["purelib"]]


async def _run_here(
    kind: str, folder: str, programs: str, source: str, limits: dict[str, Any], protected: dict[str, list[str]]
) -> dict[str, Any]:
    sandbox = await sandboxes.choose(msgspec.convert(kind, sandboxes.SandboxKind))
    installed = [Path(path) for path in {sys.prefix, sys.base_prefix} if not path.startswith("/usr")]
    paths: dict[str, Any] = {option: tuple(Path(folder, name) for name in names) for option, names in protected.items()}
    command = SandboxCommand(
        argv=(sys.executable, "-I", "-c", source),
        cwd=Path(folder),
        writable=Path(folder),
        programs=(Path(programs), *installed),
        limits=SandboxLimits(**limits),
        **paths,
    )
    result = await sandbox.run(command, ProcessIO(merge=True))
    return {"output": result.stdout.text, "stopped_by": result.stopped_by, "exit_code": result.exit_code}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print(json.dumps(asyncio.run(_run_here(*json.load(sys.stdin)))))
