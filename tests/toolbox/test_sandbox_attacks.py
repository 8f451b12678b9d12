"""Attacks on every sandbox of this machine, as root and as an unprivileged user: network, metadata and processes."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacker import BACKENDS, Arena


@pytest.fixture(params=BACKENDS)
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    made = Arena(request.param)
    yield made
    made.close()


_EVERY_SOCKET = """
import socket
ADDRESSES = [("127.0.0.1", TCP), ("127.0.0.1", UDP), ("::1", TCP), ROOT + "/unix", ROOT + "/unix-datagrams", (2, TCP)]
created = []
for family in range(48):
    for kind in (1, 2, 3, 4, 5, 6, 10):
        for protocol in (*range(24), 33, 41, 47, 58, 103, 132, 136, 143, 255, 256, 261, 262, 263, 768):
            try:
                made = socket.socket(family, kind, protocol)
            except (OSError, AttributeError, NotImplementedError):
                continue
            created.append((family, kind, protocol))
            for address in ADDRESSES:
                for reach in (made.connect, lambda a: made.sendto(b"x", a), lambda a: made.sendto(b"x", 0x20000000, a)):
                    try:
                        made.settimeout(0.2)
                        reach(address)
                    except (OSError, TypeError, OverflowError, ValueError):
                        pass
            made.close()
result = created
"""


async def test_no_socket_reaches_out_of_the_sandbox(arena: Arena) -> None:
    """Every family, type and protocol that the kernel offers, by connecting, sending and fast open."""
    created = (await arena.attempt({"sockets": _EVERY_SOCKET}))["sockets"]
    assert arena.reached == []
    if arena.kind == "bubblewrap":  # in a network of its own, without kernel modules that are rarely used
        assert {family for family, _, _ in created} <= {1, 2, 10, 16}
        assert {protocol for _, _, protocol in created} <= {0, 1, 6, 17, 58}
    else:
        assert created == [] or isinstance(created, str)


_PAIR = "import socket; a, b = socket.socketpair({}); "
REACHING = {
    "MPTCP": "import socket; socket.socket(2, 1, 262).connect(('127.0.0.1', TCP))",
    "MPTCP that listens": "import socket; s = socket.socket(2, 1, 262); s.bind(('0.0.0.0', 0)); s.listen(); s.x",
    "fast open": "import socket; socket.socket().sendto(b'x', 0x20000000, ('127.0.0.1', TCP))",
    "fast open without a connection": "import socket; s = socket.socket(); s.setsockopt(6, 30, 1); "
    "s.connect(('127.0.0.1', TCP)); s.send(b'x')",
    "fast open by sendmsg": "import socket; socket.socket().sendmsg([b'x'], [], 0x20000000, ('127.0.0.1', TCP))",
    "a datagram pair, sent elsewhere": _PAIR.format("1, 2") + "a.sendto(b'x', ROOT + '/unix-datagrams')",
    "a datagram pair by sendmsg": _PAIR.format("1, 2") + "a.sendmsg([b'x'], [], 0, ROOT + '/unix-datagrams')",
    "a datagram pair, reconnected": _PAIR.format("1, 2") + "a.connect(ROOT + '/unix-datagrams'); a.send(b'x')",
    "a stream pair, reconnected": _PAIR.format("1, 1") + "a.shutdown(2); a.connect(ROOT + '/unix')",
    "a pair of another family": "import socket; socket.socketpair(30, 1)",
    "io_uring": "syscall(425, 8, b'\\0' * 120)",
    "io_uring's other calls": "syscall(427, 0, 0, 0, 0)",
    "the 32-bit system calls": "syscall('socket' if NUMBERS['socket'] == 198 else 0x40000000 + 41, 2, 1, 262)",
    "another process's socket": "f = syscall(434, US, 0); syscall(438, f, 3, 0)",
}


async def test_no_other_way_reaches_the_network(arena: Arena) -> None:
    found = await arena.attempt(REACHING)
    own_network = {"MPTCP that listens"} if arena.kind == "bubblewrap" else set[str]()
    assert {name for name, result in found.items() if not result.startswith("error")} <= own_network
    assert arena.reached == []


_DESCRIPTORS = """
import stat
result = []
for fd in range(3, 1024):
    try:
        result.append((fd, stat.S_IFMT(os.fstat(fd).st_mode)))
    except OSError:
        pass
