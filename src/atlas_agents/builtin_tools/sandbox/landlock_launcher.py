"""Process entry point: runs the command described by its JSON argument in a `sandlock` sandbox.

It is the subreaper of all processes that the command starts, and kills the remaining ones when the command ends. It
also changes modes, owners and times of files for the command, because Landlock would not restrict that to the writable
folder; and names in folders, because Landlock cannot protect a path below that folder. Standard library only.
"""

import ctypes
import errno
import importlib
import json
import os
import signal
import stat
import sys
import threading
from types import ModuleType
from typing import Any

_FAILED, _ERROR_PREFIX = 113, "atlas-sandbox: "
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CAPABILITY_VERSION = 0x20080522
_OPENAT2, _FCHMODAT2 = 437, 452
_AT_FDCWD, _NOFOLLOW, _EMPTY_PATH = -100, 0x100, 0x1000
_REMOVE_FOLDER, _FOLLOW = 0x200, 0x400
_NO_MAGIC_LINKS = 2  # RESOLVE_NO_MAGICLINKS: /proc/self would be this process
_OWN_DESCRIPTOR = b"/proc/self/fd/"
_MAX_PATH = 4096
_SETID = 0o6000
_ARGUMENTS: dict[str, tuple[int | None, int | None, int, int | None]] = {
    "chmod": (None, 0, 1, None),
    "fchmod": (0, None, 1, None),
    "fchmodat": (0, 1, 2, None),
    "fchmodat2": (0, 1, 2, 3),
    "chown": (None, 0, 1, None),
    "lchown": (None, 0, 1, None),
    "fchown": (0, None, 1, None),
    "fchownat": (0, 1, 2, 4),
    "utimensat": (0, 1, 2, 3),
}
"""Indexes of the arguments of system calls: folder, path, new value, flags."""
_NAMES: dict[str, tuple[tuple[int | None, int], ...]] = {
    "rename": ((None, 0), (None, 1)),
    "renameat": ((0, 1), (2, 3)),
    "renameat2": ((0, 1), (2, 3)),
    "link": ((None, 0), (None, 1)),
    "linkat": ((0, 1), (2, 3)),
    "symlink": ((None, 1),),
    "symlinkat": ((1, 2),),
    "unlink": ((None, 0),),
    "unlinkat": ((0, 1),),
    "rmdir": ((None, 0),),
    "mkdir": ((None, 0),),
    "mkdirat": ((0, 1),),
    "mknod": ((None, 0),),
    "mknodat": ((0, 1),),
    "truncate": ((None, 0),),
    "creat": ((None, 0),),
}
"""Indexes of the arguments, (folder, path), of system calls that change names in folders; and of truncate."""
_UNUSED = ("asyncio", "ctypes.util")
"""Modules that `sandlock` imports, for asynchronous handlers and to find a library that is not next to it."""
_names_lock = threading.Lock()
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    request: dict[str, Any] = json.loads(sys.argv[1])
    parent = os.getppid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        os._exit(_FAILED)
    # The command has no capabilities, so what is done for it must not have any either.
    if _libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()):
        os._exit(_FAILED)
    signal.signal(signal.SIGTERM, lambda number, frame: _exit(_FAILED))
    exit_codes: list[int] = []
    runner = threading.Thread(target=lambda: exit_codes.append(_run(request)), daemon=True)
    runner.start()
    while runner.is_alive():
        runner.join(1.0)
    _exit(exit_codes[0] if exit_codes else _FAILED)


def _run(request: dict[str, Any]) -> int:
    sys.path.append(request["library"])
    for module in _UNUSED:
        _defer_import(module)
    try:
        library: Any = importlib.import_module("sandlock")
        sandbox = library.Sandbox(
            fs_readable=request["readable"],
            fs_writable=request["writable"],
            fs_denied=request["denied"],
            max_processes=request["processes"],
            no_coredump=True,
            clean_env=True,
            env=request["env"],
            cwd=request["cwd"],
        )
        _inherit_streams()
        result = sandbox.run_with_handlers(request["argv"], _handlers(library, request))
        if result.error:
            raise RuntimeError(result.error)
        return 128 + result.signal if result.signal > 0 else result.exit_code
    except Exception as error:  # noqa: BLE001 - any error means that nothing was run
        sys.stderr.write(f"{_ERROR_PREFIX}{error}\n")
        return _FAILED


