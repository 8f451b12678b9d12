"""The folder that the file tools work in: how paths in it are opened, and which of them are nobody's business."""

import ctypes
import difflib
import errno
import os
import platform
import stat
import struct
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import msgspec

from atlas_agents.core.errors import BadArguments, NotPermitted, ToolFailed
from atlas_agents.core.paths import is_protected, is_secret

_OPENAT2 = 437
_BENEATH, _NO_MAGIC = 0x08, 0x02
_TRIES = 64
_F_GETPATH = 50


def open_beneath(root: int, path: str, flags: int) -> int:
    """A descriptor of what a relative path leads to; OSError with EXDEV if it leads out of the open folder `root`."""
    flags |= os.O_CLOEXEC
    if not kernel_resolves():
        return walk_beneath(root, path, flags)
    for _ in range(_TRIES):  # EAGAIN: something was renamed on the way, and the kernel cannot vouch for it
        found = _openat2(root, path, flags)
        if found >= 0:
            return found
        if (number := ctypes.get_errno()) not in (errno.EAGAIN, errno.EINTR):
            raise OSError(number, os.strerror(number), path)
    raise OSError(errno.EAGAIN, "it is being moved around", path)


def walk_beneath(root: int, path: str, flags: int) -> int:
    """The same without the kernel's help, from one open folder to the next; links are not followed at all."""
    steps = [part for part in path.split("/") if part not in ("", ".")] or ["."]
    held = [os.dup(root)]
    try:
        for place, step in enumerate(steps):
            last = place == len(steps) - 1
            if step == "..":
                os.close(held.pop())
                if not held:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
                if not last:
                    continue
                step = "."
            folder = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            held.append(os.open(step, (flags if last else folder) | os.O_NOFOLLOW, dir_fd=held[-1]))
        return held.pop()
    except OSError as error:
        raise _told(error, held, path) from None
    finally:
        for each in held:
            os.close(each)


def real_path(descriptor: int) -> str | None:
    """Where an open file or folder really is now; None where this system cannot tell."""
    try:
        if sys.platform == "darwin":
            import fcntl

            return os.fsdecode(fcntl.fcntl(descriptor, _F_GETPATH, bytes(1024)).rstrip(b"\0"))
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


def inside(path: str, root: str) -> str | None:
    """A whole path as one relative to the folder that it is in, by its parts; None if it is elsewhere."""
    try:
        return str(PurePosixPath(path).relative_to(root))
    except ValueError:
        return None


@cache
def kernel_resolves() -> bool:
    """Whether this kernel has `openat2`, and lets us use it; found out by using it."""
    if sys.platform != "linux" or platform.machine() == "alpha":
        return False
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = _openat2(here, ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if found >= 0:
            os.close(found)
        return found >= 0
    finally:
        os.close(here)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _openat2(root: int, path: str, flags: int) -> int:
    how = struct.pack("QQQ", flags, 0, _BENEATH | _NO_MAGIC)
    size = ctypes.c_size_t(len(how))
    return int(_libc().syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(root), os.fsencode(path), how, size))


def _told(error: OSError, held: list[int], path: str) -> OSError:
    """A link where a folder should be is `not a directory` to some systems; here it is a link."""
    if error.errno in (errno.ENOTDIR, errno.EMLINK) and held and error.filename:
        try:
            is_link = os.readlink(error.filename, dir_fd=held[-1])
        except (OSError, ValueError):
            is_link = ""
        if is_link:
            return OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return error


_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY  # a pipe must not be waited for, nor a terminal become ours
_LONGEST = 4096


class OpenedPath(msgspec.Struct, frozen=True):
    """What a path has led to: open, and where it really is beneath the root."""

    descriptor: int
    path: str
    stat: Any

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)


