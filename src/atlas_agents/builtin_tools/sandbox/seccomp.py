"""Seccomp filter (classic BPF) that denies system calls used in sandbox escapes and not needed by ordinary commands.

A denied call fails with ENOSYS or EPERM; programs handle both.
"""

import platform
import struct
from collections.abc import Iterable, Mapping

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_NUMBER, _ARCH = 0, 4
_SETID = 0o6000  # setuid and setgid: such a file would outlive the sandbox
_DEVICE = 0o20000  # the bit shared by character and block devices
_CREATES = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE
_FAMILIES = (1, 2, 10, 16)  # Unix, IPv4, IPv6, netlink: these are isolated by namespaces; vsock is not
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000  # set in system call numbers of the x32 ABI

_UNSUPPORTED = ("memfd_create", "memfd_secret", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register")
_DENIED: Mapping[str, tuple[int, int]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "openat2": (437, 437),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "syslog": (103, 116),
}
_MODES: Mapping[str, tuple[int, int, int]] = {  # the last number is the index of the mode argument
    "chmod": (90, -1, 1),
    "fchmod": (91, 52, 1),
    "fchmodat": (268, 53, 2),
    "fchmodat2": (452, 452, 2),
    "creat": (85, -1, 1),
}
_NODES: Mapping[str, tuple[int, int, int]] = {"mknod": (133, -1, 1), "mknodat": (259, 33, 2)}
_OPENS: Mapping[str, tuple[int, int, int]] = {"open": (2, -1, 1), "openat": (257, 56, 2)}  # index of the flags
_SOCKET = (41, 198)


def build_filter(machine: str | None = None) -> bytes | None:
    """Return the filter for a machine architecture; None if its system call numbers are not known here."""
    machine = machine or platform.machine()
    if machine not in _ARCHITECTURES:
        return None
    column = 0 if machine == "x86_64" else 1
    steps = [_step(_LOAD, _ARCH), _step(_EQUAL, _ARCHITECTURES[machine], if_true=1), _deny(_ENOSYS)]
    steps.append(_step(_LOAD, _NUMBER))
    if column == 0:
        steps += [_step(_AT_LEAST, _X32_BIT, if_false=1), _deny(_ENOSYS)]
    for name, numbers in _DENIED.items():
        steps += _when(numbers[column], [_deny(_ENOSYS if name in _UNSUPPORTED else _EPERM)])
    for *numbers, mode in _MODES.values():
        steps += _when(numbers[column], _deny_bits(_SETID, mode))
    for *numbers, mode in _NODES.values():
        steps += _when(numbers[column], _deny_bits(_SETID | _DEVICE, mode))
    for *numbers, flags in _OPENS.values():
        check_mode = _deny_bits(_SETID, flags + 1)
        creates = _step(_ANY_BIT, _CREATES, if_false=len(check_mode))
        steps += _when(numbers[column], [_argument(flags), creates, *check_mode, _allow()])
    families = [_step(_EQUAL, family, if_true=len(_FAMILIES) - index) for index, family in enumerate(_FAMILIES)]
    steps += _when(_SOCKET[column], [_argument(0), *families, _deny(_EAFNOSUPPORT), _allow()])
    return b"".join([*steps, _allow()])


def _step(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """Encode one instruction; `if_true` and `if_false` are how many instructions to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _allow() -> bytes:
    return _step(_RETURN, _ALLOW)


def _deny(errno: int) -> bytes:
    return _step(_RETURN, _ERRNO | errno)


def _argument(index: int) -> bytes:
    """Load the low 32 bits of an argument; modes, flags and address families fit in them."""
    return _step(_LOAD, 16 + 8 * index)


def _when(number: int, then: Iterable[bytes]) -> list[bytes]:
    steps = list(then)
    return [_step(_EQUAL, number, if_false=len(steps)), *steps] if number >= 0 else []


def _deny_bits(bits: int, argument: int) -> list[bytes]:
    return [_argument(argument), _step(_ANY_BIT, bits, if_false=1), _deny(_EPERM), _allow()]