def _defer_import(name: str) -> None:
    """Import a module only when one of its attributes is used: importing asyncio takes as long as `sandlock` itself."""
    deferred: Any = ModuleType(name)

    def load(attribute: str) -> Any:
        sys.modules.pop(name, None)
        return getattr(importlib.import_module(name), attribute)

    deferred.__getattr__ = load
    sys.modules[name] = deferred
    package, _, child = name.rpartition(".")
    if package:
        setattr(importlib.import_module(package), child, deferred)


def _inherit_streams() -> None:
    """Make `run_with_handlers` leave the standard streams to the command: the C library has a function for it."""
    functions = importlib.import_module("sandlock._sdk")._lib
    interactive = functions.sandlock_run_interactive_with_handlers
    interactive.argtypes = functions.sandlock_run_with_handlers.argtypes
    interactive.restype = functions.sandlock_run_with_handlers.restype
    functions.sandlock_run_with_handlers = interactive


def _handlers(library: Any, request: dict[str, Any]) -> list[tuple[int, Any]]:
    """Return a handler for each system call that is made for the command.

    `sandlock` checks paths before the kernel reads them, so a thread of the command could exchange them in between.
    """
    names: dict[int, str] = {number: name for name, number in request["supervised"].items()}

    class SystemCallHandler(library.Handler):
        on_exception = library.ExceptionPolicy.DENY_EPERM

        def handle(self, ctx: Any) -> Any:
            name = names[ctx.syscall_nr]
            try:
                if name in _ARGUMENTS:
                    _change_metadata(name, ctx, request)
                else:
                    with _names_lock:  # what was checked cannot be moved meanwhile
                        if name == "creat":
                            return library.NotifAction.inject_fd_send(_creat(ctx, request))
                        _change_names(name, ctx, request)
            except OSError as error:
                return library.NotifAction.errno(error.errno or errno.EPERM)
            return library.NotifAction.returns(0)

    handler = SystemCallHandler()
    return [(number, handler) for number in names]


def _change_metadata(name: str, ctx: Any, request: dict[str, Any]) -> None:
    """Change metadata for the command, if the target is a file of its user below the writable folder.

    Descriptors count as well: a file that can only be read could otherwise be changed through one. The arguments are
    read once, and the target is opened before it is checked, so the command cannot exchange it in between.
    """
    target = _open_target(name, ctx)
    try:
        _check_target(target, request)
        value = _ARGUMENTS[name][2]
        if name == "utimensat":
            times = ctx.read(ctx.args[value], 32) if ctx.args[value] else None
            if ctx.args[value] and times is None:
                raise OSError(errno.EFAULT, "times")
            _syscall(request["supervised"]["utimensat"], target, b"", times, _EMPTY_PATH)
        elif "chmod" in name:
            if ctx.args[value] & _SETID:
                raise PermissionError(errno.EPERM, "setuid")
            _syscall(_FCHMODAT2, target, b"", ctx.args[value] & 0o7777, _EMPTY_PATH)
        else:
            info = os.fstat(target)
            user, group = (ctypes.c_int(each).value for each in ctx.args[value : value + 2])
            if user not in (-1, info.st_uid) or group not in (-1, info.st_gid):
                raise PermissionError(errno.EPERM, "owner")
    finally:
        os.close(target)


def _open_target(name: str, ctx: Any) -> int:
    """Open the file that a command names, without access to its content."""
    folder_index, path_index, _, flags_index = _ARGUMENTS[name]
    folder = _AT_FDCWD if folder_index is None else ctypes.c_int(ctx.args[folder_index]).value
    address = 0 if path_index is None else ctx.args[path_index]
    flags = 0 if flags_index is None else ctx.args[flags_index]
    flags |= _NOFOLLOW if name == "lchown" else 0
    flags |= _EMPTY_PATH if path_index is None or (name == "utimensat" and not address) else 0
    path = _read_path(ctx, address) if address else b""
    if path.startswith(_OWN_DESCRIPTOR) and path.removeprefix(_OWN_DESCRIPTOR).isdigit():  # as C libraries do it
        folder, path, flags = int(path.removeprefix(_OWN_DESCRIPTOR)), b"", _EMPTY_PATH
    if not path and not flags & _EMPTY_PATH:
        raise FileNotFoundError(errno.ENOENT, "empty path")
    return _open_path(ctx, folder, path, os.O_NOFOLLOW if flags & _NOFOLLOW else 0)


