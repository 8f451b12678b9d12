"""`file_write` and `file_edit`: new content for a file, what a person is shown of it, and what a yes is bound to."""

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

from atlas_agents.builtin_tools.files.read import LARGEST, DecodedText, as_text, counted, read_all, sized, split_lines
from atlas_agents.builtin_tools.files.root import OpenedPath, Root, open_beneath, outside
from atlas_agents.core.errors import BadArguments, NotPermitted, ToolFailed
from atlas_agents.core.paths import is_secret
from atlas_agents.tools.pipeline import Happened, NotHappened

_FOLDER = os.O_RDONLY | os.O_DIRECTORY


class WriteTarget(msgspec.Struct, frozen=True):
    """A name in an open folder. `folder` is None where it has to be made first, `about` where there is no file yet."""

    root: Root
    folder: int | None
    name: str
    where: str
    asks: bool
    about: os.stat_result | None = None

    @property
    def is_secret(self) -> bool:
        return is_secret(PurePosixPath(self.where))

    @property
    def is_too_long(self) -> bool:
        """Whether what is there is more than can be looked at."""
        return self.about is not None and self.about.st_size > LARGEST

    def content(self) -> bytes | None:
        """What is there now; None if nothing is."""
        if self.folder is None or self.about is None:
            return None
        try:
            descriptor = os.open(
                self.name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.folder
            )
        except OSError as error:
            raise ToolFailed(f"{self.where} cannot be read: {error.strerror}") from None
        try:
            return read_all(OpenedPath(descriptor, self.where, os.fstat(descriptor)))
        finally:
            os.close(descriptor)

    def put(self, data: bytes) -> None:
        """Put a file there that has this content and the rights of the one it replaces; ToolFailed if that has changed
        since it was looked at."""
        if self.folder is None:
            raise ToolFailed(f"the folder of {self.where} is not there")
        if len(data) > LARGEST:
            raise ToolFailed(f"{sized(len(data))} are too much for one file; at most {sized(LARGEST)} can be written")
        fresh = f".{secrets.token_hex(8)}.atlas"
        try:
            descriptor = os.open(
                fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.folder
            )
            try:
                self._fill(descriptor, data)
                self._unchanged()
                os.rename(fresh, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            except BaseException:
                with suppress(OSError):
                    os.unlink(fresh, dir_fd=self.folder)
                raise
            finally:
                os.close(descriptor)
            os.fsync(self.folder)
        except OSError as error:
            raise ToolFailed(f"{self.where} cannot be written: {error.strerror}; nothing was changed") from None

    def _fill(self, descriptor: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if self.about is not None:
            with suppress(OSError):  # only the superuser gives files away
                os.fchown(descriptor, self.about.st_uid, self.about.st_gid)
            os.fchmod(descriptor, self.about.st_mode & 0o777)
        elif self.folder is not None:  # as open as its folder, and never for all to write
            os.fchmod(descriptor, os.fstat(self.folder).st_mode & 0o664 | 0o600)
        os.fsync(descriptor)

    def _unchanged(self) -> None:
        now = _look(self.folder, self.name) if self.folder is not None else None
        if _version(now) != _version(self.about):
            raise ToolFailed(f"{self.where} was changed by somebody else just now; read it again first")


@contextmanager
def target(root: Root, path: str, *, make: bool = False) -> Generator[WriteTarget]:
    """The place that a path names, held as long as the block lasts. With `make`, folders that are missing are made.

    Links to folders beneath the root are followed; a link in the file's own place is not.
    """
    wanted = root.relative(path)
    parent, _, name = wanted.rpartition("/")
    if name in ("", ".", "..") or len(os.fsencode(name)) > 255:
        raise BadArguments(f"{path!r} names no file.")
    with root.opened() as top:
        folder = _folder(top, parent or ".", path, make=make)
        try:
            yield _judged(root, top, folder, wanted, name)
        finally:
            if folder is not None:
                os.close(folder)


def _judged(root: Root, top: int, folder: int | None, wanted: str, name: str) -> WriteTarget:
    plain = os.path.normpath(wanted)
    where = plain if folder is None else os.path.normpath(os.path.join(root.whereabouts(top, folder, "."), name))
    if folder is not None and not os.fstat(folder).st_nlink:
        raise ToolFailed(f"the folder of {wanted} was removed just now")
    about = _look(folder, name) if folder is not None else None
    if root.is_private(where):
        raise NotPermitted(f"{where} is off limits.")
    if about is not None:
        _check(where, about)
    return WriteTarget(root, folder, name, where, root.must_ask(where, about) or root.must_ask(plain, None), about)


def _check(where: str, about: os.stat_result) -> None:
    if stat.S_ISLNK(about.st_mode):
        raise NotPermitted(f"{where} is a link, and is not written through; name the file that it leads to.")
    if stat.S_ISDIR(about.st_mode):
        raise ToolFailed(f"{where} is a folder; name a file")
    if not stat.S_ISREG(about.st_mode):
        raise ToolFailed(f"{where} is no regular file")


def _folder(top: int, parent: str, path: str, *, make: bool) -> int | None:
    try:
        return open_beneath(top, parent, _FOLDER)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise outside(path) from None
        if error.errno != errno.ENOENT:
            raise ToolFailed(f"{path} cannot be there: {parent} is no folder that can be entered") from None
    if ".." in parent.split("/"):
        raise ToolFailed(f"there is no folder {parent}; name it without ..")
    return _made(top, parent, path) if make else None


def _made(top: int, parent: str, path: str) -> int:
    """Make the folders on the way that are missing, each in the one before it, which is open."""
    folder = os.dup(top)
    try:
        done = ""
        for step in [part for part in parent.split("/") if part not in ("", ".")]:
            done = f"{done}/{step}".lstrip("/")
            with suppress(FileExistsError):
                os.mkdir(step, 0o755, dir_fd=folder)
            following = open_beneath(top, done, _FOLDER)
            os.close(folder)
            folder = following
        return folder
    except OSError as error:
        os.close(folder)
        raise (
            outside(path)
            if error.errno == errno.EXDEV
            else ToolFailed(f"the folder {parent} cannot be made: {error.strerror}")
        ) from None


def _look(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ToolFailed(f"{name} cannot be looked at: {error.strerror}") from None


def _version(about: os.stat_result | None) -> tuple[int, ...] | None:
    return None if about is None else (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_mode)


_AROUND = 3
_MOST = 1500


def changes(path: str, old: bytes | None, new: bytes) -> str:
    """The diff of a file's content; of what is no text, or too long, only the sizes."""
    if old == new:
        return f"{path}: nothing would change"
    try:
        after = as_text(new, path).text
        before = "" if old is None else as_text(old, path).text
    except ToolFailed:
        return f"{path}: {sized(len(old or b''))} that are no text, replaced by {sized(len(new))}"
    if "\r\n" in after and (old is None or "\r\n" in before):  # they differ in the ends of lines, or not at all
        mixed = any(text.count("\r\n") < text.count("\n") for text in (before, after))
        before, after = (before, after) if mixed else (before.replace("\r\n", "\n"), after.replace("\r\n", "\n"))
    head = [f"{path} is new, {sized(len(new))}"] if old is None else []
    return "\n".join([*head, *_diff(path, _lines(before), _lines(after))])


def _diff(path: str, old: list[str], new: list[str]) -> list[str]:
    """Only what lies between the first and the last line that differ is compared: that may take long."""
    start = _shared(old, new)
    end = _shared(old[start:][::-1], new[start:][::-1])
    begin, stop_old, stop_new = max(0, start - _AROUND), len(old) - end + _AROUND, len(new) - end + _AROUND
    left, right = old[begin:stop_old], new[begin:stop_new]
    if max(len(left), len(right)) > _MOST:
        return [f"{path}: {len(left):,} lines are replaced by {len(right):,}, from line {start + 1} on", *right[:_MOST]]
    found = list(difflib.unified_diff(left, right, n=_AROUND, lineterm=""))[2:]
    return [f"--- {path}", f"+++ {path}", *[_moved(line, begin) for line in found]]


def _moved(line: str, by: int) -> str:
    """A hunk's heading with the numbers that its lines have in the whole file."""
    if not line.startswith("@@"):
        return line
    _, old, new, _ = line.split(" ")
    return f"@@ -{_later(old[1:], by)} +{_later(new[1:], by)} @@"


def _later(place: str, by: int) -> str:
    number, comma, count = place.partition(",")
    return f"{int(number) + by}{comma}{count}"


def _lines(text: str) -> list[str]:
    """Lines with a sign where they end in a carriage return, or where the last has no end."""
    lines = [line[:-1] + "␍" if line.endswith("\r") else line for line in text.split("\n")]
    if lines[-1]:
        lines[-1] += " (no end of line)"
    else:
        lines.pop()
    return lines


def _shared(left: list[str], right: list[str]) -> int:
    """How many lines at the beginning are the same."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(left), len(right)))


Arguments: TypeAlias = dict[str, Any]


class FileChange(msgspec.Struct, frozen=True):
    """What a file is to hold, and a sentence that says so once it does."""

    data: bytes
    told: str


Plan: TypeAlias = Callable[[WriteTarget, Arguments], FileChange]


def written(place: WriteTarget, arguments: Arguments) -> FileChange:
    """The whole content, as it was given."""
    data = _encoded(arguments["content"])
    lines = len(split_lines(arguments["content"]))
    was = "" if place.about is None else f", in place of {sized(place.about.st_size)}"
    return FileChange(data, f"wrote {place.where}: {counted(lines, 'line')}, {sized(len(data))}{was}")


def edited(place: WriteTarget, arguments: Arguments) -> FileChange:
    """The content with one text in the place of another, in the dress that the file had."""
    present = place.content()
    if present is None:
        raise ToolFailed(f"there is no {place.where}; file_write makes one")
    if place.is_secret or place.root.is_private(place.where):
        raise NotPermitted(f"{place.where} holds secrets: it is not read, searched or edited.")
    text = as_text(present, place.where)
    old, new = _dressed(text, arguments["old"], arguments["new"])
    places = _places(text.text, old)
    if not places:
        raise ToolFailed(_missing(place.where, text.text, old))
    if len(places) > 1 and not arguments.get("all"):
        where = ", ".join(str(each) for each in places[:10])
        raise ToolFailed(
            f"the old text stands in {place.where} {len(places)} times, in lines {where}; "
            "give more of what is around it, or say all"
        )
    data = text.bytes_of(text.text.replace(old, new))
    return FileChange(
        data,
        f"changed {counted(len(places), 'place')} in {place.where}, line {places[0]}{' and after' * (len(places) > 1)}",
    )


def carry_out(root: Root, plan: Plan, arguments: Arguments, *, approved: bool) -> str:
    """Do it. Whether a person must have been asked is seen once more, of the very place that is written to."""
    with target(root, arguments["path"], make=plan is written) as place:
        if place.asks and not approved:
            raise NotPermitted(f"{place.where} is written only when a person has agreed, and nobody was asked.")
        change = plan(place, arguments)
        place.put(change.data)
        return change.told


def must_ask(root: Root, arguments: Arguments) -> bool:
    """Whether a person is asked whatever the policy says: about prompts, settings, hooks and keys."""
    with target(root, arguments["path"]) as place:
        return place.asks


def preview(root: Root, plan: Plan, arguments: Arguments) -> str:
    """A unified diff, under a line that says what is special about the file."""
    with target(root, arguments["path"]) as place:
        change = plan(place, arguments)
        notes = [f"{place.where} says what agents are told or may do, or is run by others."] if place.asks else []
        if place.is_secret or place.is_too_long:
            return "\n".join([*notes, f"{place.where}: its present content is not shown", *_added(change.data)])
        return "\n".join([*notes, changes(place.where, place.content(), change.data)])


def facts(root: Root, arguments: Arguments) -> dict[str, Any]:
    """Where the file really is, and what it holds now: a yes is for the change that was shown."""
    with target(root, arguments["path"]) as place:
        if place.about is not None and (place.is_secret or place.is_too_long):
            state: Arguments = {"changed": place.about.st_mtime_ns, "number": place.about.st_ino}
        else:
            present = place.content()
            state = {"sha256": None if present is None else hashlib.sha256(present).hexdigest()}
        return {"folder": root.path, "file": place.where, **state}


def found_written(root: Root, arguments: Arguments) -> Happened | NotHappened:
    """A write is whole or not at all, and doing it again does no harm: only the content counts."""
    with target(root, arguments["path"]) as place:
        change = written(place, arguments)
        return Happened(change.told) if place.content() == change.data else NotHappened()


def found_edited(root: Root, arguments: Arguments) -> Happened | NotHappened | None:
    """An edit has happened if the new text is there and the old is not, and has not if it is the other way round."""
    with target(root, arguments["path"]) as place:
        present = place.content()
        if present is None:
            return None
        text = as_text(present, place.where)
        old, new = _dressed(text, arguments["old"], arguments["new"])
        if new and new in text.text and old not in text.text.replace(new, ""):
            return Happened(f"changed {place.where}")
        return NotHappened() if old in text.text and (not new or new not in text.text) else None


def _encoded(content: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise BadArguments("The content holds half a character; nothing was written.") from None


def _dressed(text: DecodedText, old: str, new: str) -> tuple[str, str]:
    """Old and new text with the ends of lines that the file has, where it has not exactly those that were given."""
    if not old or old == new:
        raise BadArguments("Give the old text, and another one for its place; file_write replaces a whole file.")
    if old in text.text or text.newline == "\n":
        return old, new.replace("\r\n", "\n").replace("\n", text.newline) if "\r\n" not in old else new
    return _crlf(old), _crlf(new)


def _crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _places(text: str, old: str) -> list[int]:
    """The lines in which the text begins."""
    found: list[int] = []
    place, line, seen = text.find(old), 1, 0
    while place >= 0:
        line += text.count("\n", seen, place)
        found.append(line)
        seen, place = place, text.find(old, place + len(old))
    return found


def _missing(where: str, text: str, old: str) -> str:
    """That it is not there, and where something is that differs only in spaces."""
    squeezed, wanted = [" ".join(line.split()) for line in text.split("\n")], " ".join(old.split("\n")[0].split())
    near = [number for number, line in enumerate(squeezed, 1) if wanted and wanted in line]
    words = f"the old text is not in {where}; it must be exactly as in the file, without line numbers"
    return f"{words}. Line {near[0]} differs only in spaces or in what follows" if near else words


def _added(data: bytes) -> list[str]:
    return [f"+{line}" for line in data.decode(errors="replace").splitlines()]
