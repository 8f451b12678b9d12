"""Attacks on every sandbox of this machine, as root and as an unprivileged user.

An approval request claims what a sandbox prevents. For each claim there is a function that runs the attacks which would
disprove it.
"""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from attacker import BACKENDS, USERS, Arena
from calling_tools import Person, call
from code_harness import SANDBOXES

from atlas_agents.builtin_tools.bash import bash_tool
from atlas_agents.builtin_tools.code.tool import CodeInterpreter, code_tool
from atlas_agents.builtin_tools.sandbox import SandboxKind
from checks import linux_only

pytestmark = linux_only


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


_PAIR = "import socket; a, b = socket.socketpair({}); "
_IN_A_CHILD = """
child = os.fork()
if not child:
    try:
        %s
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
"""
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
    "the 32-bit system calls": _IN_A_CHILD  # which may be killed for it
    % "syscall('socket' if NUMBERS['socket'] == 198 else 0x40000000 + 41, 2, 1, 262)",
    "another process's socket": "f = syscall(434, US, 0); syscall(438, f, 3, 0)",
}


_DESCRIPTORS = """
import stat
result = []
for fd in range(3, 1024):
    try:
        result.append((fd, stat.S_IFMT(os.fstat(fd).st_mode)))
    except OSError:
        pass
"""


async def disprove_no_network(arena: Arena) -> None:
    """Try every family, type and protocol that the kernel offers, fast open, io_uring and inherited descriptors."""
    found = await arena.attempt({"sockets": _EVERY_SOCKET, "descriptors": _DESCRIPTORS, **REACHING})
    created, descriptors = found.pop("sockets"), found.pop("descriptors")
    assert arena.reached == []
    if arena.kind == "bubblewrap":  # in a network of its own, without protocols that are rarely used
        assert {family for family, _, _ in created} <= {1, 2, 10, 16}
        assert {protocol for _, _, protocol in created} <= {0, 1, 6, 17, 58}
    else:
        assert created == [] or str(created).startswith("error")
    assert _successes(found) == set()
    assert [kind for _, kind in descriptors if kind in (stat.S_IFSOCK, stat.S_IFDIR, stat.S_IFREG)] == []


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
    "a lease": "import fcntl; " + _READABLE + "fcntl.fcntl(fd, 1024, fcntl.F_RDLCK)",
    "a notification of a folder": "import fcntl; fcntl.fcntl(os.open('/usr/bin', os.O_RDONLY), 1026, 0x3F)",
    "chmod of a device": "os.chmod('/dev/null', 0o666)",
    "fchmod of a device": "os.fchmod(os.open('/dev/null', os.O_RDWR), 0o666)",
    "utime of a device": "os.utime('/dev/zero', (1, 1))",
    "chmod of standard input": "os.fchmod(0, 0o666)",
}


CHANGING = {
    "a file": "open(KEY, 'w').write('x')",
    "a file through a link": "os.symlink(KEY, 'to-key'); open('to-key', 'a').write('x')",
    "a file by renaming": "os.rename(KEY, KEY + '2')",
    "a file by another's name": "open('other', 'w').write('x'); os.rename('other', KEY)",
    "a file by deleting it": "os.remove(KEY)",
    "a file by a new one beside it": "open(ROOT + '/new', 'w').write('x')",
    "a folder": "os.mkdir(ROOT + '/folder')",
    "a link": "os.symlink('x', ROOT + '/link')",
    "a program": "open(PROGRAM, 'a').write('x')",
    "a program by opening it again": "fd = os.open(PROGRAM, os.O_RDONLY); open(f'/proc/self/fd/{fd}', 'a').write('x')",
    "a program by mapping it": "import mmap; f = os.open(PROGRAM, os.O_RDWR); mmap.mmap(f, 1)[0:1] = b'x'",
    "the system": "open('/usr/bin/evil', 'w').write('x')",
    "the settings of the system": "open('/etc/evil', 'w').write('x')",
    "the kernel's settings": "open('/proc/sys/kernel/hostname', 'w').write('evil')",
    "the program for core dumps": "open('/proc/sys/kernel/core_pattern', 'r+')",
    "the program that loads modules": "open('/proc/sys/kernel/modprobe', 'r+')",
    "the machine's state": "open('/proc/sysrq-trigger', 'r+')",
    "a device": "os.mknod('device', 0o60600, os.makedev(254, 0))",
    "a set-user-ID file": "open('mine', 'w').close(); os.chmod('mine', 0o4755)",
    "a set-user-ID file by its descriptor": "fd = os.open('mine', os.O_RDWR | os.O_CREAT); os.fchmod(fd, 0o6755)",
    "a set-user-ID file by fchmodat2": "syscall(452, -100, b'mine', 0o4755, 0)",
    "the mounts": "syscall('mount', b'none', ROOT.encode(), b'tmpfs', 0, 0)",
    "its namespaces": "syscall('unshare', 0x10000000)",
    "its namespaces by a new process": "syscall('clone', 0x10000000 | 17, 0, 0, 0, 0)",
    "its namespaces by clone3": "syscall(435, b'\\0\\0\\0\\x10' + b'\\0' * 84, 88)",
    "the machine's name": "import socket; socket.sethostname('evil')",
    "the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
    "swap": "syscall('swapoff', b'/swap')",
}


