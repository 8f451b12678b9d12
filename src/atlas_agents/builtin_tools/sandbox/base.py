"""What all sandboxes have in common: to run something is to start it and to wait for its end."""

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec

Stream: TypeAlias = Literal["stdout", "stderr"]
Stopped: TypeAlias = Literal["time", "output", "memory", "processes", "disk"]
OnOutput: TypeAlias = Callable[[Stream, bytes], None]
_MB = 1024 * 1024
PATH = "/usr/local/bin:/usr/bin:/bin"


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may use up. `memory` holds for each process and for all of them together; `disk` is what may be added
    to the writable folder, None where nobody measures it; beyond `output` bytes written the run is ended."""

    seconds: float = 60.0
    cpu: int = 60
    memory: int = 256 * _MB
    processes: int = 64
    file_size: int = 64 * _MB
    disk: int | None = 256 * _MB
    output: int = 16 * _MB
    keep: int = 20_000
    open_files: int = 256


class SandboxCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command, and all of the outside that it sees.

    `programs` are folders it may read besides the system's own; of what lies below `writable`, `read_only` cannot be
    changed and `masked` is not even seen. Both hold for what exists when the run begins.
    """

    argv: tuple[str, ...]
    cwd: Path
    writable: Path | None = None
    read_only: tuple[Path, ...] = ()
    masked: tuple[Path, ...] = ()
    programs: tuple[Path, ...] = ()
    env: Mapping[str, str] = {}
    limits: SandboxLimits = SandboxLimits()
    network: bool = False


class CapturedOutput(msgspec.Struct, frozen=True):
    """What was written to one stream: its beginning, its end, and how many bytes between them are not here."""

    head: str = ""
    tail: str = ""
    dropped: int = 0

    @property
    def text(self) -> str:
        return (
            f"{self.head}\n… {self.dropped:,} bytes left out …\n{self.tail}" if self.dropped else self.head + self.tail
        )


class ProcessResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. `stopped` names the limit that ended it, if one did."""

    exit_code: int | None
    signal: int | None = None
    stdout: CapturedOutput = CapturedOutput()
    stderr: CapturedOutput = CapturedOutput()
    stopped: Stopped | None = None
    duration: float = 0.0
    spilled: Path | None = None

    @property
    def timed_out(self) -> bool:
        return self.stopped == "time"


class SandboxProcess(Protocol):
    """A process at work."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> ProcessResult:
        """Until it has ended and all it wrote was read. Cancelling the wait ends the process."""
        ...

    async def kill(self) -> None:
        """End it with all that it started."""
        ...

    def renew(self, seconds: float) -> None:
        """From now on it has this long, and may write as much as at first."""
        ...

    def drain(self) -> None:
        """Pass on what it has written so far, without waiting."""
        ...


class Sandbox(Protocol):
    """A way to confine a command. `name` goes to the audit row of who uses it; `confines` is False for none at all."""

    name: str
    confines: bool

    async def start(
        self,
        job: SandboxCommand,
        *,
        stdin: bytes | socket.socket | None = None,
        on_output: OnOutput | None = None,
        spill: Path | None = None,
        merge: bool = False,
    ) -> SandboxProcess: ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        writable: Path | None = None,
        read_only: Sequence[Path] = (),
        masked: Sequence[Path] = (),
        programs: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        limits: SandboxLimits | None = None,
        on_output: OnOutput | None = None,
        spill: Path | None = None,
        merge: bool = False,
        network: bool = False,
    ) -> ProcessResult:
        """Run it to its end. `merge` writes stderr into stdout; `spill` keeps all that was written, in a file."""
        ...


class RunMixin:
    """`run` for whoever has `start`."""

    async def start(
        self,
        job: SandboxCommand,
        *,
        stdin: bytes | socket.socket | None = None,
        on_output: OnOutput | None = None,
        spill: Path | None = None,
        merge: bool = False,
    ) -> SandboxProcess:
        raise NotImplementedError

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        writable: Path | None = None,
        read_only: Sequence[Path] = (),
        masked: Sequence[Path] = (),
        programs: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        limits: SandboxLimits | None = None,
        on_output: OnOutput | None = None,
        spill: Path | None = None,
        merge: bool = False,
        network: bool = False,
    ) -> ProcessResult:
        """Run it to its end. `merge` writes stderr into stdout; `spill` keeps all that was written, in a file."""
        job = SandboxCommand(
            argv=tuple(argv),
            cwd=cwd,
            writable=writable,
            read_only=tuple(read_only),
            masked=tuple(masked),
            programs=tuple(programs),
            env=env or {},
            limits=limits or SandboxLimits(),
            network=network,
        )
        running = await self.start(job, stdin=stdin, on_output=on_output, spill=spill, merge=merge)
        return await running.wait()
