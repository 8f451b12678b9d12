"""Values shared by all sandboxes: the command to run, its limits, its input and output, and its result."""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

Stream: TypeAlias = Literal["stdout", "stderr"]
LimitName: TypeAlias = Literal["time", "output", "memory", "processes", "disk"]
OnOutput: TypeAlias = Callable[[Stream, bytes], None]
_MB = 1024 * 1024
PATH = "/usr/local/bin:/usr/bin:/bin"
ETC = (
    *(
        "alternatives",
        "debian_version",
        "fonts",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "localtime",
        "mime.types",
    ),
    *("os-release", "ssl/certs", "ssl/openssl.cnf"),
)
"""What a sandboxed command can read below /etc."""


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of one run.

    `memory` applies to each process and to all of them together. `disk` limits what is added to the writable folder,
    and `written` what all processes write to disk in total, also to files that they delete; None disables the check.
    A run is killed as well before the disk of the writable folder is full. A run that writes more than `output` bytes
    to its streams is killed; `capture` bytes per stream are kept.
    """

    seconds: float = 60.0
    cpu: int = 60
    memory: int = 256 * _MB
    processes: int = 64
    file_size: int = 64 * _MB
    disk: int | None = 256 * _MB
    written: int | None = None
    output: int = 16 * _MB
    capture: int = 20_000
    open_files: int = 256


class SandboxCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command and everything it can access.

    `programs` are folders it can read besides the system folders. Below `writable`, `read_only` paths cannot be changed
    and `masked` paths cannot be seen; both apply only to paths that exist when the run starts.
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


class ProcessIO(msgspec.Struct, frozen=True, kw_only=True):
    """Standard input and output of a run. `merge` redirects stderr to stdout."""

    stdin: bytes | socket.socket | None = None
    on_output: OnOutput | None = None
    merge: bool = False


class CapturedOutput(msgspec.Struct, frozen=True):
    """The beginning and the end of a stream, and how many bytes between them were dropped."""

    head: str = ""
    tail: str = ""
    dropped: int = 0

    @property
    def text(self) -> str:
        return (
            f"{self.head}\n… {self.dropped:,} bytes left out …\n{self.tail}" if self.dropped else self.head + self.tail
        )


class ProcessResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run. `stopped_by` names the limit that the run exceeded, if it was killed for that."""

    exit_code: int | None
    signal: int | None = None
    stdout: CapturedOutput = CapturedOutput()
    stderr: CapturedOutput = CapturedOutput()
    stopped_by: LimitName | None = None
    duration: float = 0.0

    @property
    def timed_out(self) -> bool:
        return self.stopped_by == "time"
