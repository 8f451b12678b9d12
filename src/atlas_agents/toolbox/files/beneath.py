"""Opening what is beneath a folder, and nothing else: the kernel follows the path, so that nobody can bend it between a
look and the use of it."""

import ctypes
import errno
import os
import platform
import struct
import sys
from functools import cache
from pathlib import PurePosixPath

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