def _open_path(ctx: Any, folder: int, path: bytes, how: int) -> int:
    """Open a path of a command, relative to its open folder, or that folder itself."""
    where = f"/proc/{ctx.pid}/cwd" if folder == _AT_FDCWD else f"/proc/{ctx.pid}/fd/{folder}"
    try:
        start = os.open("/" if path.startswith(b"/") else where, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        raise OSError(errno.EBADF, where) from None
    if not path:
        return start
    try:
        how |= os.O_PATH | os.O_CLOEXEC
        return _syscall(_OPENAT2, start, path, (ctypes.c_uint64 * 3)(how, 0, _NO_MAGIC_LINKS), 24)
    finally:
        os.close(start)


def _read_path(ctx: Any, address: int) -> bytes:
    """Read a string page by page: the page after its end may not exist."""
    path = b""
    while len(path) < _MAX_PATH:
        position = address + len(path)
        chunk = ctx.read(position, _MAX_PATH - position % _MAX_PATH)
        if chunk is None:
            raise OSError(errno.EFAULT, "path")
        path += chunk
        if b"\0" in chunk:
            return path[: path.index(b"\0")]
    raise OSError(errno.ENAMETOOLONG, "path")


def _check_target(target: int, request: dict[str, Any]) -> None:
    if not _is_changeable(_real_path(target), request) or os.fstat(target).st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "outside of the writable folder")


def _is_changeable(real: str, request: dict[str, Any]) -> bool:
    """Return whether a path is in the writable folder, and not protected."""
    return (
        bool(request["changeable"])
        and _is_below(real, request["changeable"])
        and not any(_is_below(real, each) for each in request["unchangeable"])
    )


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _real_path(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _change_names(name: str, ctx: Any, request: dict[str, Any]) -> None:
    """Create, move or remove a path for the command, if it is in the writable folder and not protected.

    A folder with something protected in it cannot be moved: it would be found by its new path.
    """
    opened: list[int] = []
    try:
        if name == "truncate":
            _truncate(ctx, opened, request)
        elif name.startswith("rename"):
            (source, old), (target, new) = (_open_name(name, ctx, index, opened, request) for index in (0, 1))
            flags = ctx.args[4] if name == "renameat2" else 0
            for parent, each in ((source, old), (target, new)):
                real = os.path.join(_real_path(parent), os.fsdecode(each).rstrip("/"))
                if any(_is_below(path, real) for path in request["unchangeable"]):
                    raise PermissionError(errno.EACCES, "it has something protected in it")
            _syscall(request["supervised"]["renameat2"], source, old, target, new, ctypes.c_uint(flags))
        elif name.startswith("link"):
            _link(name, ctx, opened, request)
        else:
            _change_name(name, ctx, *_open_name(name, ctx, 0, opened, request))
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _change_name(name: str, ctx: Any, parent: int, last: bytes) -> None:
    base = name.removesuffix("at")
    value = _NAMES[name][0][1] + 1  # the argument after the path
    if base == "symlink":
        os.symlink(_read_path(ctx, ctx.args[0]), last, dir_fd=parent)
    elif base == "rmdir" or (name == "unlinkat" and ctx.args[value] & _REMOVE_FOLDER):
        os.rmdir(last, dir_fd=parent)
    elif base == "unlink":
        os.unlink(last, dir_fd=parent)
    else:
        _create(base, ctx.args[value] & ~_umask(ctx.pid), parent, last)


def _create(kind: str, mode: int, parent: int, last: bytes) -> None:
    """Create a folder or a special file with this mode, whatever the umask of this process is."""
    if kind == "mkdir":
        mode &= 0o1777
        os.mkdir(last, mode, dir_fd=parent)
    elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK) or mode & _SETID:
        raise PermissionError(errno.EPERM, "a device")
    else:
        os.mknod(last, mode, dir_fd=parent)
    current = os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_IMODE(current) & 0o1777 != stat.S_IMODE(mode):
        os.chmod(last, stat.S_IMODE(mode) | current & stat.S_ISGID, dir_fd=parent)


