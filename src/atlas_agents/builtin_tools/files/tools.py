"""The five file tools: `file_read`, `file_list`, `file_search`, `file_write` and `file_edit`."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from atlas_agents.builtin_tools.files import write
from atlas_agents.builtin_tools.files.listing import list_files
from atlas_agents.builtin_tools.files.read import MAX_LINES, read_file
from atlas_agents.builtin_tools.files.root import Root
from atlas_agents.builtin_tools.files.search import FileQuery, search_files
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.pipeline import Finding
from atlas_agents.tools.tool import Tool, tool


def file_tools(
    folder: Path | str, *, private: Iterable[Path | str] = (), guarded: Iterable[Path | str] = ()
) -> list[Tool]:
    """Create the tools that read, list, search, write and edit files in a folder, and reach nothing outside it.

    `private` paths cannot be accessed. Writing `guarded` paths always needs approval, and so does writing prompts,
    settings, hooks and keys.
    """
    root = Root.create(folder, private, guarded)
    return [_read_tool(root), _list_tool(root), _search_tool(root), _write_tool(root), _edit_tool(root)]


def _read_tool(root: Root) -> Tool:
    def file_read(path: str, start: int = 1, lines: int = MAX_LINES) -> Any:
        """Read a file: the numbered lines of a text file, or an image.

        Args:
            path: Path relative to the folder.
            start: The first line to read; -20 reads the last 20 lines.
            lines: The maximum number of lines to read.
        """
        return read_file(root, path, start, lines)

    return tool(effect="pure", in_process=True)(file_read)


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

    return tool(effect="pure", in_process=True)(file_list)


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

    return tool(effect="pure", timeout=60)(file_search)


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

    return tool(
        in_process=True,
        confirm=partial(write.needs_approval, root),
        preview=partial(write.preview, root, write.plan_write),
        binds=partial(write.approval_facts, root),
        reconcile=reconcile,
    )(file_write)


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

    return tool(
        in_process=True,
        confirm=partial(write.needs_approval, root),
        preview=partial(write.preview, root, write.plan_edit),
        binds=partial(write.approval_facts, root),
        reconcile=reconcile,
    )(file_edit)
