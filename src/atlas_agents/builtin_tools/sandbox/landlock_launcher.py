"""Process entry point: runs the command described by its JSON argument in a `sandlock` sandbox.

It is the subreaper of everything the command starts, and kills what is left when the command ends. Standard library
only.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
from typing import Any

_FAILED, _ERROR_PREFIX = 113, "atlas-sandbox: "
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

# Runs inside the sandbox before the command: the limits and the filter must not apply to the supervisor outside.
_INSIDE = """
import ctypes, json, os, resource, sys
request = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(47, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL
for capability in range(64):
    libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
for name, limit in request["rlimits"].items():
    resource.setrlimit(getattr(resource, name), (limit, limit))
if request["filter"]:
    code = bytes.fromhex(request["filter"])
    buffer = ctypes.create_string_buffer(code, len(code))
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
    program = Program(len(code) // 8, ctypes.addressof(buffer))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program)):
        sys.stderr.write("atlas-sandbox: the kernel rejected the seccomp filter\\n")
        os._exit(113)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write(f"{sys.argv[2]}: {error.strerror}\\n")
    os._exit(127)
"""


def main() -> None:
    request: dict[str, Any] = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None)
    parent = os.getppid()
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
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
        inner = json.dumps({"rlimits": request["rlimits"], "filter": request["filter"]})
        return sandbox.run_interactive([request["python"], "-I", "-S", "-c", _INSIDE, inner, *request["argv"]])
    except Exception as error:  # noqa: BLE001 - any error means that nothing was run
        sys.stderr.write(f"{_ERROR_PREFIX}{error}\n")
        return _FAILED


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


if __name__ == "__main__":
    main()
