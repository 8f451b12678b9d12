"""The world outside the process: a file to which tools, model and client append, so that what happened can be checked.

A line is written by one system call and nothing is buffered: what is in the file has happened, even if the process
dies right after it.
"""

import os
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

Who: TypeAlias = Literal["tool", "model", "client", "points", "runner", "log"]


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened. `life` counts the processes of a case; `stream` tells apart who listens to one run."""

    who: Who
    what: str
    life: int = 0
    stream: int = 0
    run: str = ""
    call: str = ""
    key: str = ""
    name: str = ""
    n: int = 0
    text: str = ""
    messages: tuple[msgspec.Raw, ...] = ()


_notes = msgspec.json.Decoder(Note)


class World:
    """The file, as one life writes to it."""

    def __init__(self, path: Path, life: int) -> None:
        self.path = path
        self.life = life
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, who: Who, what: str, **more: Any) -> None:
        os.write(self._file, msgspec.json.encode(Note(who, what, self.life, **more)) + b"\n")

    def all(self) -> list[Note]:
        return read(self.path)


def read(path: Path) -> list[Note]:
    """All that was noted; an untouched world is empty."""
    return [_notes.decode(line) for line in path.read_bytes().splitlines()] if path.exists() else []
