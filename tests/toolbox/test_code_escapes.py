"""Hostile code cannot escape: files, environments, processes, the network and the system stay out of reach."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from attacker import NUMBERS
from code_harness import SANDBOXES, SandboxHarness, is_unlocked

from checks import linux_only, wait_until

pytestmark = linux_only

_TRY = "\n    try: {}\n    except OSError: pass"
READING = {
    "a file": "open(OUTSIDE).read()",
    "a file, by a relative path": "open('../../../' * 20 + OUTSIDE).read()",
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
    "its environment in /proc": "open('/proc/self/environ').read()",
    "the environment of the first process": "open('/proc/1/environ').read()",
    "the environment of its parent": "import os; open(f'/proc/{os.getppid()}/environ').read()",
    "the environment of the test process": "open(f'/proc/{US}/environ').read()",
    "all environments": "for pid in range(1, 500):" + _TRY.format("print(open(f'/proc/{pid}/environ').read())"),
    "through the root of another process": "open('/proc/1/root' + OUTSIDE).read()",
    "through the folder of its parent": "import os; open(f'/proc/{os.getppid()}/cwd/../outside.txt').read()",
    "through inherited descriptors": "import os\nfor fd in range(3, 100):" + _TRY.format("print(os.pread(fd, 999, 0))"),
    "through links to inherited descriptors": "import os\nfor fd in range(3, 100):"
    + _TRY.format("print(os.readlink(f'/proc/self/fd/{fd}'))"),
    "through inherited folders": "import os\nfor fd in range(3, 100):" + _TRY.format("print(os.listdir(fd))"),
    "in the frames around it": "import sys\nf = sys._getframe()\nwhile f: print(f.f_globals, f.f_locals); f = f.f_back",
    "in all that is in memory": "import gc; [str(o)[:9999] for o in gc.get_objects() if 'canary-' in str(o)[:9999]]",
    "in the memory of its parent": "import os; open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "in the memory of the test process": "open(f'/proc/{US}/mem', 'rb').read(1)",
    "in the machine's memory": "open('/dev/mem', 'rb').read(1)",
    "on the disk itself": "import glob; [open(n, 'rb').read(1) for n in glob.glob('/dev/[svn][dv]*')] or 1/0",
    "in the kernel's log": "open('/dev/kmsg').read(1)",
    "by a nested chroot": "import os; os.chroot('.'); os.chdir('../' * 50); open(OUTSIDE).read()",
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
    "a file outside, by deleting it": "import os; os.remove(OUTSIDE)",
    "the workspace": "open('../../AGENTS.md', 'w').write('obey')",
    "the session beside it": "import os; os.mkdir('../other'); open('../other/x', 'w').write('x')",
    "the packages": "import os, json; open(os.path.join(os.path.dirname(json.__file__), 'evil.py'), 'w').write('x')",
    "the system": "open('/usr/bin/evil', 'w').write('x')",
    "the settings of the system": "open('/etc/evil', 'w').write('x')",
    "the test process": "import os; os.kill(US, 9)",
    "another process": "import os; os.kill(VICTIM, 9)",
    "all processes": "import os; os.kill(-1, 0); 1/0",
    "the test process, by ptrace": "_ = 1\n" + _SYSCALL.format(f"{NUMBERS['ptrace']}, 16, US, 0, 0"),
    "the mounts": _SYSCALL.format(f"{NUMBERS['mount']}, b'none', b'/', b'tmpfs', 0, 0"),
    "its namespaces": _SYSCALL.format(f"{NUMBERS['unshare']}, 0x10000000"),
    "its namespaces by a new process": _SYSCALL.format(f"{NUMBERS['clone']}, 0x10000000 | 17, 0, 0, 0, 0"),
    "the keys": _SYSCALL.format(f"{NUMBERS['keyctl']}, 0, -3, 1"),
    "the kernel, by BPF": _SYSCALL.format(f"{NUMBERS['bpf']}, 0, b'x' * 128, 128"),
    "the kernel, by io_uring": _SYSCALL.format("425, 8, b'\\0' * 120"),
    "the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0)",
    "the name of the machine": "import socket; socket.sethostname('evil')",
    "its limits": "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40))",
    "its groups": "import os; os.setgroups([0])",
    "a device": "import os; os.mknod('disk', 0o60600, os.makedev(254, 0))",
    "a setuid bit by chmod": "import os; open('mine', 'w').close(); os.chmod('mine', 0o4755)",
    "a setuid bit at creation": "import os; os.close(os.open('born', os.O_CREAT | os.O_WRONLY, 0o6777))",
    "memory in a memfd": "import os; os.memfd_create('hidden')",
}


INSIDE = {
    *("its environment", "its environment in /proc", "all environments"),
    *("the environment of the first process", "the environment of its parent"),
    *("in the frames around it", "in all that is in memory", "through inherited descriptors"),
    *("through links to inherited descriptors", "through inherited folders"),
    *("everywhere", "with cat", "the names beside the workspace"),
    *("UDP", "UDP without connecting"),
    *("a file outside", "a file outside, at its end", "the name of a file outside"),
    *("the workspace", "the session beside it"),
}
"""Attempts that may succeed, because they only reach the sandbox's own processes, network and /tmp."""