def _link(name: str, ctx: Any, opened: list[int], request: dict[str, Any]) -> None:
    folder_index, path_index = _NAMES[name][0]
    folder = _AT_FDCWD if folder_index is None else ctypes.c_int(ctx.args[folder_index]).value
    flags = ctx.args[4] if name == "linkat" else 0
    path = _read_path(ctx, ctx.args[path_index])
    if path.startswith(_OWN_DESCRIPTOR) and path.removeprefix(_OWN_DESCRIPTOR).isdigit() and flags & _FOLLOW:
        folder, path = int(path.removeprefix(_OWN_DESCRIPTOR)), b""
    elif not path and not flags & _EMPTY_PATH:
        raise FileNotFoundError(errno.ENOENT, "empty path")
    source = _open_path(ctx, folder, path, 0 if flags & _FOLLOW else os.O_NOFOLLOW)
    opened.append(source)
    parent, last = _open_name(name, ctx, 1, opened, request)
    if stat.S_ISDIR(os.fstat(source).st_mode):
        raise PermissionError(errno.EPERM, "a folder")
    if not _is_changeable(_real_path(source), request):
        raise OSError(errno.EXDEV, "outside of the writable folder")
    os.link(f"/proc/self/fd/{source}", last, dst_dir_fd=parent, follow_symlinks=True)


def _truncate(ctx: Any, opened: list[int], request: dict[str, Any]) -> None:
    target = _open_path(ctx, _AT_FDCWD, _read_path(ctx, ctx.args[0]), 0)
    opened.append(target)
    if not _is_changeable(_real_path(target), request):
        raise PermissionError(errno.EACCES, "outside of the writable folder")
    length = ctypes.c_int64(ctx.args[1]).value
    if length > request["file_size"]:
        raise OSError(errno.EFBIG, "too large")
    os.truncate(f"/proc/self/fd/{target}", length)


def _creat(ctx: Any, request: dict[str, Any]) -> int:
    """Return a descriptor of a new file, or of an existing one that is emptied, if the command may change it."""
    opened: list[int] = []
    try:
        try:
            target = _open_path(ctx, _AT_FDCWD, _read_path(ctx, ctx.args[0]), 0)
        except FileNotFoundError:
            parent, last = _open_name("creat", ctx, 0, opened, request)
            mode = ctx.args[1] & 0o777 & ~_umask(ctx.pid)
            created = os.open(last, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=parent)
            os.fchmod(created, mode)
            return created
        opened.append(target)
        if not stat.S_ISREG(os.fstat(target).st_mode) or not _is_changeable(_real_path(target), request):
            raise PermissionError(errno.EACCES, "not a file in the writable folder")
        return os.open(f"/proc/self/fd/{target}", os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open_name(name: str, ctx: Any, index: int, opened: list[int], request: dict[str, Any]) -> tuple[int, bytes]:
    """Open the folder of a name and return it with the name; raise as the kernel would if it cannot be changed."""
    folder_index, path_index = _NAMES[name][index]
    folder = _AT_FDCWD if folder_index is None else ctypes.c_int(ctx.args[folder_index]).value
    path = _read_path(ctx, ctx.args[path_index])
    if not path:
        raise FileNotFoundError(errno.ENOENT, "empty path")
    above, slash, last = path.rstrip(b"/").rpartition(b"/")
    if last in (b"", b".", b".."):
        raise OSError(errno.EEXIST if name.startswith("mk") else errno.EBUSY, "not a name")
    parent = _open_path(ctx, folder, above + slash, os.O_DIRECTORY)
    opened.append(parent)
    real = os.path.join(_real_path(parent), os.fsdecode(last))
    if not _is_changeable(real, request):
        creates = index == 1 or name.startswith(("mk", "sym", "creat"))
        if _exists(parent, last):
            raise OSError(errno.EEXIST if creates and not name.startswith("rename") else errno.EACCES, real)
        raise OSError(errno.EACCES if creates else errno.ENOENT, real)
    return parent, last + (b"/" if path.endswith(b"/") else b"")


def _exists(parent: int, name: bytes) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return False
    return True


def _umask(pid: int) -> int:
    with open(f"/proc/{pid}/status", "rb") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith(b"Umask:"))


def _syscall(number: int, *arguments: Any) -> int:
    result = _libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "system call failed")
    return result


def _exit(code: int) -> None:
    """Kill all processes left of the run, and exit."""
    for _ in range(100):
        children = _children()
        if not children:
            break
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except OSError:
                pass
    sys.stdout.flush()
    os._exit(code & 0xFF)


def _children() -> list[int]:
    children: list[int] = []
    own_pid = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == own_pid:
                children.append(int(name))
    return children
