"""A pseudo-terminal with a person in front of it: start a command, type, and look at the screen."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

PATIENCE = 40.0
_IN_FRONT = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
_SEQUENCE = re.compile(r"\x1b(?:\[(?P<args>[0-9;?]*)(?P<final>[@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[=>78c])")


class Screen:
    """What a person sees: enough of a terminal for programs that print, move up and erase."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self._lines: list[list[str]] = [[]]
        self._row = self._column = self._top = 0
        self._rest = ""

    @property
    def text(self) -> str:
        """All that was printed and not erased, what scrolled away included, without the blank rows at the end."""
        return "\n".join("".join(line).rstrip() for line in self._lines).rstrip()

    def feed(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        place = 0
        while place < len(text):
            if text[place] != "\x1b":
                self._put(text[place])
                place += 1
            elif found := _SEQUENCE.match(text, place):
                if found["final"]:
                    self._obey(found["args"], found["final"])
                place = found.end()
            else:
                self._rest = text[place:]
                return

    def _put(self, character: str) -> None:
        if character == "\n":
            self._down()
        elif character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character >= " ":
            if self._column >= self.columns:
                self._column = 0
                self._down()
            line = self._lines[self._row]
            line.extend(" " * (self._column + 1 - len(line)))
            line[self._column] = character
            self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append([])
        self._top = max(self._top, self._row - self.rows + 1)

    def _obey(self, arguments: str, final: str) -> None:
        number = int(arguments) if arguments.isdigit() else 1
        match final:
            case "A":
                self._row = max(self._top, self._row - number)
            case "B":
                for _ in range(number):
                    self._down()
            case "C":
                self._column = min(self.columns - 1, self._column + number)
            case "D":
                self._column = max(0, self._column - number)
            case "J":
                del self._lines[self._row + 1 :], self._lines[self._row][self._column :]
            case "K":
                del self._lines[self._row][self._column :]
            case _:
                pass  # colours and modes


class Terminal:
    """`with Terminal([command, …], env) as terminal`: it has `rows` × `columns` and a screen to look at."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, *, rows: int = 30, columns: int = 100
    ) -> None:
        self._line, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _IN_FRONT, *command],
            stdin=far,
            stdout=far,
            stderr=far,
            env={**_sizeless(env), "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "LANG": "C.UTF-8"},
            cwd=cwd,
            start_new_session=True,
        )
        os.close(far)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._screen = Screen(rows, columns)

    @property
    def text(self) -> str:
        return self._screen.text

    def type(self, keys: str) -> None:
        os.write(self._line, keys.encode())

    def see(self, pattern: str, *, after: str = "") -> str:
        """Wait until the screen shows this, below the last `after`; gives back all that it shows."""
        end = time.monotonic() + PATIENCE
        while not re.search(pattern, self.text[self.text.rfind(after) if after else 0 :]):
            if not self._hear(end - time.monotonic()):
                raise AssertionError(f"{pattern!r} was not seen in {PATIENCE:g} s; the screen shows:\n{self.text}")
        return self.text

    def leave(self) -> int:
        """Wait for the command to end and give back its exit code."""
        end = time.monotonic() + PATIENCE
        while self._hear(end - time.monotonic()):
            pass
        return self._process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(PATIENCE)
        os.close(self._line)

    def _hear(self, seconds: float) -> bool:
        if seconds <= 0 or not select.select([self._line], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._line, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self._screen.feed(self._decoder.decode(data))
        return bool(data)


def _sizeless(env: Mapping[str, str]) -> dict[str, str]:
    """Without the variables that would overrule the size of this terminal, or its colours."""
    return {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