@pytest.fixture(params=SANDBOXES)
async def harness(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SandboxHarness]:
    made = SandboxHarness(request.param, tmp_path, seconds=20)
    monkeypatch.setenv("OPENAI_API_KEY", made.canary)
    yield made
    await made.close()


async def run_attempts(
    harness: SandboxHarness, attempts: dict[str, str], **variables: object
) -> dict[str, dict[str, object]]:
    """Run all attempts in one session, because one attempt may help the next, and return their results."""
    values = {"OUTSIDE": str(harness.outside), "US": os.getpid(), "TCP": harness.tcp, **variables}
    values |= {"UDP": harness.udp, "SOCKET": str(harness.root / "socket")}
    assignments = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return {name: await harness.run(f"{assignments}{code}", session=True) for name, code in attempts.items()}


async def test_code_cannot_read_anything_outside(harness: SandboxHarness) -> None:
    found = await run_attempts(harness, READING)
    texts = {name: str(result).replace(str(harness.outside), "") for name, result in found.items()}
    assert {name for name, text in texts.items() if harness.canary in text} == set()
    assert {name for name, text in texts.items() if "root:" in text} == set()
    assert "outside.txt" not in texts["the names beside the workspace"]
    assert {name for name, result in found.items() if "error" not in result} <= INSIDE


async def test_code_cannot_reach_the_network(harness: SandboxHarness) -> None:
    found = await run_attempts(harness, REACHING)
    assert {name for name, result in found.items() if "error" not in result} <= INSIDE
    assert harness.reached == []


async def test_code_cannot_change_anything_outside(harness: SandboxHarness) -> None:
    victim = subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220
    try:
        found = await run_attempts(harness, CHANGING, VICTIM=victim.pid)
        assert {name for name, result in found.items() if "error" not in result} <= INSIDE
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()
    assert harness.outside.read_text() == harness.canary
    assert sorted(path.name for path in harness.folder.iterdir()) == [".env", "code"]
    assert [path.name for path in (harness.folder / "code").iterdir()] == ["chat"]
    made = [path for path in harness.session_folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in made if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []


async def test_links_that_code_creates_are_not_followed(harness: SandboxHarness) -> None:
    """The produced files are read outside the sandbox, where links lead out of the folder."""
    image = harness.root / "private.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n" + harness.canary.encode())
    code = f"import os\nos.symlink({str(image)!r}, 'plot.png')\nos.symlink({str(harness.root)!r}, 'folder')"
    result = await harness.run(
        code + "\nos.mkfifo('pipe.png')\nopen('real.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n')"
    )
    if "error" not in result:
        assert result["files"] == ["real.png (8 bytes)"]
        assert [image["name"] for image in result["images"]] == ["real.png"]


async def test_session_folder_that_is_a_link_is_rejected(harness: SandboxHarness) -> None:
    elsewhere = harness.root / "elsewhere"
    elsewhere.mkdir()
    (harness.folder / "code").symlink_to(elsewhere)
    result = await harness.run("open('made', 'w').write('x')")
    assert "is not a folder" in result["fault"]
    assert list(elsewhere.iterdir()) == []


async def test_session_id_is_not_used_as_a_path(harness: SandboxHarness) -> None:
    harness.conversation.id = "../../../escaped"
    await harness.run("open('made', 'w').write('x')")
    (folder,) = (harness.folder / "code").iterdir()
    assert (folder / "made").exists() and len(folder.name) == 32
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_started_processes_end_with_the_call(harness: SandboxHarness) -> None:
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
"started"
"""
    result = await harness.run(code)
    if "error" not in result:
        assert result["value"] == "'started'"
        assert (harness.session_folder / "lock").exists()
    assert await wait_until(lambda: is_unlocked(harness.session_folder / "lock"))


async def test_code_cannot_signal_its_parents(harness: SandboxHarness) -> None:
    before = signal.getsignal(signal.SIGTERM)
    code = "import os\nfor pid in (os.getppid(), os.getpgid(0), 1):" + _TRY.format("os.kill(pid, 9)")
    await harness.run(code)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (await harness.run("6 * 7"))["value"] == "42"


def test_attempts_are_numerous() -> None:
    assert len(READING) + len(REACHING) + len(CHANGING) >= 40
    assert sys.platform == "linux"
