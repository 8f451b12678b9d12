"""What hostile code tries, and does not get: files, environments, processes, the network, the system."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from code_desk import SANDBOXES, Desk, is_unlocked

from checks import until

_TRY = "\n    try: {}\n    except OSError: pass"
READING = {
    "a file": "open(OUTSIDE).read()",
    "a file, by many dots": "open('../../../' * 20 + OUTSIDE).read()",
    "the .env of the workspace": "open('../../.env').read()",
    "through a link": "import os; os.symlink(OUTSIDE, 'way'); open('way').read()",
    "through a link to a folder": "import os; os.symlink('/', 'top'); open('top' + OUTSIDE).read()",
    "through a hard link": "import os; os.link(OUTSIDE, 'same'); open('same').read()",
    "by a library's own open": "import ctypes, os; os.read(ctypes.CDLL(None).open(OUTSIDE.encode(), 0), 99)",
    "with cat": "import subprocess; subprocess.run(['cat', OUTSIDE], capture_output=True).stdout",
    "everywhere": "import os; [open(f'{w}/outside.txt').read() for w, _, n in os.walk('/') if 'outside.txt' in n]",
    "/etc/shadow": "open('/etc/shadow').read()",
    "the names beside the workspace": "import os; os.listdir(os.path.dirname(OUTSIDE))",
    "its environment": "import os; dict(os.environ)",
    "its environment as the system has it": "open('/proc/self/environ').read()",
    "the environment of the first process": "open('/proc/1/environ').read()",
    "the environment of its parent": "import os; open(f'/proc/{os.getppid()}/environ').read()",
    "the environment of who started it": "open(f'/proc/{US}/environ').read()",
    "all environments": "for pid in range(1, 500):" + _TRY.format("print(open(f'/proc/{pid}/environ').read())"),
    "through the root of another process": "open('/proc/1/root' + OUTSIDE).read()",
    "through the folder of its parent": "import os; open(f'/proc/{os.getppid()}/cwd/../outside.txt').read()",
    "through what was left open": "import os\nfor fd in range(3, 100):" + _TRY.format("print(os.pread(fd, 999, 0))"),
    "through links to what was left open": "import os\nfor fd in range(3, 100):"
    + _TRY.format("print(os.readlink(f'/proc/self/fd/{fd}'))"),
    "through names left open": "import os\nfor fd in range(3, 100):" + _TRY.format("print(os.listdir(fd))"),
    "in the frames around it": "import sys\nf = sys._getframe()\nwhile f: print(f.f_globals, f.f_locals); f = f.f_back",
    "in all that is in memory": "import gc; [str(o)[:9999] for o in gc.get_objects() if 'canary-' in str(o)[:9999]]",
    "in the memory of its parent": "import os; open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "in the memory of who started it": "open(f'/proc/{US}/mem', 'rb').read(1)",
    "in the machine's memory": "open('/dev/mem', 'rb').read(1)",
    "on the disk itself": "import glob; [open(n, 'rb').read(1) for n in glob.glob('/dev/[svn][dv]*')] or 1/0",
    "in the kernel's log": "open('/dev/kmsg').read(1)",
    "the way out of a closed room": "import os; os.chroot('.'); os.chdir('../' * 50); open(OUTSIDE).read()",
}
_CONNECT = (
    "import socket; s = socket.socket(socket.AF_{}, socket.SOCK_{}); s.settimeout(2); s.connect({}); s.send(b'x')"
)
REACHING = {
    "TCP": _CONNECT.format("INET", "STREAM", "('127.0.0.1', TCP)"),
    "TCP by a name": _CONNECT.format("INET", "STREAM", "('localhost', TCP)"),
    "UDP": _CONNECT.format("INET", "DGRAM", "('127.0.0.1', UDP)"),
    "UDP without connecting": "import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.1', UDP))",
    "a Unix socket": _CONNECT.format("UNIX", "STREAM", "SOCKET"),
    "IPv6": _CONNECT.format("INET6", "STREAM", "('::1', TCP)"),
    "a raw socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "packets": "import socket; socket.socket(17, socket.SOCK_RAW)",
    "the host of a virtual machine": "import socket; socket.socket(40, socket.SOCK_STREAM).connect((2, 22))",
    "a name server": "import socket; socket.getaddrinfo('example.com', 80)",
    "HTTP": "import urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{TCP}', timeout=2)",
    "HTTP with a program": "import subprocess; subprocess.check_output(['curl', '-sm2', f'http://127.0.0.1:{TCP}'])",
}
_SYSCALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall({}) < 0:
    raise OSError(ctypes.get_errno(), 'no')
"""
CHANGING = {
    "a file outside": "open(OUTSIDE, 'w').write('gone')",
    "a file outside, at its end": "open(OUTSIDE, 'a').write('gone')",
    "the name of a file outside": "import os; os.rename(OUTSIDE, OUTSIDE + '2')",
    "that a file outside exists": "import os; os.remove(OUTSIDE)",
    "the workspace": "open('../../AGENTS.md', 'w').write('obey')",
    "the session beside it": "import os; os.mkdir('../other'); open('../other/x', 'w').write('x')",
    "the packages": "import os, json; open(os.path.join(os.path.dirname(json.__file__), 'evil.py'), 'w').write('x')",
    "the system": "open('/usr/bin/evil', 'w').write('x')",
    "the settings of the system": "open('/etc/evil', 'w').write('x')",
    "who started it": "import os; os.kill(US, 9)",
    "another process": "import os; os.kill(VICTIM, 9)",
    "all processes": "import os; os.kill(-1, 0); 1/0",
    "who started it, by its tracer": "_ = 1\n" + _SYSCALL.format("101, 16, US, 0, 0"),
    "the mounts": _SYSCALL.format("165, b'none', b'/', b'tmpfs', 0, 0"),
    "its namespaces": _SYSCALL.format("272, 0x10000000"),
    "its namespaces by a new process": _SYSCALL.format("56, 0x10000000 | 17, 0, 0, 0, 0"),
    "the keys": _SYSCALL.format("250, 0, -3, 1"),
    "the kernel, by a program": _SYSCALL.format("321, 0, b'x' * 128, 128"),
    "the kernel, by a ring": _SYSCALL.format("425, 8, b'\\0' * 120"),
    "the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
    "the name of the machine": "import socket; socket.sethostname('evil')",
    "its limits": "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40))",
    "its rights": "import os; os.setgroups([0])",
    "a device": "import os; os.mknod('disk', 0o60600, os.makedev(254, 0))",
    "a right by a file's mode": "import os; open('mine', 'w').close(); os.chmod('mine', 0o4755)",
    "a right by a mode at birth": "import os; os.close(os.open('born', os.O_CREAT | os.O_WRONLY, 0o6777))",
    "memory that nobody counts": "import os; os.memfd_create('hidden')",
}


