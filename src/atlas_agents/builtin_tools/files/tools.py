"""The five tools around one folder."""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from atlas_agents.builtin_tools.files import write
from atlas_agents.builtin_tools.files.listing import listed
from atlas_agents.builtin_tools.files.read import MOST_LINES, read
from atlas_agents.builtin_tools.files.root import Root
from atlas_agents.builtin_tools.files.search import FileQuery, searched
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.pipeline import Finding
from atlas_agents.tools.tool import Tool, tool


def file_tools(
    folder: Path | str, *, private: Iterable[Path | str] = (), guarded: Iterable[Path | str] = ()
) -> list[Tool]:
    """Tools that read, write, edit, list and search in a folder, and reach nothing outside of it.

    What is in `private` is off limits; what is in `guarded` is written only when a person agrees, as are prompts,
    settings, hooks and keys in any case.
    """
    root = Root(
        os.path.abspath(folder),
        tuple(os.path.abspath(each) for each in private),
        tuple(os.path.abspath(each) for each in guarded),
    )
    return [_reader(root), _lister(root), _searcher(root), _writer(root), _editor(root)]


def _reader(root: Root) -> Tool:
    def file_read(path: str, start: int = 1, lines: int = MOST_LINES) -> Any:
        """Read a file: text as numbered lines, or a picture.

        Args:
            path: Relative to the folder.
            start: The first line to read; -20 reads the last 20 lines.
            lines: How many lines to read at most.
        """
        return read(root, path, start, lines)

    return tool(effect="pure", in_process=True)(file_read)


def _lister(root: Root) -> Tool:
    def file_list(path: str = ".", pattern: str = "", depth: int = 0, hidden: bool = False) -> str:
        """List the files in a folder, with their sizes.

        Args:
            path: A folder, relative to the one that all files are in.
            pattern: Like *.py for names in any folder, or src/**/*.py for paths.
            depth: How many folders deep to look. Without it 1, and with a pattern all.
            hidden: Whether names that begin with a dot are listed, too.
        """
        return listed(root, path, pattern, depth, hidden=hidden)

    return tool(effect="pure", in_process=True)(file_list)


def _searcher(root: Root) -> Tool:
    def file_search(
        query: str,
        path: str = ".",
        pattern: str = "",
        regex: bool = False,
        ignore_case: bool = False,
        context: int = 0,
        hidden: bool = False,
    ) -> str:
        """Search in text files for lines that hold a text.

        Args:
            query: The text to look for, as it is; with regex, a regular expression.
            path: A file, or a folder to search through.
            pattern: Only in files like *.py or src/**/*.py.
            regex: Whether the query is a regular expression.
            ignore_case: Whether large and small letters are the same.
            context: How many lines before and after to show, too.
            hidden: Whether to search names that begin with a dot, too.
        """
        return searched(root, FileQuery(query, path, pattern, regex, ignore_case, context, hidden))

    return tool(effect="pure", timeout=60)(file_search)


def _writer(root: Root) -> Tool:
    def file_write(path: str, content: str, context: ToolContext) -> str:
        """Write a text file, a new one or in place of what was there. Folders on the way are made.

        Args:
            path: Relative to the folder.
            content: The whole content.
        """
        given = {"path": path, "content": content}
        return write.carry_out(root, write.written, given, approved=context.approved)

    def found_out(key: str, arguments: dict[str, Any]) -> Finding:
        return write.found_written(root, arguments)

    return tool(
        in_process=True,
        confirm=partial(write.must_ask, root),
        preview=partial(write.preview, root, write.written),
        binds=partial(write.facts, root),
        reconcile=found_out,
    )(file_write)


def _editor(root: Root) -> Tool:
    def file_edit(path: str, old: str, new: str, context: ToolContext, all: bool = False) -> str:
        """Replace a text in a file by another.

        Args:
            path: Relative to the folder.
            old: The exact text as it stands in the file, without line numbers, and enough of it to be found only once.
            new: The text for its place.
            all: Replace it wherever it stands.
        """
        given = {"path": path, "old": old, "new": new, "all": all}
        return write.carry_out(root, write.edited, given, approved=context.approved)

    def found_out(key: str, arguments: dict[str, Any]) -> Finding:
        return write.found_edited(root, arguments)

    return tool(
        in_process=True,
        confirm=partial(write.must_ask, root),
        preview=partial(write.preview, root, write.edited),
        binds=partial(write.facts, root),
        reconcile=found_out,
    )(file_edit)
