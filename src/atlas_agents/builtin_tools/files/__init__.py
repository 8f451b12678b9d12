"""File tools for one folder: read, list, search, write and edit its files, and nothing outside it."""

import os
import re
import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import msgspec

from atlas_agents.builtin_tools.files import read, write
from atlas_agents.builtin_tools.files.read import MAX_DEPTH, DirectoryEntry, DirectoryWalk, GlobPattern, list_files
from atlas_agents.builtin_tools.files.root import GuardedPaths, OpenedPath, Root
from atlas_agents.core.errors import BadArguments, ToolFailed
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.pipeline import Finding
from atlas_agents.tools.tool import ClientSide, Tool, tool

_MAX_MATCHES = 200
_MAX_CHARACTERS = 40_000
_MAX_FILE_SIZE = 4 * 1024 * 1024
_MAX_CPU_SECONDS = 3.0
_MAX_WALK_SECONDS = 20.0
_MAX_LINE_LENGTH = 300
_MAX_QUERY_LENGTH = 1000
_MAX_CONTEXT = 10


class FileQuery(msgspec.Struct, frozen=True):
    """Parameters of a search: what to search for, and where."""

    query: str
    path: str = "."
    pattern: str = ""
    regex: bool = False
    ignore_case: bool = False
    context: int = 0
    hidden: bool = False


def file_tools(folder: Path | str, *, private: Iterable[Path | str] = (), guarded: GuardedPaths = ()) -> list[Tool]:
    """Create the tools that read, list, search, write and edit files in a folder, and reach nothing outside it.

    `private` paths cannot be accessed. Writing `guarded` paths always needs approval, and so does writing prompts,
    settings, hooks and keys.
    """
    root = Root.create(folder, private, guarded)
    return [_read_tool(root), _list_tool(root), _search_tool(root), _write_tool(root), _edit_tool(root)]


def _read_tool(root: Root) -> Tool:
    def file_read(path: str, start: int = 1, lines: int = read.MAX_LINES) -> Any:
        """Read a file: the numbered lines of a text file, or an image.

        Args:
            path: Path relative to the folder.
            start: The first line to read; -20 reads the last 20 lines.
            lines: The maximum number of lines to read.
        """
        return read.read_file(root, path, start, lines)

    built = tool(effect="pure", in_process=True, untrusted="file")(file_read)
    built.client_side = ClientSide(partial(write.locate_read, root))
    return built


def _list_tool(root: Root) -> Tool:
    def file_list(path: str = ".", pattern: str = "", depth: int = 0, hidden: bool = False) -> str:
        """List the files in a folder, with their sizes.

        Args:
            path: A folder, relative to the folder that contains all files.
            pattern: A glob: *.py for names in any folder, src/**/*.py for paths.
            depth: How many folder levels to list. Default: 1, or all levels with a pattern.
            hidden: Whether to include names that start with a dot.
        """
        return list_files(root, path, pattern, depth, hidden=hidden)

    return tool(effect="pure", in_process=True, untrusted="file")(file_list)


def _search_tool(root: Root) -> Tool:
    def file_search(
        query: str,
        path: str = ".",
        pattern: str = "",
        regex: bool = False,
        ignore_case: bool = False,
        context: int = 0,
        hidden: bool = False,
    ) -> str:
        """Search text files for lines that contain a text.

        Args:
            query: The exact text to search for, or a regular expression if regex is true.
            path: A file, or a folder to search recursively.
            pattern: A glob that limits the search, such as *.py or src/**/*.py.
            regex: Whether the query is a regular expression.
            ignore_case: Whether to ignore upper and lower case.
            context: How many lines to show before and after each match.
            hidden: Whether to include names that start with a dot.
        """
        return search_files(root, FileQuery(query, path, pattern, regex, ignore_case, context, hidden))

    return tool(effect="pure", timeout=60, untrusted="file")(file_search)


def _write_tool(root: Root) -> Tool:
    def file_write(path: str, content: str, context: ToolContext) -> str:
        """Create a text file, or replace its whole content. Missing folders are created.

        Args:
            path: Path relative to the folder.
            content: The complete content.
        """
        arguments = {"path": path, "content": content}
        return write.apply_change(root, write.plan_write, arguments, approved=context.approved)

    def reconcile(key: str, arguments: dict[str, Any]) -> Finding:
        return write.check_written(root, arguments)

    built = tool(
        in_process=True,
        confirm=partial(write.needs_approval, root),
        preview=partial(write.preview, root, write.plan_write),
        binds=partial(write.approval_facts, root),
        reconcile=reconcile,
    )(file_write)
    built.client_side = _writing_client(root)
    return built


def _edit_tool(root: Root) -> Tool:
    def file_edit(path: str, old: str, new: str, context: ToolContext, all: bool = False) -> str:
        """Replace a text in a file with another text.

        Args:
            path: Path relative to the folder.
            old: The exact text in the file, without line numbers, long enough to occur only once.
            new: The text to replace it with.
            all: Replace every occurrence.
        """
        arguments = {"path": path, "old": old, "new": new, "all": all}
        return write.apply_change(root, write.plan_edit, arguments, approved=context.approved)

    def reconcile(key: str, arguments: dict[str, Any]) -> Finding:
        return write.check_edited(root, arguments)

    built = tool(
        in_process=True,
        confirm=partial(write.needs_approval, root),
        preview=partial(write.preview, root, write.plan_edit),
        binds=partial(write.approval_facts, root),
        reconcile=reconcile,
    )(file_edit)
    built.client_side = _writing_client(root)
    return built