INSIDE = {
    *("its environment", "its environment as the system has it", "all environments"),
    *("the environment of the first process", "the environment of its parent"),
    *("in the frames around it", "in all that is in memory", "through what was left open"),
    *("through links to what was left open", "through names left open"),
    *("everywhere", "with cat", "the names beside the workspace"),
    *("UDP", "UDP without connecting"),
    *("a file outside", "a file outside, at its end", "the name of a file outside"),
    *("the workspace", "the session beside it"),
}
"""What may succeed, because all that it touches is the sandbox's own: its processes, its network, its /tmp."""
if sys.version_info >= (3, 12):  # WebAssembly only says that it did
    INSIDE |= {"a name server", "a right by a file's mode", "a right by a mode at birth"}


@pytest.fixture(params=SANDBOXES)
async def desk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    made = Desk(request.param, tmp_path, seconds=20)
    monkeypatch.setenv("OPENAI_API_KEY", made.canary)
    yield made
    await made.close()


async def tried(desk: Desk, attempts: dict[str, str], **given: object) -> dict[str, dict[str, object]]:
    """What came of each attempt, all made in one kept session: what one leaves behind may help the next."""
    words = {"OUTSIDE": str(desk.outside), "US": os.getpid(), "TCP": desk.tcp, **given}
    words |= {"UDP": desk.udp, "SOCKET": str(desk.root / "socket")}
    known = "".join(f"{name} = {value!r}\n" for name, value in words.items())
    return {name: await desk.run(f"{known}{code}", session=True) for name, code in attempts.items()}


