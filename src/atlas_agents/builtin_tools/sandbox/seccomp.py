"""The system calls that no command in a sandbox needs and many an escape began with, as a filter for the kernel.

Classic BPF, the few instructions of it that are needed. A denied call fails as if the kernel did not know it, or as
forbidden; programs cope with both.
"""

import platform
import struct
from collections.abc import Iterable, Mapping

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_NUMBER, _ARCH = 0, 4
_SPECIAL = 0o6000  # set-user-id and set-group-id: such a file would stay behind, outside of the sandbox
_DEVICE = 0o20000  # of a file's type: a character or block device
_CREATES = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE
_FAMILIES = (1, 2, 10, 16)  # Unix, IPv4, IPv6, netlink: all of them have a namespace; a vsock has none
_TOKENS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FOREIGN = 0x40000000  # calls of x86-64's second table

_UNKNOWN = ("memfd_create", "memfd_secret", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register")
_FORBIDDEN: Mapping[str, tuple[int, int]] = {
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
_MODES: Mapping[str, tuple[int, int, int]] = {  # which argument is the mode
    "chmod": (90, -1, 1),
    "fchmod": (91, 52, 1),
    "fchmodat": (268, 53, 2),
    "fchmodat2": (452, 452, 2),
    "creat": (85, -1, 1),
}
_NODES: Mapping[str, tuple[int, int, int]] = {"mknod": (133, -1, 1), "mknodat": (259, 33, 2)}
_OPENS: Mapping[str, tuple[int, int, int]] = {"open": (2, -1, 1), "openat": (257, 56, 2)}  # which one is the flags
_SOCKET = (41, 198)


def program(machine: str | None = None) -> bytes | None:
    """The filter for this kind of machine, or None where its numbers are not known here."""
    here = machine or platform.machine()
    if here not in _TOKENS:
        return None
    column = 0 if here == "x86_64" else 1
    lines = [_step(_LOAD, _ARCH), _step(_EQUAL, _TOKENS[here], yes=1), _deny(_ENOSYS), _step(_LOAD, _NUMBER)]
    if column == 0:
        lines += [_step(_AT_LEAST, _FOREIGN, no=1), _deny(_ENOSYS)]
    for name, numbers in _FORBIDDEN.items():
        lines += _when(numbers[column], [_deny(_ENOSYS if name in _UNKNOWN else _EPERM)])
    for *numbers, mode in _MODES.values():
        lines += _when(numbers[column], _without_bits(_SPECIAL, mode))
    for *numbers, mode in _NODES.values():
        lines += _when(numbers[column], _without_bits(_SPECIAL | _DEVICE, mode))
    for *numbers, flags in _OPENS.values():
        made = _without_bits(_SPECIAL, flags + 1)
        lines += _when(numbers[column], [_argument(flags), _step(_ANY_BIT, _CREATES, no=len(made)), *made, _allow()])
    known = [_step(_EQUAL, family, yes=len(_FAMILIES) - place) for place, family in enumerate(_FAMILIES)]
    lines += _when(_SOCKET[column], [_argument(0), *known, _deny(_EAFNOSUPPORT), _allow()])
    return b"".join([*lines, _allow()])


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """One instruction; `yes` and `no` are how many to leap over."""
    return struct.pack("=HBBI", code, yes, no, value)


def _allow() -> bytes:
    return _step(_RETURN, _ALLOW)


def _deny(errno: int) -> bytes:
    return _step(_RETURN, _ERRNO | errno)


def _argument(place: int) -> bytes:
    """The low half of an argument, which is all there is of modes, flags and families."""
    return _step(_LOAD, 16 + 8 * place)


def _when(number: int, then: Iterable[bytes]) -> list[bytes]:
    steps = list(then)
    return [_step(_EQUAL, number, no=len(steps)), *steps] if number >= 0 else []


def _without_bits(bits: int, mode: int) -> list[bytes]:
    return [_argument(mode), _step(_ANY_BIT, bits, no=1), _deny(_EPERM), _allow()]