"""


async def test_no_descriptor_is_inherited(arena: Arena) -> None:
    found = (await arena.attempt({"descriptors": _DESCRIPTORS}))["descriptors"]
    assert [kind for _, kind in found if kind in (stat.S_IFSOCK, stat.S_IFDIR, stat.S_IFREG)] == []


_READABLE = "fd = os.open(PROGRAM, os.O_RDONLY); "
CHANGING_METADATA = {
    "chmod": "os.chmod(TARGET, 0o666)",
    "chmod by a relative path": "os.chmod(os.path.relpath(TARGET), 0o666)",
    "chmod below a descriptor": "d = os.open(ROOT, os.O_PATH); os.chmod('key', 0o666, dir_fd=d)",
    "chmod through a link": "os.symlink(TARGET, 'link'); os.chmod('link', 0o666)",
    "chmod through a folder that is a link": "os.symlink(ROOT, 'top'); os.chmod('top/key', 0o666)",
    "chmod of the folder around": "os.chmod(ROOT, 0o777)",
    "chmod from another folder": "os.chdir(ROOT); os.chmod('key', 0o666)",
    "chmod of a hard link": "os.link(TARGET, 'same'); os.chmod('same', 0o666)",
    "fchmodat2": "syscall(452, -100, TARGET.encode(), 0o666, 0)",
    "fchmodat2 without following": "syscall(452, -100, TARGET.encode(), 0o666, 0x100)",
    "fchmodat2 of a descriptor": "d = os.open(TARGET, os.O_PATH); syscall(452, d, b'', 0o666, 0x1000)",
    "fchmodat of a descriptor's link": "d = os.open(TARGET, os.O_PATH); os.chmod(f'/proc/self/fd/{d}', 0o666)",
    "chmod of a readable file": "os.chmod(PROGRAM, 0o666)",
    "fchmod of a readable file": _READABLE + "os.fchmod(fd, 0o666)",
    "fchmodat2 of a readable file": _READABLE + "syscall(452, fd, b'', 0o666, 0x1000)",
    "chmod of a readable file's link": _READABLE + "os.chmod(f'/proc/self/fd/{fd}', 0o666)",
    "utime": "os.utime(TARGET, (1, 1))",
    "utime to now": "os.utime(TARGET)",
    "utime below a descriptor": "d = os.open(ROOT, os.O_PATH); os.utime('key', (1, 1), dir_fd=d)",
    "utime without following": "os.utime(TARGET, (1, 1), follow_symlinks=False)",
    "utime through a link": "os.symlink(TARGET, 'link2'); os.utime('link2', (1, 1))",
    "utimensat of a descriptor": "d = os.open(TARGET, os.O_PATH); syscall('utimensat', d, b'', 0, 0x1000)",
    "futimens of a readable file": _READABLE + "os.utime(fd, (1, 1))",
    "touch": "import subprocess; subprocess.check_call(['touch', '-c', '-d', '2001-01-01', TARGET])",
    "setxattr": "os.setxattr(TARGET, 'user.x', b'1')",
    "lsetxattr": "os.setxattr(TARGET, 'user.x', b'1', follow_symlinks=False)",
    "fsetxattr of a readable file": _READABLE + "os.setxattr(fd, 'user.x', b'1')",
    "setxattrat": "import ctypes; a = (ctypes.c_uint64 * 2)(ctypes.addressof(ctypes.create_string_buffer(b'1')), 1); "
    "syscall(463, -100, TARGET.encode(), 0, b'user.x', a, 16)",
    "removexattr": "os.removexattr(TARGET, 'user.kept')",
    "lremovexattr": "os.removexattr(TARGET, 'user.kept', follow_symlinks=False)",
    "fremovexattr of a readable file": _READABLE + "os.removexattr(fd, 'user.kept')",
    "getxattr": "os.getxattr(TARGET, 'user.kept')",
    "chown": "os.chown(TARGET, os.getuid(), os.getgid())",
    "fchown of a readable file": _READABLE + "os.fchown(fd, os.getuid(), os.getgid())",
    "file attributes": "import fcntl, struct; " + _READABLE + "fcntl.ioctl(fd, 0x40086602, struct.pack('l', 0x80))",
    "file_setattr": "syscall(469, -100, TARGET.encode(), b'\\0' * 24, 24, 0)",
    "a notification": "i = syscall('inotify_init1', 0); import ctypes; assert "
    "ctypes.CDLL(None).inotify_add_watch(i, TARGET.encode(), 0xFFF) >= 0",
    "a file handle": "syscall('name_to_handle_at', -100, TARGET.encode(), b'\\x80' + b'\\0' * 139, b'\\0' * 8, 0)",
    "truncation": "os.truncate(TARGET, 0)",
}


async def test_metadata_outside_stays_as_it_is(arena: Arena) -> None:
    paths = (arena.key, arena.program, arena.root)
    for path in (arena.key, arena.program):
        os.setxattr(path, "user.kept", b"1")
    before = [_metadata(path) for path in paths]
    found = await arena.attempt({name: f"TARGET = KEY\n{code}" for name, code in CHANGING_METADATA.items()})
    assert [_metadata(path) for path in paths] == before
    own_root = {"chmod of the folder around", "touch"} if arena.kind == "bubblewrap" else set[str]()
    assert {name for name, result in found.items() if not str(result).startswith("error")} <= own_root


def _metadata(path: Path) -> tuple[object, ...]:
    info = os.stat(path)
    return info.st_mode, info.st_uid, info.st_gid, info.st_mtime_ns, info.st_atime_ns, sorted(os.listxattr(path))


_OWN_FILES = """
open('mine', 'w').write('x')
os.chmod('mine', 0o640)
os.utime('mine', (5, 7))
fd = os.open('mine', os.O_RDWR)
os.fchmod(fd, 0o600)
os.utime(fd, (5, 6))
os.symlink('mine', 'mine-link')
os.utime('mine-link', (1, 1), follow_symlinks=False)
os.mkdir('folder')
os.chmod('folder', 0o711)
d = os.open('folder', os.O_RDONLY)
open('folder/inner', 'w').close()
os.chmod('inner', 0o755, dir_fd=d)
os.chown('mine', os.getuid(), os.getgid())
info = os.stat('mine')
result = [info.st_mode & 0o777, int(info.st_mtime), os.stat('folder/inner').st_mode & 0o777]
"""


async def test_metadata_of_own_files_can_be_changed(arena: Arena) -> None:
    if arena.kind != "wasm":
        assert (await arena.attempt({"own": _OWN_FILES}))["own"] == [0o600, 6, 0o755]


TOUCHING_PROCESSES = {
    "prlimit": "import resource; resource.prlimit(VICTIM, resource.RLIMIT_CPU, (1, 1))",
    "prlimit of files": "import resource; resource.prlimit(VICTIM, resource.RLIMIT_NOFILE, (3, 3))",
    "prlimit of the test process": "import resource; resource.prlimit(US, resource.RLIMIT_STACK, (1 << 20, 1 << 20))",
    "prlimit of its parent": "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0)); PID1",
    "prlimit with a wide process ID": "syscall('prlimit64', VICTIM + (1 << 32), 0, b'\\1' + b'\\0' * 15, 0)",
    "sched_setaffinity": "os.sched_setaffinity(VICTIM, {0})",
    "sched_setscheduler": "os.sched_setscheduler(VICTIM, os.SCHED_IDLE, os.sched_param(0))",
    "sched_setparam": "syscall('sched_setparam', VICTIM, b'\\0' * 4)",
    "sched_setattr": "syscall('sched_setattr', VICTIM, bytes([48, 0, 0, 0, 5]) + b'\\0' * 43, 0)",
    "setpriority": "os.setpriority(os.PRIO_PROCESS, VICTIM, 19)",
    "setpriority of a group": "os.setpriority(os.PRIO_PGRP, VICTIM, 19)",
    "setpriority of its own group": "os.setpriority(os.PRIO_PGRP, 0, 19)",
    "setpriority of the user": "os.setpriority(os.PRIO_USER, os.getuid(), 19)",
    "ioprio_set": "syscall('ioprio_set', 1, VICTIM, 3 << 13)",
    "ioprio_set of the user": "syscall('ioprio_set', 3, os.getuid(), 3 << 13)",
    "kill": "os.kill(VICTIM, 9)",
    "kill of a group": "os.killpg(VICTIM, 9)",
    "tgkill": "syscall('tgkill', VICTIM, VICTIM, 9)",
    "tkill": "syscall('tkill', VICTIM, 9)",
    "rt_sigqueueinfo": "syscall('rt_sigqueueinfo', VICTIM, 15, b'\\xff' * 12 + b'\\0' * 116)",
    "pidfd_open": "syscall(434, VICTIM, 0)",
    "pidfd_send_signal": "f = syscall(434, VICTIM, 0); syscall(424, f, 9, 0, 0)",
    "pidfd_send_signal by /proc": "f = os.open(f'/proc/{VICTIM}', os.O_RDONLY); syscall(424, f, 9, 0, 0)",
    "pidfd_getfd": "f = syscall(434, VICTIM, 0); syscall(438, f, 0, 0)",
    "process_madvise": "f = syscall(434, VICTIM, 0); syscall(440, f, b'\\0' * 16, 1, 20, 0)",
    "process_mrelease": "f = syscall(434, VICTIM, 0); syscall(448, f, 0)",
    "process_vm_readv": "syscall('process_vm_readv', VICTIM, b'\\0' * 16, 1, b'\\0' * 16, 1, 0)",
    "process_vm_writev": "syscall('process_vm_writev', VICTIM, b'\\0' * 16, 1, b'\\0' * 16, 1, 0)",
    "ptrace attach": "syscall('ptrace', 16, VICTIM, 0, 0)",
    "ptrace seize": "syscall('ptrace', 0x4206, VICTIM, 0, 0)",
    "kcmp": "syscall('kcmp', VICTIM, VICTIM, 1, 0, 0)",
    "get_robust_list": "syscall('get_robust_list', VICTIM, b'\\0' * 8, b'\\0' * 8)",
    "migrate_pages": "syscall('migrate_pages', VICTIM, 64, b'\\0' * 8, b'\\1' + b'\\0' * 7)",
    "move_pages": "syscall('move_pages', VICTIM, 0, 0, 0, 0, 0)",
    "its memory": "open(f'/proc/{VICTIM}/mem', 'r+b').read(1)",
    "its environment": "open(f'/proc/{VICTIM}/environ').read()",
    "its descriptors": "os.listdir(f'/proc/{VICTIM}/fd')",
    "its files": "open(f'/proc/{VICTIM}/root{KEY}').read()",
    "its score": "open(f'/proc/{VICTIM}/oom_score_adj', 'w').write('1000')",
    "its name": "open(f'/proc/{VICTIM}/comm', 'w').write('x')",
    "its group": "os.setpgid(VICTIM, 0)",
    "a signal by an owner of a pipe": "import fcntl; r, w = os.pipe(); fcntl.fcntl(r, 8, VICTIM); "
    "fcntl.fcntl(r, 10, 9); fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK); os.write(w, b'x'); NONE",
    "a queue for others": "syscall('mq_open', b'atlas', 0o102, 0o600, 0)",
    "memory for others": "syscall('shmget', 7, 4096, 0o1600)",
    "semaphores for others": "syscall('semget', 7, 1, 0o1600)",
}
OWN_PROCESS = {
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50)); "
    "resource.prlimit(0, resource.RLIMIT_CORE)",
    "affinity": "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "priority": "os.setpriority(os.PRIO_PROCESS, 0, 5); os.nice(1)",
    "signals": "import signal; signal.signal(10, lambda *a: None); os.kill(os.getpid(), 10)",
    "child processes": "import subprocess, signal; p = subprocess.Popen(['sleep', '50']); p.kill(); p.wait()",
    "threads": "import threading; t = threading.Thread(target=print); t.start(); t.join()",
}


async def test_other_processes_cannot_be_touched(arena: Arena) -> None:
    before, own = _process_state(arena.victim.pid), _process_state(os.getpid())
    found = await arena.attempt(TOUCHING_PROCESSES)
    assert arena.victim.poll() is None
    assert _process_state(arena.victim.pid) == before
    assert _process_state(os.getpid()) == own
    assert {name for name, result in found.items() if not str(result).startswith("error")} == set()


async def test_own_processes_can_be_managed(arena: Arena) -> None:
    if arena.kind != "wasm":
        assert set((await arena.attempt(OWN_PROCESS)).values()) == {"done"}


def _process_state(pid: int) -> tuple[object, ...]:
    return (
        *(Path(f"/proc/{pid}/{name}").read_text() for name in ("limits", "oom_score_adj", "comm")),
        os.sched_getaffinity(pid),
        os.sched_getscheduler(pid),
        os.getpriority(os.PRIO_PROCESS, pid),
        os.getpgid(pid),
    )
