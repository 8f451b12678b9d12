"""Evidence log: a file to which tools, model and client append what happened.

A line is written by one unbuffered system call, so it survives a crash of the process right after it.
"""

import os
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

Who: TypeAlias = Literal["tool", "model", "client", "points", "runner", "log"]


class LogEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One observed event. `process` numbers the processes of a case, `stream` the subscribers of a run."""

    who: Who
    what: str
    process: int = 0
    stream: int = 0
    run: str = ""
    call: str = ""
    key: str = ""
    name: str = ""
    n: int = 0
    text: str = ""
    messages: tuple[msgspec.Raw, ...] = ()


_decoder = msgspec.json.Decoder(LogEntry)


class EvidenceLog:
    """The log file as one process writes to it."""

    def __init__(self, path: Path, process: int) -> None:
        self.path = path
        self.process = process
        self.count = 0
        """Number of entries that this process has written."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def record(self, who: Who, what: str, **more: Any) -> None:
        self.count += 1
        os.write(self._descriptor, self.line(who, what, **more))

    def line(self, who: Who, what: str, **more: Any) -> bytes:
        return msgspec.json.encode(LogEntry(who, what, self.process, **more)) + b"\n"

    def close(self) -> None:
        os.close(self._descriptor)

    def all(self) -> list[LogEntry]:
        return read(self.path)


def read(path: Path) -> list[LogEntry]:
    """Return all entries; none if there is no file. What another process is writing now is not read yet."""
    *lines, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
    return [_decoder.decode(line) for line in lines]