async def disprove_can_write_only_to_its_folder(arena: Arena) -> None:
    """Try to change the content, names and metadata of files elsewhere, and the system."""
    for path in (arena.key, arena.program):
        os.setxattr(path, "user.kept", b"1")
    before = _outside(arena)
    attempts = {**CHANGING_METADATA, **CHANGING}
    found = await arena.attempt({name: f"TARGET = KEY\n{code}" for name, code in attempts.items()})
    assert _outside(arena) == before
    own_root = {"touch", "chmod of the folder around", *(name for name in CHANGING if name.startswith("a f"))}
    own_root |= {"a folder", "a link"}  # of the same name, in the sandbox's own /tmp
    assert _successes(found) <= (own_root if arena.kind == "bubblewrap" else set())


def _outside(arena: Arena) -> list[object]:
    """Return everything beside the workspace, and files in it that would outlive the sandbox."""
    beside = [arena.root, *sorted(p for p in arena.root.rglob("*") if not p.is_relative_to(arena.workspace))]
    dangerous = [p for p in arena.workspace.rglob("*") if p.lstat().st_mode & 0o6000 or p.is_block_device()]
    content = [path.read_text() for path in (arena.key, arena.program)]
    return [*((path, _metadata(path)) for path in beside), *dangerous, *content, os.uname().nodename]


def _metadata(path: Path) -> tuple[object, ...]:
    info = os.stat(path)
    return info.st_mode, info.st_uid, info.st_gid, info.st_mtime_ns, info.st_size, sorted(os.listxattr(path))


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


