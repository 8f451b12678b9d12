"""`file_write` and `file_edit`: atomic changes of a file, and the diff and the facts of an approval."""

import difflib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any, TypeAlias

import msgspec

from atlas_agents.builtin_tools.files import read
from atlas_agents.builtin_tools.files.root import FileMissing, OpenedPath, Root, open_beneath, outside_error
from atlas_agents.core.errors import BadArguments, NotPermitted, ToolFailed
from atlas_agents.core.paths import is_secret
from atlas_agents.tools.pipeline import Happened, NotHappened

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY
Arguments: TypeAlias = dict[str, Any]
_DIFF_CONTEXT = 3
_MAX_DIFF_LINES = 1500


class WriteTarget(msgspec.Struct, frozen=True):
    """A name in an open folder. `folder` is None if the folder does not exist yet, `info` if the file does not."""

    root: Root
    folder: int | None
    name: str
    path: str
    needs_approval: bool
    info: os.stat_result | None = None

    @property
    def is_secret(self) -> bool:
        return is_secret(PurePosixPath(self.path))

    @property
    def hides_content(self) -> bool:
        """Whether the current content is not shown: it is secret or too large."""
        return self.is_secret or (self.info is not None and self.info.st_size > read.MAX_FILE_SIZE)

    def content(self) -> bytes | None:
        """Return the current content; None if the file does not exist."""
        if self.folder is None or self.info is None:
            return None
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self.name, flags, dir_fd=self.folder)
        except OSError as error:
            raise ToolFailed(f"cannot read {self.path}: {error.strerror}") from None
        try:
            return read.read_bytes(OpenedPath(descriptor, self.path, os.fstat(descriptor)))
        finally:
            os.close(descriptor)

    def write(self, data: bytes) -> None:
        """Write the file atomically with the mode of the one it replaces; raise ToolFailed if that has changed."""
        if self.folder is None:
            raise ToolFailed(f"the folder of {self.path} does not exist")
        check_size(data)
        temporary = f".{secrets.token_hex(8)}.atlas"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, 0o600, dir_fd=self.folder)
            try:
                self._fill(descriptor, data)
                if _version(_stat(self.folder, self.name)) != _version(self.info):
                    raise ToolFailed(f"{self.path} was changed by another program; read it again first")
                os.rename(temporary, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=self.folder)
                raise
            finally:
                os.close(descriptor)
            os.fsync(self.folder)
        except OSError as error:
            raise ToolFailed(f"cannot write {self.path}: {error.strerror}; nothing was changed") from None

    def _fill(self, descriptor: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if self.info is not None:
            with suppress(OSError):  # only root can change the owner
                os.fchown(descriptor, self.info.st_uid, self.info.st_gid)
            os.fchmod(descriptor, self.info.st_mode & 0o777)
        elif self.folder is not None:  # as accessible as its folder, but never writable by everyone
            os.fchmod(descriptor, os.fstat(self.folder).st_mode & 0o664 | 0o600)
        os.fsync(descriptor)


@contextmanager
def open_target(root: Root, path: str, *, create: bool = False) -> Generator[WriteTarget]:
    """Open the folder of a path for the duration of the block. With `create`, missing folders are created.

    Links to folders beneath the root are followed; a file that is itself a link is rejected.
    """
    relative = root.relative(path)
    parent, _, name = relative.rpartition("/")
    if name in ("", ".", "..") or len(os.fsencode(name)) > 255:
        raise BadArguments(f"Invalid file path: {path!r}.")
    with root.opened() as top:
        folder = _open_folder(top, parent or ".", path, create=create)
        try:
            yield _check_target(root, top, folder, relative, name)
        finally:
            if folder is not None:
                os.close(folder)


def _check_target(root: Root, top: int, folder: int | None, relative: str, name: str) -> WriteTarget:
    plain = os.path.normpath(relative)
    path = plain if folder is None else os.path.normpath(os.path.join(root.locate(top, folder, "."), name))
    if folder is not None and not os.fstat(folder).st_nlink:
        raise ToolFailed(f"the folder of {relative} was just removed")
    info = _stat(folder, name) if folder is not None else None
    if root.is_private(path):
        raise NotPermitted(f"{path} is private and cannot be written.")
    if info is not None and stat.S_ISLNK(info.st_mode):
        raise NotPermitted(f"{path} is a symbolic link and cannot be written; name the file it points to.")
    if info is not None and stat.S_ISDIR(info.st_mode):
        raise ToolFailed(f"{path} is a folder; name a file")
    if info is not None and not stat.S_ISREG(info.st_mode):
        raise ToolFailed(f"{path} is not a regular file")
    needs_approval = root.needs_approval(path, info) or root.needs_approval(plain, None)
    return WriteTarget(root, folder, name, path, needs_approval, info)


def _open_folder(top: int, parent: str, path: str, *, create: bool) -> int | None:
    try:
        return open_beneath(top, parent, _FOLDER_FLAGS)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise outside_error(path) from None
        if error.errno != errno.ENOENT:
            raise ToolFailed(f"cannot write {path}: {parent} is not an accessible folder") from None
    if ".." in parent.split("/"):
        raise ToolFailed(f"not found: folder {parent}; write the path without '..'")
    return _create_folders(top, parent, path) if create else None


def _create_folders(top: int, parent: str, path: str) -> int:
    """Create the missing folders of a path, each in its open parent, and open the last one."""
    folder = os.dup(top)
    try:
        done = ""
        for part in [part for part in parent.split("/") if part not in ("", ".")]:
            done = f"{done}/{part}".lstrip("/")
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=folder)
            child = open_beneath(top, done, _FOLDER_FLAGS)
            os.close(folder)
            folder = child
        return folder
    except OSError as error:
        os.close(folder)
        if error.errno == errno.EXDEV:
            raise outside_error(path) from None
        raise ToolFailed(f"cannot create the folder {parent}: {error.strerror}") from None


