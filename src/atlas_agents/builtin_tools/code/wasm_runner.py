"""Process entry point: runs a Python in WebAssembly and handles requests as `runner` does. Imports nothing of Atlas.

A deeply nested value can crash the process that hosts WebAssembly, so this process does nothing else.
"""

import importlib
import json
import os
import socket
import struct
import sys
from functools import partial
from typing import Any

_INSIDE = """
import ast as _ast, gc as _gc, io as _io, traceback as _traceback, os as _os
_os.chdir("/work")
def _atlas(code, names, max_value=10_000, max_traceback=4_000):
    def cut(text, limit):
        left_out = len(text) - limit
        return text if left_out <= 0 else f"{text[:limit // 2]}… {left_out:,} characters left out …{text[-limit // 2:]}"
    report = {}
    try:
        tree = _ast.parse(code, "<code>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), names)
        if last is not None:
            value = eval(compile(_ast.Expression(last.value), "<code>", "eval"), names)
            if value is not None:
                report["value"] = cut(repr(value), max_value)
    except BaseException as error:
        lines = _traceback.format_exception(type(error), error, error.__traceback__.tb_next, limit=-20)
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        report["error"] = {"traceback": cut("".join(lines), max_traceback), "missing": missing or ""}
    for each in _gc.get_objects():
        if type(each) in (_io.TextIOWrapper, _io.BufferedWriter, _io.BufferedRandom):
            try:
                each.flush()
            except Exception:
                pass
    return report
_names = {"__name__": "__main__"}
"""


def main() -> None:
    sys.path.append(sys.argv[1])
    library: Any = importlib.import_module("eryx")
    channel = socket.socket(fileno=os.dup(0))
    channel.settimeout(None)
    session: Any = library.Session(
        volumes=[(sys.argv[2], "/work", False)],
        on_stdout=partial(_write, 1),
        on_stderr=partial(_write, 2),
        result_variable="_report",
    )
    session.execute(_INSIDE)
    while request := _receive(channel):
        try:
            report: dict[str, Any] = session.execute(f"_report = _atlas({request['code']!r}, _names)").result or {}
        except Exception as error:  # noqa: BLE001 - the code broke the runtime, which cannot run anything more
            _write(2, f"WebAssembly: {str(error).splitlines()[0][:300]}\n".encode())
            os._exit(1)
        body = json.dumps({**report, "id": request["id"]}).encode()
        channel.sendall(struct.pack("!I", len(body)) + body)


def _write(stream: int, data: bytes) -> None:
    while data:
        data = data[os.write(stream, data) :]


def _receive(channel: socket.socket) -> dict[str, Any] | None:
    head = _read_exactly(channel, 4)
    body = _read_exactly(channel, struct.unpack("!I", head)[0]) if head else b""
    return json.loads(body) if body else None


def _read_exactly(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = channel.recv(size - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


if __name__ == "__main__":
    main()
