"""`file_search`: lines that hold a text or fit an expression. It runs in a worker, which an endless expression cannot
hold for longer than its alarm."""

import os
import re
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import msgspec

from atlas_agents.builtin_tools.files.listing import DEEPEST, DirectoryEntry, Pattern, Walk
from atlas_agents.builtin_tools.files.read import as_text, check_regular, counted, is_binary, split_lines
from atlas_agents.builtin_tools.files.root import OpenedPath, Root
from atlas_agents.core.errors import BadArguments, ToolFailed

MOST_FOUND = 200
MOST_CHARACTERS = 40_000
LARGEST = 4 * 1024 * 1024
LONGEST = 3.0
_PATIENCE = 20.0
_SHOWN = 300
_LONGEST_QUERY = 1000
_MOST_AROUND = 10


class FileQuery(msgspec.Struct, frozen=True):
    """What to look for, and where."""

    query: str
    path: str = "."
    pattern: str = ""
    regex: bool = False
    ignore_case: bool = False
    context: int = 0
    hidden: bool = False


class _TooSlow(Exception):
    """The alarm has rung."""


class _Tally:
    """What was found so far."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.lines = self.files = self.searched = self.skipped = self.room = 0

    @property
    def full(self) -> bool:
        return self.lines >= MOST_FOUND or self.room >= MOST_CHARACTERS

    def add(self, block: str, lines: int) -> None:
        self.blocks.append(block)
        self.lines, self.files, self.room = self.lines + lines, self.files + 1, self.room + len(block)


def searched(root: Root, query: FileQuery) -> str:
    """Files with the lines that were found in them; the first line says how many, and what was left out."""
    wanted = Pattern(query.pattern)
    tally, notes = _Tally(), list[str]()
    with _alarm(LONGEST):
        try:
            fits = _matcher(query)
            with root.find(query.path) as top:
                walk = Walk(root, depth=DEEPEST, hidden=query.hidden, longest=_PATIENCE)
                entries = walk.through(top) if top.is_folder else None
                if entries is None:
                    _look(tally, top, fits, query)
                for entry in entries or ():
                    if wanted.fits(os.path.relpath(entry.path, top.path)) and entry.is_file:
                        _visit(tally, root, entry, fits, query)
                    if tally.full:
                        notes.append("there is more: narrow it down with a path, a pattern or a longer query")
                        break
                notes += walk.notes()
        except _TooSlow:
            notes.append(f"stopped after {LONGEST:g} s of work: use a simpler expression, or look in fewer files")
    if tally.skipped:
        notes.append(f"skipped: {counted(tally.skipped, 'file')}, no text, too long or secret")
    all_files = counted(tally.searched, "file")
    found = f"{counted(tally.lines, 'line')} in {tally.files} of {all_files}"
    head = found if tally.lines else f"nothing was found in {all_files}"
    return "\n".join([f"[{'; '.join([head, *notes])}]", *tally.blocks])


def _visit(tally: _Tally, root: Root, entry: DirectoryEntry, fits: Callable[[str], bool], query: FileQuery) -> None:
    """Look into a file that was met on the way; by its name in the open folder, and only if it is what it was."""
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(entry.name, flags, dir_fd=entry.folder)
    except OSError:
        tally.skipped += 1
        return
    try:
        found = OpenedPath(descriptor, entry.path, os.fstat(descriptor))
        if root.holds_secrets(entry.path, found.stat):
            tally.skipped += 1
            return
        _look(tally, found, fits, query)
    except ToolFailed:
        tally.skipped += 1
    finally:
        os.close(descriptor)


def _look(tally: _Tally, found: OpenedPath, fits: Callable[[str], bool], query: FileQuery) -> None:
    check_regular(found)
    head = os.pread(found.descriptor, 8192, 0)
    if found.stat.st_size > LARGEST or is_binary(head):
        tally.skipped += 1
        return
    tally.searched += 1
    lines = split_lines(as_text(os.pread(found.descriptor, LARGEST, 0), found.path).text)
    hits = [number for number, line in enumerate(lines) if fits(line)][: MOST_FOUND - tally.lines]
    if hits:
        tally.add(
            "\n".join([found.path, *_shown(lines, hits, min(max(0, query.context), _MOST_AROUND), fits)]), len(hits)
        )


def _shown(lines: list[str], hits: list[int], around: int, fits: Callable[[str], bool]) -> Generator[str]:
    """Each hit with its number and a colon, lines around it with a dash, and a mark where lines are left out."""
    chosen, last = set(hits), -1
    near = sorted({each for hit in hits for each in range(max(0, hit - around), min(len(lines), hit + around + 1))})
    for number in near:
        if around and last >= 0 and number > last + 1:
            yield "    ⋮"
        sign = ":" if number in chosen else "-"
        yield f"{number + 1:>6}{sign} {_cut(lines[number], fits)}"
        last = number


def _cut(line: str, fits: Callable[[str], bool]) -> str:
    """A long line as the piece of it in which the match is, if it can be found quickly."""
    if len(line) <= _SHOWN:
        return line
    for start in range(0, min(len(line), 20 * _SHOWN), _SHOWN // 2):
        if fits(line[start : start + _SHOWN]):
            return f"{'…' if start else ''}{line[start : start + _SHOWN]}…"
    return f"{line[:_SHOWN]}…"


def _matcher(query: FileQuery) -> Callable[[str], bool]:
    if not query.query or len(query.query) > _LONGEST_QUERY:
        raise BadArguments(f"Say what to look for, in at most {_LONGEST_QUERY} characters.")
    if not query.regex:
        if not query.ignore_case:
            return lambda line: query.query in line
        folded = query.query.casefold()
        return lambda line: folded in line.casefold()
    try:
        expression = re.compile(query.query, re.IGNORECASE if query.ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadArguments(
            f"This is no regular expression ({error}); without regex it is looked for as it is."
        ) from None
    return lambda line: expression.search(line) is not None


@contextmanager
def _alarm(seconds: float) -> Generator[None]:
    """Raise _TooSlow after so much work of this process, also out of the middle of an expression: its engine listens to
    signals."""

    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise _TooSlow

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