def _writing_client(root: Root) -> ClientSide:
    return ClientSide(
        partial(write.locate_write, root),
        preview=partial(write.preview_at_client, root),
        binds=partial(write.facts_at_client, root),
    )


def search_files(root: Root, query: FileQuery) -> str:
    """Return the matching lines per file; the first line has the totals and the omissions."""
    glob = GlobPattern(query.pattern)
    results, notes = _SearchResults(), list[str]()
    with _cpu_limit(_MAX_CPU_SECONDS):
        try:
            matches = _build_matcher(query)
            with root.find(query.path) as top:
                walk = DirectoryWalk(root, depth=MAX_DEPTH, hidden=query.hidden, max_seconds=_MAX_WALK_SECONDS)
                if not top.is_folder:
                    _search_file(results, top, matches, query)
                for entry in walk.entries(top) if top.is_folder else ():
                    if glob.matches(os.path.relpath(entry.path, top.path)) and entry.is_file:
                        _search_entry(results, root, entry, matches, query)
                    if results.is_full:
                        notes.append("there are more matches: use a path, a pattern or a longer query")
                        break
                notes += walk.notes()
        except _TooSlow:
            notes.append(
                f"stopped after {_MAX_CPU_SECONDS:g} s of CPU time: use a simpler expression or search fewer files"
            )
    if results.skipped:
        notes.append(f"skipped: {read.format_count(results.skipped, 'file')} (binary, too large or secret)")
    files = read.format_count(results.searched, "file")
    found = f"{read.format_count(results.matches, 'line')} in {len(results.blocks)} of {files}"
    heading = found if results.matches else f"no matches in {files}"
    return "\n".join([f"[{'; '.join([heading, *notes])}]", *results.blocks])


class _TooSlow(Exception):
    """The search used up its CPU time."""


class _SearchResults:
    """The matches found so far, and the number of files searched and skipped."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.matches = self.searched = self.skipped = self._size = 0

    @property
    def is_full(self) -> bool:
        return self.matches >= _MAX_MATCHES or self._size >= _MAX_CHARACTERS

    def add(self, block: str, matches: int) -> None:
        self.blocks.append(block)
        self.matches, self._size = self.matches + matches, self._size + len(block)


def _search_entry(
    results: _SearchResults, root: Root, entry: DirectoryEntry, matches: Callable[[str], bool], query: FileQuery
) -> None:
    """Search a file of the walk, opened by its name in the open folder, so that no link can be put in its place."""
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(entry.name, flags, dir_fd=entry.folder)
    except OSError:
        results.skipped += 1
        return
    try:
        opened = OpenedPath(descriptor, entry.path, os.fstat(descriptor))
        if root.holds_secrets(entry.path, opened.stat):
            results.skipped += 1
            return
        _search_file(results, opened, matches, query)
    except ToolFailed:
        results.skipped += 1
    finally:
        os.close(descriptor)


def _search_file(results: _SearchResults, opened: OpenedPath, matches: Callable[[str], bool], query: FileQuery) -> None:
    read.check_regular(opened)
    head = os.pread(opened.descriptor, 8192, 0)
    if opened.stat.st_size > _MAX_FILE_SIZE or read.is_binary(head):
        results.skipped += 1
        return
    results.searched += 1
    lines = read.split_lines(read.decode_text(os.pread(opened.descriptor, _MAX_FILE_SIZE, 0), opened.path).text)
    hits = [index for index, line in enumerate(lines) if matches(line)][: _MAX_MATCHES - results.matches]
    if hits:
        shown = _format_hits(lines, hits, min(max(0, query.context), _MAX_CONTEXT), matches)
        results.add("\n".join([opened.path, *shown]), len(hits))


def _format_hits(lines: list[str], hits: list[int], context: int, matches: Callable[[str], bool]) -> Generator[str]:
    """Yield each hit with its number and a colon, context lines with a dash, and a mark for omitted lines."""
    chosen, last = set(hits), -1
    for index in sorted({each for hit in hits for each in range(max(0, hit - context), hit + context + 1)}):
        if index >= len(lines):
            return
        if context and last >= 0 and index > last + 1:
            yield "    ⋮"
        sign = ":" if index in chosen else "-"
        yield f"{index + 1:>6}{sign} {_cut_line(lines[index], matches)}"
        last = index


def _cut_line(line: str, matches: Callable[[str], bool]) -> str:
    """Cut a long line to the part with the match, if that is near the beginning."""
    if len(line) <= _MAX_LINE_LENGTH:
        return line
    for start in range(0, min(len(line), 20 * _MAX_LINE_LENGTH), _MAX_LINE_LENGTH // 2):
        part = line[start : start + _MAX_LINE_LENGTH]
        if matches(part):
            return f"{'…' if start else ''}{part}…"
    return f"{line[:_MAX_LINE_LENGTH]}…"


def _build_matcher(query: FileQuery) -> Callable[[str], bool]:
    if not query.query or len(query.query) > _MAX_QUERY_LENGTH:
        raise BadArguments(f"A query must have 1 to {_MAX_QUERY_LENGTH} characters.")
    if not query.regex:
        if not query.ignore_case:
            return lambda line: query.query in line
        folded = query.query.casefold()
        return lambda line: folded in line.casefold()
    try:
        expression = re.compile(query.query, re.IGNORECASE if query.ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadArguments(
            f"Invalid regular expression ({error}); set regex to false to search for the text."
        ) from None
    return lambda line: expression.search(line) is not None


@contextmanager
def _cpu_limit(seconds: float) -> Generator[None]:
    """Raise _TooSlow after so much CPU time of this process; the signal also interrupts a regular expression."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise _TooSlow

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
