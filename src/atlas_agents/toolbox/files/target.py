"""A place where a file may be put: its folder is held open, and the file is put there whole or not at all."""

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath

import msgspec

from atlas_agents.core.errors import BadArguments, NotPermitted, ToolFailed
from atlas_agents.core.places import is_secret
from atlas_agents.toolbox.files.beneath import open_beneath
from atlas_agents.toolbox.files.content import LARGEST, read_all, sized
from atlas_agents.toolbox.files.root import Found, Root, outside

_FOLDER = os.O_RDONLY | os.O_DIRECTORY


class Target(msgspec.Struct, frozen=True):
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
            return read_all(Found(descriptor, self.where, os.fstat(descriptor)))
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
def target(root: Root, path: str, *, make: bool = False) -> Generator[Target]:
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


def _judged(root: Root, top: int, folder: int | None, wanted: str, name: str) -> Target:
    plain = os.path.normpath(wanted)
    where = plain if folder is None else os.path.normpath(os.path.join(root.whereabouts(top, folder, "."), name))
    if folder is not None and not os.fstat(folder).st_nlink:
        raise ToolFailed(f"the folder of {wanted} was removed just now")
    about = _look(folder, name) if folder is not None else None
    if root.is_private(where):
        raise NotPermitted(f"{where} is off limits.")
    if about is not None:
        _check(where, about)
    return Target(root, folder, name, where, root.must_ask(where, about) or root.must_ask(plain, None), about)


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