class Root(msgspec.Struct, frozen=True):
    """One folder. `private` are whole paths beneath it that are off limits, `guarded` such that only a person may have
    written; those that hold the folder itself do not count."""

    path: str
    private: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()

    def relative(self, path: str) -> str:
        """A path as a model writes it, made relative to the root; whether it leads out, the kernel will see."""
        if "\0" in path or len(path) > _LONGEST:
            raise BadArguments("This is no path: it has a NUL in it, or is too long.")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise BadArguments("This is no path: it holds half a character.") from None
        if not path.startswith("/"):
            return path or "."
        for root in {self.path, os.path.realpath(self.path)}:
            if (found := inside(path, root)) is not None:
                return found
        raise outside(path)

    @contextmanager
    def opened(self) -> Generator[int]:
        """The folder itself, open."""
        try:
            root = os.open(self.path, _FOLDER | os.O_CLOEXEC)
        except OSError as error:
            raise ToolFailed(f"the folder for files cannot be opened: {error.strerror}") from None
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def find(self, path: str, *, folder: bool = False) -> Generator[OpenedPath]:
        """What is at a path, open as long as the block lasts; ToolFailed in words that help to find it."""
        wanted = self.relative(path)
        if self.is_private(wanted):  # not even opened: to close a database file gives up our own locks on it
            raise _kept(os.path.normpath(wanted))
        with self.opened() as root:
            try:
                found = open_beneath(root, wanted, _FOLDER if folder else _FILE)
            except OSError as error:
                raise self._trouble(error, root, path, wanted) from None
            try:
                where = self.whereabouts(root, found, wanted)
                about = os.fstat(found)  # after the look at where it is: one that was gone by then has no name left
                if not about.st_nlink:
                    raise ToolFailed(f"{path} was removed or replaced just now; try again")
                self.readable(where, about, wanted)
                yield OpenedPath(found, where, about)
            finally:
                os.close(found)

    def whereabouts(self, root: int, descriptor: int, wanted: str) -> str:
        """Where an open file is, relative to the root, by whichever links it was reached."""
        real, base = real_path(descriptor), real_path(root)
        if real is None or base is None:
            return os.path.normpath(wanted)
        where = inside(real, base)
        if where is None:
            raise outside(wanted)
        return where

    def readable(self, where: str, about: os.stat_result, wanted: str = "") -> None:
        """NotPermitted for what holds secrets, under whichever name."""
        if self.is_private(where) or is_secret(PurePosixPath(wanted)) or self.holds_secrets(where, about):
            raise _kept(where)

    def holds_secrets(self, where: str, about: os.stat_result) -> bool:
        """Whether a file is a secret one by its name, or another name of one."""
        return is_secret(PurePosixPath(where)) or self._twin_of_secret(about)

    def must_ask(self, where: str, about: os.stat_result | None) -> bool:
        """Whether only a person may have this written: prompts, settings, hooks, keys, what has a second name, and all
        that is in a virtual environment or a repository of git, whatever that is called."""
        has_names = about is not None and stat.S_ISREG(about.st_mode) and about.st_nlink > 1
        path = PurePosixPath(where)
        if has_names or is_protected(path) or is_secret(path) or _within(where, self.on_guard()):
            return True
        folders = [os.path.join(self.path, each) for each in path.parents]
        return any(_exists(each, "pyvenv.cfg") or _exists(each, "HEAD", "objects", "refs") for each in folders)

    def is_private(self, where: str) -> bool:
        """Whether a path relative to the root is one of those that are off limits, or in one."""
        return _within(where, self.off_limits())

    def keeps(self, path: str) -> bool:
        """Whether a whole path, wherever it is, is of what nobody reads: private, or secret by its name."""
        real = os.path.realpath(path)
        private = frozenset(os.path.realpath(each) for each in self.private if inside(self.path, each) is None)
        return is_secret(PurePosixPath(real)) or _within(real, private)

    def off_limits(self) -> frozenset[str]:
        """Where the private ones are, relative to the root; those that are elsewhere cannot be reached anyway."""
        return self._beneath(self.private)

    def on_guard(self) -> frozenset[str]:
        """Where those are that only a person may have written, relative to the root."""
        return self._beneath(self.guarded)

    def _beneath(self, paths: tuple[str, ...]) -> frozenset[str]:
        top = os.path.realpath(self.path) if paths else ""
        found = [inside(os.path.realpath(each), top) for each in paths]
        return frozenset(each for each in found if each not in (None, "."))

    def _twin_of_secret(self, about: os.stat_result) -> bool:
        """A second name of a secret file that lies at the top of the folder, or is known to be private."""
        if not stat.S_ISREG(about.st_mode) or about.st_nlink < 2:
            return False
        secrets = list(self.private)
        with suppress(OSError), os.scandir(self.path) as entries:
            secrets += [each.path for each in entries if is_secret(PurePosixPath(each.name))]
        for each in secrets:
            with suppress(OSError):
                if os.path.samestat(os.stat(each), about):
                    return True
        return False

    def _trouble(self, error: OSError, root: int, path: str, wanted: str) -> Exception:
        match error.errno:
            case errno.EXDEV:
                return outside(path)
            case errno.ENOENT:
                return ToolFailed(f"there is no {path}{self._near(root, wanted)}")
            case errno.ELOOP:
                return ToolFailed(f"{path} is a link that cannot be followed; name the file that it leads to")
            case errno.ENOTDIR:
                return ToolFailed(f"{path} is no folder, or lies in something that is none")
            case errno.EACCES | errno.EPERM:
                return ToolFailed(f"{path} is not ours to read: the system denies it")
            case errno.ENXIO:
                return ToolFailed(f"{path} is no regular file")
            case _:
                return ToolFailed(f"{path} cannot be opened: {error.strerror}")

    def _near(self, root: int, wanted: str) -> str:
        """The names beside it that are like it, or where the path breaks off."""
        folder, _, name = wanted.rstrip("/").rpartition("/")
        try:
            parent = open_beneath(root, folder or ".", _FOLDER)
        except OSError:
            return f": there is no folder {folder}; file_list shows what there is"
        try:
            names = [each for each in os.listdir(parent) if not is_secret(PurePosixPath(each))]
        except OSError:
            names = []
        finally:
            os.close(parent)
        lower = {each.casefold(): each for each in names}
        close = [lower[each] for each in difflib.get_close_matches(name.casefold(), lower, 3, 0.6)]
        where = folder or "the folder"
        if close:
            return f"; near it: {', '.join(os.path.join(folder, each) for each in close)}"
        return f"; {where} is empty" if not names else f"; file_list shows what is in {where}"


def _within(where: str, known: frozenset[str]) -> bool:
    path = PurePosixPath(os.path.normpath(where))
    return any(str(each) in known for each in (path, *path.parents))


def _exists(folder: str, *names: str) -> bool:
    return all(os.path.lexists(os.path.join(folder, name)) for name in names)


def _kept(where: str) -> NotPermitted:
    return NotPermitted(f"{where} holds secrets or what people have said: it is not read, searched or edited.")


def outside(path: str) -> NotPermitted:
    return NotPermitted(
        f"{path[:200]} leads out of the folder; only what is inside can be reached, by a relative path."
    )
