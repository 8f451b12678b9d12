"""The folder of the file tools: open paths beneath it safely, and decide which are private, secret or protected."""

import ctypes
import difflib
import errno
import os
import platform
import stat
import struct
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import msgspec

from atlas_agents.core.errors import BadArguments, NotPermitted, ToolFailed
from atlas_agents.core.paths import is_protected, is_secret

_OPENAT2 = 437
_RESOLVE_BENEATH, _RESOLVE_NO_MAGICLINKS = 0x08, 0x02
_MAX_RETRIES = 64
_F_GETPATH = 50
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY
_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY  # do not block on a pipe, nor take over a terminal
_MAX_PATH_LENGTH = 4096


def open_beneath(root: int, path: str, flags: int) -> int:
    """Open a relative path beneath the open folder `root`; raise OSError with EXDEV if it leads outside."""
    flags |= os.O_CLOEXEC
    if not has_openat2():
        return walk_beneath(root, path, flags)
    for _ in range(_MAX_RETRIES):  # EAGAIN: a concurrent rename, so the kernel could not verify the path
        descriptor = _openat2(root, path, flags)
        if descriptor >= 0:
            return descriptor
        if (number := ctypes.get_errno()) not in (errno.EAGAIN, errno.EINTR):
            raise OSError(number, os.strerror(number), path)
    raise OSError(errno.EAGAIN, "it is being renamed repeatedly", path)


def walk_beneath(root: int, path: str, flags: int) -> int:
    """Open a relative path without `openat2`, one folder at a time. Symbolic links are not followed at all."""
    parts = [part for part in path.split("/") if part not in ("", ".")] or ["."]
    descriptors = [os.dup(root)]
    try:
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            if part == "..":
                os.close(descriptors.pop())
                if not descriptors:
                    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
                if not last:
                    continue
                part = "."
            folder = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            descriptors.append(os.open(part, (flags if last else folder) | os.O_NOFOLLOW, dir_fd=descriptors[-1]))
        return descriptors.pop()
    except OSError as error:
        raise _as_link_error(error, descriptors, path) from None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _real_path(descriptor: int) -> str | None:
    """Return the current path of an open file or folder; None if this system cannot tell."""
    try:
        if sys.platform == "darwin":
            import fcntl

            return os.fsdecode(fcntl.fcntl(descriptor, _F_GETPATH, bytes(1024)).rstrip(b"\0"))
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


def _relative_to(path: str, root: str) -> str | None:
    """Return an absolute path relative to a folder; None if it is outside."""
    try:
        return str(PurePosixPath(path).relative_to(root))
    except ValueError:
        return None


