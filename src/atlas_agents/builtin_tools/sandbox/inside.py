"""Process entry point inside a sandbox: drops all privileges, applies the limits and the filter, executes the command.

Started as `python -c` with this source and a call of `main`, so that a sandbox need not contain this file. It imports
little, because every command waits for it.
"""

import ctypes
import os
import resource
import stat
import sys

FAILED, ERROR_PREFIX = 113, "atlas-sandbox: "
"""Exit code if the command could not be confined; a line with this prefix then says why."""
_RDONLY, _REMOUNT, _BIND, _RELATIME = 1, 32, 4096, 1 << 21
_ST_RELATIME = 4096
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 22, 24, 38, 47
_CLONE_NEWUSER = 0x10000000
_CAPABILITY_VERSION = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def main(
    filter_program: bytes, rlimits: dict[str, int], env: dict[str, str], *, read_only: list[str], user: int
) -> None:
    """Confine this process. `env` is only for the command: it could make this process load a library."""
    if read_only:
        _become_user(user, read_only)
    _drop_capabilities()
    for name, limit in rlimits.items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    _install_filter(filter_program)
    try:
        os.execvpe(sys.argv[1], sys.argv[1:], env)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{sys.argv[1]}: {error.strerror}\n")
        os._exit(127)


def _become_user(user: int, read_only: list[str]) -> None:
    """Enter a user namespace in which root has another ID, and make mounts read-only for it.

    A child process remounts them afterwards: the new ID is written to /proc, which becomes read-only as well.
    """
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(receiver, 1)
        for path in read_only:
            _make_read_only(path)
        os._exit(0)
    if _libc.unshare(_CLONE_NEWUSER):
        _fail(f"cannot create a user namespace: {os.strerror(ctypes.get_errno())}")
    for name, content in (("setgroups", "deny"), ("gid_map", f"{user} 0 1"), ("uid_map", f"{user} 0 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)
    os.write(sender, b"1")
    if os.waitpid(child, 0)[1]:
        os._exit(FAILED)
    os.close(receiver)
    os.close(sender)
    if stat.S_ISCHR(os.fstat(0).st_mode):  # /dev/null of the outside, which is not read-only
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)


def _make_read_only(path: str) -> None:
    """Remount a device file, or /proc, so that its owner cannot change it; a device can still be written to."""
    current = os.statvfs(path).f_flag
    flags = current & 0xC0E | (_RELATIME if current & _ST_RELATIME else 0)  # the others must not be cleared
    if _libc.mount(None, path.encode(), None, _REMOUNT | _BIND | _RDONLY | flags, None):
        _fail(f"cannot make {path} read-only: {os.strerror(ctypes.get_errno())}")


def _drop_capabilities() -> None:
    _libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    if _libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()):
        _fail("cannot drop capabilities")


def _install_filter(code: bytes) -> None:
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or _libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program)):
        _fail("the kernel rejected the seccomp filter")


def _fail(reason: str) -> None:
    sys.stderr.write(f"{ERROR_PREFIX}{reason}\n")
    os._exit(FAILED)
