"""Pseudo-terminal: start a command, type, and read its screen."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import fork_server
from checks import TIMEOUT

_SEQUENCE = re.compile(r"\x1b(?:\[(?P<args>[0-9;?]*)(?P<final>[@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[=>78c])")


class Screen:
    """Screen content: enough of a terminal emulator for programs that print, move up and erase."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.erased: list[str] = []
        """Lines that were printed and then erased, such as those that show a progress."""
        self._lines: list[list[str]] = [[]]
        self._row = self._column = self._top = 0
        self._incomplete = ""

    @property
    def text(self) -> str:
        """All text that was printed and not erased, including scrolled rows, without trailing blank rows."""
        return "\n".join("".join(line).rstrip() for line in self._lines).rstrip()

    def feed(self, text: str) -> None:
        text, self._incomplete = self._incomplete + text, ""
        position = 0
        while position < len(text):
            if text[position] != "\x1b":
                self._write(text[position])
                position += 1
            elif found := _SEQUENCE.match(text, position):
                if found["final"]:
                    self._apply(found["args"], found["final"])
                position = found.end()
            else:
                self._incomplete = text[position:]
                return

    def _write(self, character: str) -> None:
        if character == "\n":
            self._move_down()
        elif character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character >= " ":
            if self._column >= self.columns:
                self._column = 0
                self._move_down()
            line = self._lines[self._row]
            line.extend(" " * (self._column + 1 - len(line)))
            line[self._column] = character
            self._column += 1

    def _move_down(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append([])
        self._top = max(self._top, self._row - self.rows + 1)

    def _apply(self, arguments: str, final: str) -> None:
        number = int(arguments) if arguments.isdigit() else 1
        match final:
            case "A":
                self._row = max(self._top, self._row - number)
            case "B":
                for _ in range(number):
                    self._move_down()
            case "C":
                self._column = min(self.columns - 1, self._column + number)
            case "D":
                self._column = max(0, self._column - number)
            case "J":
                lines = [self._lines[self._row][self._column :], *self._lines[self._row + 1 :]]
                self.erased += ["".join(line).rstrip() for line in lines]
                del self._lines[self._row + 1 :], self._lines[self._row][self._column :]
            case "K":
                self.erased.append("".join(self._lines[self._row][self._column :]).rstrip())
                del self._lines[self._row][self._column :]
            case _:
                pass  # colours and modes


class Terminal:
    """`with Terminal([script, …], env) as terminal`: a script in a terminal of `rows` × `columns`."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, *, rows: int = 30, columns: int = 100
    ) -> None:
        self._descriptor, child_end = pty.openpty()
        fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        shown = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "LANG": "C.UTF-8"}
        env = {**_without_size(env), **shown}
        self._process = fork_server.Program(*command, env=env, cwd=cwd, terminal=child_end)
        os.close(child_end)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._screen = Screen(rows, columns)

    @property
    def text(self) -> str:
        return self._screen.text

    @property
    def erased(self) -> list[str]:
        """Lines that the command printed and then erased."""
        return self._screen.erased

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def expect(self, pattern: str, *, after: str = "") -> str:
        """Wait until the screen matches a pattern, below the last `after`, and return its text."""
        end = time.monotonic() + TIMEOUT
        while not re.search(pattern, self.text[self.text.rfind(after) if after else 0 :]):
            if not self._read_output(end - time.monotonic()):
                raise AssertionError(f"{pattern!r} did not appear within {TIMEOUT:g} s; the screen shows:\n{self.text}")
        return self.text

    def wait_for_exit(self) -> int:
        """Wait for the command to exit and return its exit code."""
        end = time.monotonic() + TIMEOUT
        while self._read_output(end - time.monotonic()):
            pass
        return self._process.wait(TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(TIMEOUT)
        os.close(self._descriptor)

    def _read_output(self, seconds: float) -> bool:
        if seconds <= 0 or not select.select([self._descriptor], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # Linux: the other end is closed
            return False
        self._screen.feed(self._decoder.decode(data))
        return bool(data)


def _without_size(env: Mapping[str, str]) -> dict[str, str]:
    """Remove the variables that override the terminal's size or colours."""
    return {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