@cache
def has_openat2() -> bool:
    """Return whether the kernel has `openat2` and allows it, by trying it."""
    if sys.platform != "linux" or platform.machine() == "alpha":
        return False
    top = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor = _openat2(top, ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if descriptor >= 0:
            os.close(descriptor)
        return descriptor >= 0
    finally:
        os.close(top)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _openat2(root: int, path: str, flags: int) -> int:
    how = struct.pack("QQQ", flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    size = ctypes.c_size_t(len(how))
    return int(_libc().syscall(ctypes.c_long(_OPENAT2), ctypes.c_int(root), os.fsencode(path), how, size))


def _as_link_error(error: OSError, descriptors: list[int], path: str) -> OSError:
    """Convert ENOTDIR and EMLINK to ELOOP for a symbolic link: systems report different errors."""
    if error.errno in (errno.ENOTDIR, errno.EMLINK) and descriptors and error.filename:
        with suppress(OSError, ValueError):
            if os.readlink(error.filename, dir_fd=descriptors[-1]):
                return OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return error


class FileMissing(ToolFailed):
    """There is no file with this path."""


class OpenedPath(msgspec.Struct, frozen=True):
    """An open file or folder, with its real path relative to the root."""

    descriptor: int
    path: str
    stat: Any

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)


GuardedPaths: TypeAlias = Iterable[Path | str] | Callable[[], Iterable[Path | str]]


class Root(msgspec.Struct, frozen=True):
    """The folder that tools work in. `private` paths cannot be accessed; `guarded` paths need approval to be written.

    Paths that contain the folder itself are ignored. A function as `guarded` is called before each use.
    """

    path: str
    private: tuple[str, ...] = ()
    guarded: GuardedPaths = ()

    @classmethod
    def create(cls, folder: Path | str, private: Iterable[Path | str], guarded: GuardedPaths) -> "Root":
        fixed = guarded if callable(guarded) else tuple(guarded)
        return cls(os.path.abspath(folder), tuple(os.path.abspath(each) for each in private), fixed)

    def relative(self, path: str) -> str:
        """Make a path from a model relative to the root; opening it checks whether it leads outside."""
        if "\0" in path or len(path) > _MAX_PATH_LENGTH:
            raise BadArguments("Invalid path: it contains a NUL character or is too long.")
        try:
            path.encode()
        except UnicodeEncodeError:
            raise BadArguments("Invalid path: it contains an unpaired surrogate character.") from None
        if not path.startswith("/"):
            return path or "."
        for root in {self.path, os.path.realpath(self.path)}:
            if (relative := _relative_to(path, root)) is not None:
                return relative
        raise outside_error(path)

    @contextmanager
    def opened(self) -> Generator[int]:
        """Open the folder itself."""
        try:
            root = os.open(self.path, _FOLDER_FLAGS | os.O_CLOEXEC)
        except OSError as error:
            raise ToolFailed(f"cannot open the folder {self.path}: {error.strerror}") from None
        try:
            yield root
        finally:
            os.close(root)

    @contextmanager
    def find(self, path: str, *, folder: bool = False) -> Generator[OpenedPath]:
        """Open a path for the duration of the block; raise ToolFailed or NotPermitted with a hint for the model."""
        relative = self.relative(path)
        if self.is_private(relative):  # not even opened: closing a database file would release our locks on it
            raise _secret_error(os.path.normpath(relative))
        with self.opened() as root:
            try:
                descriptor = open_beneath(root, relative, _FOLDER_FLAGS if folder else _FILE_FLAGS)
            except OSError as error:
                raise self._open_error(error, root, path, relative) from None
            try:
                real = self.locate(root, descriptor, relative)
                info = os.fstat(descriptor)  # after locating it: a file that was removed by then has no links left
                if not info.st_nlink:
                    raise ToolFailed(f"{path} was removed or replaced while it was opened; try again")
                if self.is_private(real) or is_secret(PurePosixPath(relative)) or self.holds_secrets(real, info):
                    raise _secret_error(real)
                yield OpenedPath(descriptor, real, info)
            finally:
                os.close(descriptor)

    def locate(self, root: int, descriptor: int, relative: str) -> str:
        """Return the real path of an open file relative to the root, with all links resolved."""
        real, base = _real_path(descriptor), _real_path(root)
        if real is None or base is None:
            return os.path.normpath(relative)
        located = _relative_to(real, base)
        if located is None:
            raise outside_error(relative)
        return located

    def holds_secrets(self, path: str, info: os.stat_result) -> bool:
        """Return whether a file is secret by its name, or a hard link to a secret file."""
        return is_secret(PurePosixPath(path)) or self._is_hard_link_to_secret(info)

    def needs_approval(self, path: str, info: os.stat_result | None) -> bool:
        """Return whether writing this path always needs approval.

        That is the case for prompts, settings, hooks, keys, guarded paths and files with several hard links, and for
        everything in a virtual environment or a Git repository's own folder, whatever its name.
        """
        is_hard_link = info is not None and stat.S_ISREG(info.st_mode) and info.st_nlink > 1
        pure = PurePosixPath(path)
        if is_hard_link or is_protected(pure) or is_secret(pure) or _is_within(path, self.guarded_paths()):
            return True
        folders = [os.path.join(self.path, each) for each in pure.parents]
        return any(_contains(each, "pyvenv.cfg") or _contains(each, "HEAD", "objects", "refs") for each in folders)

    def is_private(self, path: str) -> bool:
        """Return whether a path relative to the root is private, or inside a private path."""
        return _is_within(path, self.private_paths())

    def is_private_or_secret(self, path: str) -> bool:
        """Return whether an absolute path, inside or outside the root, is private or secret by its name."""
        real = os.path.realpath(path)
        private = frozenset(os.path.realpath(each) for each in self.private if _relative_to(self.path, each) is None)
        return is_secret(PurePosixPath(real)) or _is_within(real, private)

    def private_paths(self) -> frozenset[str]:
        """Return the private paths inside the root, relative to it."""
        return self._inside(self.private)

    def guarded_paths(self) -> frozenset[str]:
        """Return the guarded paths inside the root, relative to it."""
        guarded = self.guarded() if callable(self.guarded) else self.guarded
        return self._inside(tuple(os.path.abspath(each) for each in guarded))

    def _inside(self, paths: tuple[str, ...]) -> frozenset[str]:
        top = os.path.realpath(self.path) if paths else ""
        found = [_relative_to(os.path.realpath(each), top) for each in paths]
        return frozenset(each for each in found if each not in (None, "."))

    def _is_hard_link_to_secret(self, info: os.stat_result) -> bool:
        """Compare a file with the private files and with the secret files directly in the folder."""
        if not stat.S_ISREG(info.st_mode) or info.st_nlink < 2:
            return False
        secrets = list(self.private)
        with suppress(OSError), os.scandir(self.path) as entries:
            secrets += [entry.path for entry in entries if is_secret(PurePosixPath(entry.name))]
        for secret in secrets:
            with suppress(OSError):
                if os.path.samestat(os.stat(secret), info):
                    return True
        return False

    def _open_error(self, error: OSError, root: int, path: str, relative: str) -> Exception:
        match error.errno:
            case errno.EXDEV:
                return outside_error(path)
            case errno.ENOENT:
                return FileMissing(f"not found: {path}; {self._suggest(root, relative)}")
            case errno.ELOOP:
                return ToolFailed(f"{path} is a symbolic link that is not followed; name the file it points to")
            case errno.ENOTDIR:
                return ToolFailed(f"{path} is not a folder, or is inside something that is not a folder")
            case errno.ENXIO:
                return ToolFailed(f"{path} is not a regular file")
            case _:
                return ToolFailed(f"cannot open {path}: {error.strerror}")

    def _suggest(self, root: int, relative: str) -> str:
        """Suggest similar names in the same folder, or say where the path ends."""
        folder, _, name = relative.rstrip("/").rpartition("/")
        try:
            parent = open_beneath(root, folder or ".", _FOLDER_FLAGS)
        except OSError:
            return f"there is no folder {folder}; use file_list to see what exists"
        try:
            names = [each for each in os.listdir(parent) if not is_secret(PurePosixPath(each))]
        except OSError:
            names = list[str]()
        finally:
            os.close(parent)
        by_lower = {each.casefold(): each for each in names}
        similar = [by_lower[each] for each in difflib.get_close_matches(name.casefold(), by_lower, 3, 0.6)]
        if similar:
            return f"did you mean {', '.join(os.path.join(folder, each) for each in similar)}?"
        shown = folder or "the folder"
        return f"use file_list to see what is in {shown}" if names else f"{shown} is empty"


def _is_within(path: str, folders: frozenset[str]) -> bool:
    pure = PurePosixPath(os.path.normpath(path))
    return any(str(each) in folders for each in (pure, *pure.parents))


def _contains(folder: str, *names: str) -> bool:
    return all(os.path.lexists(os.path.join(folder, name)) for name in names)


def _secret_error(path: str) -> NotPermitted:
    return NotPermitted(f"{path} may contain secrets or private conversations: it cannot be read, searched or edited.")


def outside_error(path: str) -> NotPermitted:
    return NotPermitted(f"{path[:200]} is outside the folder; use a relative path inside it.")
