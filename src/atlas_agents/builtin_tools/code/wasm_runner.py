"""Runs in a process of its own: keeps a Python in WebAssembly, takes code from its line, and answers as `runner` does.

A value of great depth can end the whole process that WebAssembly runs in; so that process does nothing else.
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
def _atlas(code, names, value=10_000, words=4_000):
    def cut(text, most):
        left_out = len(text) - most
        return text if left_out <= 0 else f"{text[:most // 2]}… {left_out:,} characters left out …{text[-most // 2:]}"
    told = {}
    try:
        tree = _ast.parse(code, "<code>")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        exec(compile(tree, "<code>", "exec"), names)
        if last is not None:
            found = eval(compile(_ast.Expression(last.value), "<code>", "eval"), names)
            if found is not None:
                told["value"] = cut(repr(found), value)
    except BaseException as error:
        written = "".join(_traceback.format_exception(type(error), error, error.__traceback__.tb_next, limit=-20))
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        told["error"] = {"type": type(error).__name__, "words": cut(written, words), "missing": missing or ""}
    for thing in _gc.get_objects():
        if type(thing) in (_io.TextIOWrapper, _io.BufferedWriter, _io.BufferedRandom):
            try:
                thing.flush()
            except Exception:
                pass
    return told
_names = {"__name__": "__main__"}
"""


def main() -> None:
    sys.path.append(sys.argv[1])
    library: Any = importlib.import_module("eryx")
    line = socket.socket(fileno=os.dup(0))
    line.settimeout(None)
    session: Any = library.Session(
        volumes=[(sys.argv[2], "/work", False)],
        on_stdout=partial(_write, 1),
        on_stderr=partial(_write, 2),
        result_variable="_told",
    )
    session.execute(_INSIDE)
    while order := _receive(line):
        try:
            told: dict[str, Any] = session.execute(f"_told = _atlas({order['code']!r}, _names)").result or {}
        except Exception as error:  # noqa: BLE001 - the code broke what runs it, and nothing more can run in it
            _write(2, f"WebAssembly: {str(error).splitlines()[0][:300]}\n".encode())
            os._exit(1)
        body = json.dumps({**told, "id": order["id"]}).encode()
        line.sendall(struct.pack("!I", len(body)) + body)


def _write(stream: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(stream, piece) :]


def _receive(line: socket.socket) -> dict[str, Any] | None:
    head = _exactly(line, 4)
    body = _exactly(line, struct.unpack("!I", head)[0]) if head else b""
    return json.loads(body) if body else None


def _exactly(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = line.recv(size - len(found))
        if not piece:
            return b""
        found += piece
    return found


if __name__ == "__main__":
    main()