PROTECTED = {"masked": ["project/.ssh", ".ssh", "project/.env"], "read_only": ["project/.git", ".git", "AGENTS.md"]}
_EVIL = "open('evil', 'w').write('evil'); "
_MOVE = """
try:
    os.rename('project', 'moved')
except OSError:
    pass
P = 'moved' if os.path.exists('moved') else 'project'
"""
CHANGING_PROTECTED = {
    "a key in a moved folder": _MOVE + "result = open(P + '/.ssh/k').read()",
    "a key in a moved folder, by its folder": _MOVE
    + "d = os.open(P + '/.ssh', os.O_PATH); result = os.read(os.open('k', 0, dir_fd=d), 99)",
    "a key in a moved folder, as a link": _MOVE + "os.link(P + '/.ssh/k', 'x'); result = open('x').read()",
    "a key in an exchanged folder": "os.mkdir('other'); syscall('renameat2', -100, b'other', -100, b'project', 2); "
    "result = open('other/.ssh/k').read()",
    "a key, moved": "os.rename('.ssh/k', 'k'); result = open('k').read()",
    "a key, as a hard link": "os.link('.ssh/k', 'hard'); result = open('hard').read()",
    "a folder of keys, moved": "os.rename('.ssh', 'keys'); result = open('keys/k').read()",
    "settings in a moved folder": _MOVE + "open(P + '/.git/config', 'w').write('evil')",
    "a hook in a moved folder": _MOVE + "open(P + '/.git/hooks/pre-commit', 'w').write('evil')",
    "a hook, as a symbolic link": _EVIL + "os.symlink('../../evil', '.git/hooks/post-commit')",
    "a hook, as a hard link": _EVIL + "os.link('evil', '.git/hooks/post-merge')",
    "a hook, moved there": _EVIL + "os.rename('evil', '.git/hooks/pre-push')",
    "a hook, through a link to its folder": _EVIL
    + "os.symlink('.git/hooks', 'h'); os.symlink('../../evil', 'h/pre-rebase')",
    "a folder of hooks": "os.mkdir('.git/more')",
    "a pipe as a hook": "os.mkfifo('.git/hooks/pipe')",
    "a file as a hook": "os.mknod('.git/hooks/file', 0o100755)",
    "a hook by creat": "assert os.uname().machine == 'x86_64'; syscall(85, b'.git/hooks/update', 0o755)",
    "a prompt, emptied by creat": "assert os.uname().machine == 'x86_64'; syscall(85, b'AGENTS.md', 0o644)",
    "a prompt, emptied by creat through a link": "assert os.uname().machine == 'x86_64'; "
    "os.symlink('AGENTS.md', 'name'); syscall(85, b'name', 0o644)",
    "a prompt, truncated": "os.truncate('AGENTS.md', 0)",
    "a prompt, replaced": _EVIL + "os.replace('evil', 'AGENTS.md')",
    "a prompt, removed": "os.remove('AGENTS.md')",
    "a file in another user's folder": "os.remove('theirs/file')",
    "a file of another user, truncated": "os.truncate('theirs/file', 0)",
    "a file of another user, written": "open('theirs/file', 'a').write('x')",
    "a new file in another user's folder": "open('theirs/new', 'w').close()",
    "a new folder in another user's folder": "os.mkdir('theirs/folder')",
}
_RACE = """
import ctypes, threading, time
libc = ctypes.CDLL(None, use_errno=True)
SIZE = 16
def race(harmless, protected, call):
    path, done = ctypes.create_string_buffer(SIZE), threading.Event()
    def exchange():
        while not done.is_set():
            ctypes.memmove(path, harmless.ljust(SIZE, b"\\0"), SIZE)
            ctypes.memmove(path, protected.ljust(SIZE, b"\\0"), SIZE)
    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        open("file", "w").close()
        os.makedirs("folder", exist_ok=True)
        call(path)
    done.set()
    thread.join()
result = []
def link(path):
    if libc.linkat(-100, path, -100, b"copy", 0) == 0:
        result.append(open("copy").read())
        os.remove("copy")
race(b"file", b".ssh/k", link)
race(b"file", b"AGENTS.md", lambda path: libc.truncate(path, 0))
race(b"file", b".git/config", lambda path: libc.unlinkat(-100, path, 0))
race(b"folder", b".git/hooks", lambda path: libc.renameat(-100, path, -100, b"folder2"))
race(b"s", b".git/hooks/x", lambda path: libc.symlinkat(b"/evil", -100, path) or libc.unlinkat(-100, b"s", 0))
result = "".join(result)
"""