def _stat(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ToolFailed(f"cannot access {name}: {error.strerror}") from None


def _version(info: os.stat_result | None) -> tuple[int, ...] | None:
    return None if info is None else (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_mode)


def _format_change(path: str, old: bytes | None, new: bytes) -> str:
    """Return a unified diff; if a content is not text, only the sizes."""
    if old == new:
        return f"{path}: no changes"
    try:
        after = read.decode_text(new, path).text
        before = "" if old is None else read.decode_text(old, path).text
    except ToolFailed:
        return f"{path}: {read.format_size(len(old or b''))} replaced by {read.format_size(len(new))} (not text)"
    if "\r\n" in after and (old is None or "\r\n" in before):  # show carriage returns only if line endings are mixed
        mixed = any(text.count("\r\n") < text.count("\n") for text in (before, after))
        before, after = (before, after) if mixed else (before.replace("\r\n", "\n"), after.replace("\r\n", "\n"))
    heading = [f"{path}: new file, {read.format_size(len(new))}"] if old is None else []
    return "\n".join([*heading, *_diff(path, _diff_lines(before), _diff_lines(after))])


def _diff(path: str, old: list[str], new: list[str]) -> list[str]:
    """Compare only the lines between the first and the last difference, because comparing can be slow."""
    start = _common_prefix(old, new)
    end = _common_prefix(old[start:][::-1], new[start:][::-1])
    begin = max(0, start - _DIFF_CONTEXT)
    left, right = old[begin : len(old) - end + _DIFF_CONTEXT], new[begin : len(new) - end + _DIFF_CONTEXT]
    if max(len(left), len(right)) > _MAX_DIFF_LINES:
        heading = f"{path}: {len(left):,} lines replaced by {len(right):,} lines, starting at line {start + 1}"
        return [heading, *right[:_MAX_DIFF_LINES]]
    hunks = list(difflib.unified_diff(left, right, n=_DIFF_CONTEXT, lineterm=""))[2:]
    return [f"--- {path}", f"+++ {path}", *[_shift_hunk(line, begin) for line in hunks]]


def _shift_hunk(line: str, by: int) -> str:
    """Shift the line numbers of a hunk heading to those of the whole file."""
    if not line.startswith("@@"):
        return line
    _, old, new, _ = line.split(" ")
    return f"@@ -{_shift_range(old[1:], by)} +{_shift_range(new[1:], by)} @@"


def _shift_range(lines: str, by: int) -> str:
    number, comma, count = lines.partition(",")
    return f"{int(number) + by}{comma}{count}"


def _diff_lines(text: str) -> list[str]:
    """Split into lines, with a mark for a carriage return and for a missing newline at the end."""
    lines = [line[:-1] + "␍" if line.endswith("\r") else line for line in text.split("\n")]
    if lines[-1]:
        lines[-1] += " (no newline at end of file)"
    else:
        lines.pop()
    return lines


def _common_prefix(left: list[str], right: list[str]) -> int:
    """Return how many lines are the same at the beginning."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(left), len(right)))


class FileChange(msgspec.Struct, frozen=True):
    """The new content of a file, and the result text once it is written."""

    data: bytes
    summary: str


Planner: TypeAlias = Callable[[WriteTarget, Arguments], FileChange]


def plan_write(target: WriteTarget, arguments: Arguments) -> FileChange:
    """Plan a `file_write`: the whole content as given."""
    data, summary = encode_content(target.path, arguments["content"])
    replaced = "" if target.info is None else f", replacing {read.format_size(target.info.st_size)}"
    return FileChange(data, f"{summary}{replaced}")


def encode_content(path: str, content: str) -> tuple[bytes, str]:
    """Encode a complete new content; also return its description for the result."""
    try:
        data = content.encode()
    except UnicodeEncodeError:
        raise BadArguments("The content contains an unpaired surrogate character; nothing was written.") from None
    check_size(data)
    lines = read.format_count(len(read.split_lines(content)), "line")
    return data, f"wrote {path}: {lines}, {read.format_size(len(data))}"


def check_size(data: bytes) -> None:
    """Raise ToolFailed for a content that is too large for a file."""
    if len(data) > read.MAX_FILE_SIZE:
        raise ToolFailed(
            f"content too large: {read.format_size(len(data))}, at most {read.format_size(read.MAX_FILE_SIZE)}"
        )


def plan_edit(target: WriteTarget, arguments: Arguments) -> FileChange:
    """Plan a `file_edit`: the content with one text replaced, in the same encoding and line endings."""
    present = target.content()
    if present is None:
        raise ToolFailed(f"not found: {target.path}; use file_write to create it")
    if target.is_secret:
        raise NotPermitted(f"{target.path} may contain secrets: it cannot be read, searched or edited.")
    text = read.decode_text(present, target.path)
    edited, summary = edit_text(target.path, text, arguments)
    return FileChange(text.encode(edited), summary)


def edit_text(path: str, text: read.DecodedText, arguments: Arguments) -> tuple[str, str]:
    """Replace a text within another; also return a description of the change."""
    old, new = _match_newlines(text, arguments["old"], arguments["new"])
    lines = _find_lines(text.text, old)
    if not lines:
        raise ToolFailed(_explain_missing(path, text.text, old))
    if len(lines) > 1 and not arguments.get("all"):
        raise ToolFailed(
            f"the old text occurs {len(lines)} times in {path}, in lines {', '.join(map(str, lines[:10]))}; "
            "include more of the surrounding text, or set all to true"
        )
    more = " and later" if len(lines) > 1 else ""
    summary = f"changed {read.format_count(len(lines), 'place')} in {path}, line {lines[0]}{more}"
    return text.text.replace(old, new), summary


def apply_change(root: Root, plan: Planner, arguments: Arguments, *, approved: bool) -> str:
    """Write the change. Whether it needs approval is checked again, on the open folder that is written to."""
    with open_target(root, arguments["path"], create=plan is plan_write) as target:
        if target.needs_approval and not approved:
            raise NotPermitted(f"writing {target.path} needs approval, and it was not approved.")
        change = plan(target, arguments)
        target.write(change.data)
        return change.summary


def needs_approval(root: Root, arguments: Arguments) -> bool:
    """Return whether the change needs approval regardless of the policy."""
    with open_target(root, arguments["path"]) as target:
        return target.needs_approval


def preview(root: Root, plan: Planner, arguments: Arguments) -> str:
    """Return a unified diff; for a protected file, a line before it says so."""
    with open_target(root, arguments["path"]) as target:
        change = plan(target, arguments)
        lines = _warnings(target)
        if target.hides_content:
            added = [f"+{line}" for line in change.data.decode(errors="replace").splitlines()]
            return "\n".join([*lines, f"{target.path}: current content not shown", *added])
        return "\n".join([*lines, _format_change(target.path, target.content(), change.data)])


def _warnings(target: WriteTarget) -> list[str]:
    warning = (
        f"{target.path} is protected: such files can contain agent instructions, settings, secrets or code that other "
        "programs run."
    )
    return [warning] if target.needs_approval else []


def locate_read(root: Root, arguments: Arguments) -> str:
    """Return the real path of a text file, which may exist only in the editor that has it open."""
    try:
        with root.find(arguments["path"]) as opened:
            read.check_text(opened)
            return os.path.join(os.path.realpath(root.path), opened.path)
    except FileMissing:
        return locate_write(root, arguments)


def locate_write(root: Root, arguments: Arguments) -> str:
    """Return the real path of a text file that an editor may change; secret files are not sent to one."""
    with open_target(root, arguments["path"]) as target:
        if target.is_secret:
            raise NotPermitted(f"{target.path} may contain secrets, which are not sent to an editor.")
        if target.info is not None:
            with root.find(arguments["path"]) as opened:
                read.check_text(opened)
        return os.path.realpath(os.path.join(root.path, target.path))


def preview_at_client(root: Root, arguments: Arguments) -> str:
    """Return the text that is replaced and the new one: only the editor knows the rest of the file."""
    with open_target(root, arguments["path"]) as target:
        lines = [*_warnings(target), f"{target.path}: changed in the editor, with its text that is not saved"]
        old, new = arguments.get("old", ""), arguments.get("new", arguments.get("content", ""))
        removed, added = [f"-{line}" for line in old.splitlines()], [f"+{line}" for line in new.splitlines()]
        return "\n".join([*lines, *removed, *added])


def facts_at_client(root: Root, arguments: Arguments) -> dict[str, Any]:
    """Return the real path: an approval of a change in an editor does not cover one on disk."""
    with open_target(root, arguments["path"]) as target:
        return {"folder": root.path, "file": target.path, "at": "client"}


def approval_facts(root: Root, arguments: Arguments) -> dict[str, Any]:
    """Return the real path and the current content's hash: an approval covers only the change that was shown."""
    with open_target(root, arguments["path"]) as target:
        if target.info is not None and target.hides_content:
            state: Arguments = {"changed": target.info.st_mtime_ns, "number": target.info.st_ino}
        else:
            present = target.content()
            state = {"sha256": None if present is None else hashlib.sha256(present).hexdigest()}
        return {"folder": root.path, "file": target.path, **state}


def check_written(root: Root, arguments: Arguments) -> Happened | NotHappened:
    """Check whether an interrupted write happened: writes are atomic and idempotent, so compare the content."""
    with open_target(root, arguments["path"]) as target:
        change = plan_write(target, arguments)
        return Happened(change.summary) if target.content() == change.data else NotHappened()


def check_edited(root: Root, arguments: Arguments) -> Happened | NotHappened | None:
    """Check whether an interrupted edit happened: only one of the old and the new text is there; None if unclear."""
    with open_target(root, arguments["path"]) as target:
        present = target.content()
        if present is None:
            return None
        happened = was_edited(read.decode_text(present, target.path), arguments)
    if happened is None:
        return None
    return Happened(f"changed {target.path}") if happened else NotHappened()


def was_edited(text: read.DecodedText, arguments: Arguments) -> bool | None:
    """Return whether a text contains only the new text of an edit, or only the old one; None if it is unclear."""
    old, new = _match_newlines(text, arguments["old"], arguments["new"])
    if new and new in text.text and old not in text.text.replace(new, ""):
        return True
    return False if old in text.text and (not new or new not in text.text) else None


def _match_newlines(text: read.DecodedText, old: str, new: str) -> tuple[str, str]:
    """Convert the line endings of the old and the new text to those of the file, unless they match exactly."""
    if not old or old == new:
        raise BadArguments("old must not be empty, and new must differ from it; use file_write to replace a file.")
    if old in text.text or text.newline == "\n":
        return old, new.replace("\r\n", "\n").replace("\n", text.newline) if "\r\n" not in old else new
    return _to_crlf(old), _to_crlf(new)


def _to_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _find_lines(text: str, old: str) -> list[int]:
    """Return the number of the line in which each occurrence starts."""
    found: list[int] = []
    position, line, counted_to = text.find(old), 1, 0
    while position >= 0:
        line += text.count("\n", counted_to, position)
        found.append(line)
        counted_to, position = position, text.find(old, position + len(old))
    return found


def _explain_missing(path: str, text: str, old: str) -> str:
    """Return an error that names a line that differs only in whitespace, if there is one."""
    lines, wanted = [" ".join(line.split()) for line in text.split("\n")], " ".join(old.split("\n")[0].split())
    similar = [number for number, line in enumerate(lines, 1) if wanted and wanted in line]
    message = f"the old text is not in {path}; it must match the file exactly, without line numbers"
    return f"{message}. Line {similar[0]} differs only in whitespace or in what follows" if similar else message