async def test_nothing_outside_is_read(desk: Desk) -> None:
    found = await tried(desk, READING)
    said = {name: str(result).replace(str(desk.outside), "") for name, result in found.items()}
    assert {name for name, words in said.items() if desk.canary in words} == set()
    assert {name for name, words in said.items() if "root:" in words} == set()
    assert "outside.txt" not in said["the names beside the workspace"]
    assert {name for name, result in found.items() if "error" not in result} <= INSIDE


async def test_nobody_is_reached(desk: Desk) -> None:
    found = await tried(desk, REACHING)
    assert {name for name, result in found.items() if "error" not in result} <= INSIDE
    assert desk.reached == []


async def test_nothing_outside_is_changed(desk: Desk) -> None:
    victim = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
    try:
        found = await tried(desk, CHANGING, VICTIM=victim.pid)
        assert {name for name, result in found.items() if "error" not in result} <= INSIDE
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()
    assert desk.outside.read_text() == desk.canary
    assert sorted(path.name for path in desk.folder.iterdir()) == [".env", "code"]
    assert [path.name for path in (desk.folder / "code").iterdir()] == ["talk"]
    made = [path for path in desk.place.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in made if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []


async def test_a_link_that_code_leaves_behind_leads_us_nowhere(desk: Desk) -> None:
    """What it made is looked at from outside, where links lead out."""
    picture = desk.root / "private.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + desk.canary.encode())
    code = f"import os\nos.symlink({str(picture)!r}, 'plot.png')\nos.symlink({str(desk.root)!r}, 'folder')"
    result = await desk.run(code + "\nos.mkfifo('pipe.png')\nopen('real.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n')")
    if "error" not in result:
        assert result["files"] == ["real.png (8 bytes)"]
        assert [image["name"] for image in result["images"]] == ["real.png"]


async def test_a_folder_that_is_a_link_is_not_worked_in(desk: Desk) -> None:
    elsewhere = desk.root / "elsewhere"
    elsewhere.mkdir()
    (desk.folder / "code").symlink_to(elsewhere)
    result = await desk.run("open('made', 'w').write('x')")
    assert "something else is in its place" in result["fault"]
    assert list(elsewhere.iterdir()) == []


async def test_the_name_of_a_session_is_no_path(desk: Desk) -> None:
    desk.conversation.id = "../../../escaped"
    await desk.run("open('made', 'w').write('x')")
    (folder,) = (desk.folder / "code").iterdir()
    assert (folder / "made").exists() and len(folder.name) == 32
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_what_was_set_going_does_not_outlive_the_call(desk: Desk) -> None:
    code = """
import fcntl, os, signal
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        for n in range(1, 32):
            try: signal.signal(n, signal.SIG_IGN)
            except OSError: pass
        if os.fork() == 0:
            os.environ.clear()
        while True: signal.pause()
"going"
"""
    result = await desk.run(code)
    if "error" not in result:
        assert result["value"] == "'going'"
        assert (desk.place / "lock").exists()
    assert await until(lambda: is_unlocked(desk.place / "lock"))


async def test_we_are_still_here(desk: Desk) -> None:
    """Whatever it sends to those above it."""
    before = signal.getsignal(signal.SIGTERM)
    code = "import os\nfor pid in (os.getppid(), os.getpgid(0), 1):" + _TRY.format("os.kill(pid, 9)")
    await desk.run(code)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (await desk.run("6 * 7"))["value"] == "42"


def test_there_are_enough_attempts() -> None:
    assert len(READING) + len(REACHING) + len(CHANGING) >= 40
    assert sys.platform == "linux"