def _put_protected(arena: Arena) -> None:
    for name in ("project/.ssh/k", ".ssh/k", "project/.env"):
        (arena.workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (arena.workspace / name).write_text(arena.canary)
    for name in ("project/.git/config", ".git/config", "AGENTS.md"):
        (arena.workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (arena.workspace / name).write_text("before")
    for name in ("project/.git/hooks", ".git/hooks"):
        (arena.workspace / name).mkdir()
    for path in arena.workspace.rglob("*"):
        os.chown(path, arena.uid, -1)
    theirs = arena.workspace / "theirs"
    theirs.mkdir()
    (theirs / "file").touch()
    for path in (theirs / "file", theirs):
        if os.geteuid() == 0:
            os.chown(path, 1 if arena.uid == 0 else 0, -1)
        else:
            path.chmod(0o500)


async def test_protected_paths_cannot_be_moved_replaced_or_added_to(arena: Arena) -> None:
    _put_protected(arena)
    attempts = {**CHANGING_PROTECTED, "a path that changes after it was checked": _RACE}
    found = await arena.attempt(attempts, protected=PROTECTED)
    assert arena.canary not in str(found)
    root = arena.workspace
    project = root / ("moved" if (root / "moved").exists() else "project")  # with its mounts, in bubblewrap
    for folder in (root, project):
        assert sorted(str(path.relative_to(folder)) for path in (folder / ".git").rglob("*")) == [
            ".git/config",
            ".git/hooks",
        ]
        assert (folder / ".git/config").read_text() == "before"
        assert (folder / ".ssh/k").read_text() == arena.canary
    assert (root / "AGENTS.md").read_text() == "before"
    assert _successes(found) <= {"a path that changes after it was checked"}


_NAMES = """
import subprocess
def sh(command):
    done = subprocess.run(["sh", "-ec", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
here = os.getcwd()
sh(f"mkdir -p {here}/a/b project/sub {here}; mkdir c/; mv a/b c/; mv c/ d; mkdir -p .git; rm -f {here}/../nothing")
open("one", "w").write("1")
os.link("one", "two"); os.rename("two", "d/three"); os.symlink("one", "link"); os.link("link", "link2")
os.replace("d/three", "three"); os.truncate("three", 5); os.mkfifo("pipe", 0o640)
os.umask(0o077); os.mkdir("closed"); os.umask(0o002); os.mkdir("open", 0o775)
fd = os.open(".", os.O_TMPFILE | os.O_RDWR); os.write(fd, b"x")
os.link(f"/proc/self/fd/{fd}", "linked", dst_dir_fd=os.open(".", os.O_RDONLY), follow_symlinks=True)
syscall("renameat2", -100, b"closed", -100, b"open", 2)
errors = []
for call in (lambda: os.mkdir("one"), lambda: os.rmdir("d"), lambda: os.unlink("nowhere"), lambda: os.unlink("d"),
             lambda: os.rename("nowhere", "x"), lambda: os.mkdir(""), lambda: os.truncate("one", 1 << 40),
             lambda: os.mkdir("no/where"), lambda: os.rename("one/", "x"), lambda: os.link("/usr", "usr")):
    try:
        call()
        errors.append(0)
    except OSError as error:
        errors.append(error.errno)
modes = [os.lstat(name).st_mode & 0o777 for name in ("closed", "open", "pipe")]
sh("rm -r d project/sub link link2 linked pipe closed open")
result = [sorted(os.listdir(".")), open("one").read(), modes, errors]
"""


async def test_names_can_be_changed_beside_protected_ones(arena: Arena) -> None:
    _put_protected(arena)
    found: Any = (await arena.attempt({"own": _NAMES}, protected=PROTECTED))["own"]
    names, content, modes, errors = cast(list[Any], found) if isinstance(found, list) else pytest.fail(found)
    assert names == [".git", ".ssh", "AGENTS.md", "a", "one", "project", "theirs", "three"]
    assert content == "1\0\0\0\0"
    assert modes == [0o775, 0o700, 0o640]
    codes = [errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT, errno.EISDIR, errno.ENOENT, errno.ENOENT, errno.EFBIG]
    codes += [errno.ENOENT, errno.ENOTDIR]
    assert errors[:-1] == codes and errors[-1] in (errno.EPERM, errno.EXDEV)


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


async def disprove_cannot_change_other_processes(arena: Arena) -> None:
    before, own = _process_state(arena.victim.pid), _process_state(os.getpid())
    found = await arena.attempt(TOUCHING_PROCESSES)
    assert arena.victim.poll() is None
    assert _process_state(arena.victim.pid) == before
    assert _process_state(os.getpid()) == own
    assert _successes(found) == set()


READING = {
    "a file": "result = open(KEY).read()",
    "a file through a link": "os.symlink(KEY, 'read'); result = open('read').read()",
    "a file through a hard link": "os.link(KEY, 'hard'); result = open('hard').read()",
    "a file below a descriptor": "d = os.open(ROOT, os.O_PATH); result = os.read(os.open('key', 0, dir_fd=d), 99)",
    "a file opened again": "d = os.open(KEY, os.O_PATH); result = open(f'/proc/self/fd/{d}').read()",
    "a file by openat2": "result = os.read(syscall(437, -100, KEY.encode(), b'\\0' * 24, 24), 99)",
    "a file by its handle": "syscall('name_to_handle_at', -100, KEY.encode(), b'\\x80' + b'\\0' * 139, b'\\0' * 8, 0)",
    "a file by executing it": "os.execv(KEY, ['x'])",
    "the names in a folder": "result = os.listdir(ROOT)",
    "a file by moving it here": "os.rename(KEY, 'moved'); result = open('moved').read()",
    "a file through a process": "result = open(f'/proc/{VICTIM}/root{KEY}').read()",
    "an environment": "result = open(f'/proc/{US}/environ').read()",
    "the environment of its parent": "result = open(f'/proc/{os.getppid()}/environ').read()",
    "the passwords": "result = open('/etc/shadow').read()",
    "the users": "result = open('/etc/passwd').read()",
    "the keys of the machine": "result = os.listdir('/etc/ssh') + os.listdir('/root') + os.listdir('/home')",
    "the kernel's log": "result = open('/dev/kmsg').read(1)",
    "memory": "result = open('/dev/mem', 'rb').read(1)",
    "keyrings": "syscall('keyctl', 0, -3, 1)",
    "names of keys": "assert open('/proc/keys').read()",
    "users of keys": "assert open('/proc/key-users').read()",
    "timers of the machine": "assert open('/proc/timer_list').read(1)",
    "performance counters": "syscall('perf_event_open', b'\\0' * 128, VICTIM, -1, -1, 0)",
    "BPF programs": "syscall('bpf', 11, b'\\0' * 128, 128)",
    "notifications of the file system": "syscall('fanotify_init', 0, 0)",
}


async def disprove_can_read_only_its_folder_and_programs(arena: Arena) -> None:
    found = await arena.attempt(READING)
    assert arena.canary not in str(found)
    assert "root:" not in str(found)
    own_root = {"the names in a folder", "the environment of its parent"}
    assert _successes(found) <= (own_root if arena.kind != "landlock" else set())
    assert "key" not in found["the names in a folder"]


CLAIMS = {
    "no network": disprove_no_network,
    "can write only to FOLDER": disprove_can_write_only_to_its_folder,
    "can read only there and installed programs": disprove_can_read_only_its_folder_and_programs,
    "cannot change other processes": disprove_cannot_change_other_processes,
}
_LOOKING = {
    "whether a file exists elsewhere": "assert os.path.exists(KEY) and not os.path.exists(KEY + '2')",
    "its size, owner, mode and times": "assert os.stat(KEY).st_size == 23; os.stat(KEY).st_uid",
    "where a link points": "assert os.readlink(ROOT + '/pointer') == 'nowhere'",
    "which processes run": "os.getpgid(VICTIM)",
}


@pytest.mark.parametrize("claim", CLAIMS)
async def test_claim_of_the_approval_request_holds(arena: Arena, claim: str) -> None:
    await CLAIMS[claim](arena)


_DEEP = "1/2/3/4/5/6/7"


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_keys_and_repositories_that_a_command_moved_away_stay_protected(
    kind: SandboxKind, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name / ".git/hooks").mkdir(parents=True)
        (tmp_path / name / ".env").write_text("canary")
    tools, person = [bash_tool(tmp_path, sandbox=kind)], Person(True)
    command = f"mkdir -p {_DEEP} node_modules; mv a {_DEEP}/a; mv b node_modules/b; mv c .venv"
    await call(tools, "bash", person, command=command)
    (tmp_path / _DEEP / "x/.ssh").mkdir(parents=True)
    (tmp_path / _DEEP / "x/.ssh/id").write_text("canary")
    command = "find . -name .env -exec cat {} +; find . -name hooks -exec touch {}/evil \\;; "
    result = await call(tools, "bash", person, command=command + f"cat {_DEEP}/x/.ssh/id; echo tried")
    assert "tried" in str(result.result) and "canary" not in str(result.result)
    assert "evil" not in {name for _, _, names in os.walk(tmp_path) for name in names}


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_protected_link_stays_or_its_replacement_is_reported(kind: SandboxKind, tmp_path: Path) -> None:
    outside = tmp_path / "repository"
    workspace = tmp_path / "work"
    for folder in (outside, workspace / "shared"):
        folder.mkdir(parents=True)
    (workspace / "shared/CLAUDE.md").write_text("before")
    (workspace / "CLAUDE.md").symlink_to("shared/CLAUDE.md")
    (workspace / ".git").symlink_to(outside)
    command = "rm CLAUDE.md .git; echo evil > CLAUDE.md; mkdir .git; ln -sfn shared .git; echo tried"
    result = str((await call([bash_tool(workspace, sandbox=kind)], "bash", Person(True), command=command)).result)
    assert "tried" in result
    assert (workspace / "shared/CLAUDE.md").read_text() == "before"
    unchanged = (workspace / "CLAUDE.md").is_symlink() and (workspace / ".git").readlink() == outside
    assert unchanged is (kind == "landlock")
    assert ("trust or run: .git, CLAUDE.md; tell" in result) is (kind == "bubblewrap")


async def test_folder_with_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atlas_agents.builtin_tools.bash._MAX_ENTRIES", 3)
    for name in "abcd":
        (tmp_path / name).touch()
    result = await call([bash_tool(tmp_path)], "bash", Person(True), command="ls")
    assert result.status == "error" and "keys among them cannot be hidden" in str(result.result)


@pytest.mark.parametrize("kind", SANDBOXES)
async def test_approval_request_makes_exactly_the_claims_that_are_tested(kind: SandboxKind, tmp_path: Path) -> None:
    person = Person(False)
    await call([code_tool(CodeInterpreter(tmp_path, sandbox=kind))], "code_interpreter", person, code="1")
    await call([bash_tool(tmp_path, sandbox=kind)], "bash", person, command="ls")
    for question in person.questions:
        lines = question.preview.splitlines()
        claims = lines[0].replace(f"{tmp_path}/code", "FOLDER").replace(str(tmp_path), "FOLDER")
        assert claims.partition("(")[2].removesuffix(")").split("; ") == list(CLAIMS)
        hidden = [line.removeprefix("Not hidden: ") for line in lines if line.startswith("Not hidden: ")]
        assert hidden == (["; ".join(_LOOKING)] if kind == "landlock" else [])


async def test_own_files_and_processes_can_be_changed_and_the_request_says_what_is_not_hidden(arena: Arena) -> None:
    (arena.root / "pointer").symlink_to("nowhere")
    assert len(arena.canary) == 23
    found = await arena.attempt({"own": _OWN_FILES, **_LOOKING, **OWN_PROCESS})
    assert found.pop("own") == [0o600, 6, 0o755]
    assert {found.pop(name) for name in OWN_PROCESS} == {"done"}
    assert _successes(found) == (set(_LOOKING) if arena.kind == "landlock" else set())


def _successes(found: dict[str, object]) -> set[str]:
    return {name for name, result in found.items() if not str(result).startswith("error")}


def _process_state(pid: int) -> tuple[object, ...]:
    return (
        *(Path(f"/proc/{pid}/{name}").read_text() for name in ("limits", "oom_score_adj", "comm")),
        os.sched_getaffinity(pid),
        os.sched_getscheduler(pid),
        os.getpriority(os.PRIO_PROCESS, pid),
        os.getpgid(pid),
    )


WRITING = {
    "many files": "import itertools\nfor n in itertools.count(): open(f'{n}', 'wb').write(b'x' * (1 << 20))",
    "one file": "f = open('one', 'wb')\nwhile True: f.write(b'x' * (1 << 20))",
    "a file again and again": "while True:\n  f = open('one', 'wb')\n  for n in range(8): f.write(b'x' * (1 << 20))",
    "deleted files": "import os\nkept = []\nwhile True:\n  kept.append(f := open('gone', 'wb')); os.remove('gone')\n"
    "  for n in range(8): f.write(b'x' * (1 << 20))",
    "deleted files of children that are not waited for": "import os, signal\n"
    "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    "kept = []\nwhile True:\n  kept.append(f := open('gone', 'wb', buffering=0)); os.remove('gone')\n"
    "  if not (pid := os.fork()):\n    for n in range(8): f.write(b'x' * (1 << 20))\n    os._exit(0)\n"
    "  try: os.waitpid(pid, 0)\n  except OSError: pass",
    "reserved space": "import ctypes, os\nkept = []\nwhile True:\n"
    "  kept.append(f := open('gone', 'wb')); os.remove('gone')\n"
    "  if ctypes.CDLL(None).posix_fallocate(f.fileno(), ctypes.c_long(0), ctypes.c_long(8 << 20)): raise OSError",
    "a mapped file": "import mmap, os\nkept = []\nwhile True:\n  f = open('map', 'w+b'); f.truncate(8 << 20); "
    "m = mmap.mmap(f.fileno(), 0); m.write(b'x' * (8 << 20)); f.close(); os.remove('map')",
}


def _written() -> Iterator[tuple[str, str]]:
    """Yield every way in every sandbox; the users take turns, since the sandbox counts what is written."""
    for number, way in enumerate(WRITING):
        for backend in BACKENDS:
            if backend.endswith(f" {USERS[number % len(USERS)]}"):
                yield backend, way


@pytest.mark.parametrize(("arena", "way"), list(_written()), indirect=["arena"])
async def test_total_of_what_is_written_is_limited(arena: Arena, way: str) -> None:
    limits = {"written": 32_000_000, "disk": None, "file_size": 16_000_000, "seconds": 30, "cpu": 30}
    before = os.statvfs(arena.root)
    result = await arena.run(WRITING[way], limits=limits)
    used = (before.f_bavail - os.statvfs(arena.root).f_bavail) * before.f_frsize
    refused = ("File too large", "Too many open files")  # descriptors are limited, too
    assert result["stopped_by"] == "disk" or any(error in result["output"] for error in refused), result
    assert used < 2_000_000_000
    assert all(path.stat().st_size <= 16_000_000 for path in arena.workspace.iterdir())
