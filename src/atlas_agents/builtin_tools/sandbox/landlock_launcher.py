"""Started in a process of its own: confines, by `sandlock`, the command that its one argument orders, and outlives it.

It adopts whatever the command leaves behind, and ends it: nothing of a run survives the run. Imports nothing of ours.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
from typing import Any

_FAILED, _SORRY = 113, "atlas-sandbox: "
_PDEATHSIG, _SUBREAPER = 1, 36

# Run inside, before the command: limits and the filter, which would hinder the one who watches from outside.
_INSIDE = """
import ctypes, json, os, resource, sys
order = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(47, 4, 0, 0, 0)  # no rights of its own, also where root runs it
for right in range(64):
    libc.prctl(24, right, 0, 0, 0)
for name, most in order["ceilings"].items():
    resource.setrlimit(getattr(resource, name), (most, most))
if order["filter"]:
    code = bytes.fromhex(order["filter"])
    room = ctypes.create_string_buffer(code, len(code))
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
    program = Program(len(code) // 8, ctypes.addressof(room))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program)):
        sys.stderr.write("atlas-sandbox: the filter of system calls was refused\\n")
        os._exit(113)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write(f"{sys.argv[2]}: {error.strerror}\\n")
    os._exit(127)
"""


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None)
    parent = os.getppid()
    libc.prctl(_PDEATHSIG, signal.SIGTERM)
    libc.prctl(_SUBREAPER, 1)
    if os.getppid() != parent:
        os._exit(_FAILED)
    signal.signal(signal.SIGTERM, _asked_to_end)
    ended: list[int] = []
    runner = threading.Thread(target=lambda: ended.append(_run(order)), daemon=True)
    runner.start()
    while runner.is_alive():
        runner.join(1.0)
    _end(ended[0] if ended else _FAILED)


def _asked_to_end(number: int, frame: object) -> None:
    _end(_FAILED)


def _run(order: dict[str, Any]) -> int:
    sys.path.append(order["library"])
    try:
        library: Any = importlib.import_module("sandlock")
        sandbox = library.Sandbox(
            fs_readable=order["readable"],
            fs_writable=order["writable"],
            fs_denied=order["denied"],
            max_processes=order["processes"],
            no_coredump=True,
            clean_env=True,
            env=order["env"],
            cwd=order["cwd"],
        )
        rest = json.dumps({"ceilings": order["ceilings"], "filter": order["filter"]})
        return sandbox.run_interactive([order["python"], "-I", "-S", "-c", _INSIDE, rest, *order["argv"]])
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing was run
        sys.stderr.write(f"{_SORRY}{error}\n")
        return _FAILED


def _end(code: int) -> None:
    """End with all that is left of the run."""
    for _ in range(100):
        left = _children()
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except OSError:
                pass
    sys.stdout.flush()
    os._exit(code & 0xFF)


def _children() -> list[int]:
    found: list[int] = []
    mine = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == mine:
                found.append(int(name))
    return found


if __name__ == "__main__":
    main()
