"""Runs inside the sandbox: takes code from its line, runs it, and answers what came of it. Imports nothing of ours.

It shares its process with the code, which may therefore say of itself what it likes. So nobody outside believes more
of an answer than that the code wrote it.
"""

import ast
import gc
import importlib
import io
import json
import linecache
import os
import socket
import struct
import sys
import traceback
import types
from contextlib import suppress
from typing import Any

_VALUE, _WORDS = 10_000, 4_000
_FILE = "<code>"
_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_shown = 0


def main() -> None:
    line = socket.socket(fileno=os.dup(0))
    line.settimeout(None)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.umask(0o077)
    sys.argv = [_FILE]
    sys.path.insert(0, os.getcwd())
    _prepare_plots()
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    while order := _receive(line):
        answer = _answer(order["code"], names)
        _send(line, {"id": order["id"], **answer})


def _answer(code: str, names: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    try:
        value = _run(code, names)
        if value is not None:
            answer["value"] = _cut(repr(value), _VALUE)
    except BaseException as error:  # noqa: BLE001 - whatever the code raised is its result
        answer["error"] = _told(error)
    try:
        _save_left_plots()
        _flush()
    except BaseException as error:  # noqa: BLE001
        answer.setdefault("error", _told(error))
    return answer


def _run(code: str, names: dict[str, Any]) -> Any:
    """Run it; the value of its last line, if that is an expression."""
    linecache.cache[_FILE] = (len(code), None, code.splitlines(keepends=True), _FILE)
    tree = ast.parse(code, _FILE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, _FILE, "exec"), names)  # noqa: S102 - this is what it is for
    if last is None or not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), _FILE, "eval"), names)  # noqa: S307


def _told(error: BaseException) -> dict[str, str]:
    """An exception as people know it, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != _FILE:
        trace = trace.tb_next
    try:
        written = "".join(traceback.format_exception(type(error), error, trace, limit=-20))
    except BaseException:  # noqa: BLE001 - its own `__str__` may do anything
        written = type(error).__name__
    missing = error.name if isinstance(error, ModuleNotFoundError) and isinstance(error.name, str) else ""
    return {"type": type(error).__name__, "words": _cut(written, _WORDS), "missing": missing}


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}… {len(text) - most:,} characters left out …{text[-most // 2 :]}"


def _flush() -> None:
    """What the code has written shall be there, also in files that it did not close."""
    open_files = [thing for thing in gc.get_objects() if type(thing) in _FILES]
    for file in (sys.stdout, sys.stderr, *open_files):
        with suppress(Exception):  # it is closed, or the code put something else there
            file.flush()


def _prepare_plots() -> None:
    """A place for matplotlib to draw: `plt.show()` writes each open figure to a file, which is shown to the model."""
    module: Any = types.ModuleType("atlas_plots")

    def find(name: str) -> Any:
        """Matplotlib is asked for only when the code has loaded it."""
        if name != "FigureCanvas":
            raise AttributeError(name)
        plain: Any = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg

        class Canvas(plain):
            def print_figure(self: Any, *given: Any, **named: Any) -> Any:
                self.figure.atlas_saved = True
                return plain.print_figure(self, *given, **named)

        module.FigureCanvas = Canvas
        return Canvas

    module.__getattr__ = find
    module.show = _show_plots
    sys.modules["atlas_plots"] = module
    os.environ["MPLBACKEND"] = "module://atlas_plots"


def _show_plots(*given: Any, **named: Any) -> None:
    _write_plots(all_of_them=True)


def _save_left_plots() -> None:
    if "matplotlib.pyplot" in sys.modules:
        _write_plots(all_of_them=False)


def _write_plots(*, all_of_them: bool) -> None:
    global _shown
    plots = sys.modules["matplotlib.pyplot"]
    for number in plots.get_fignums():
        figure = plots.figure(number)
        if all_of_them or not getattr(figure, "atlas_saved", False):
            _shown += 1
            while os.path.exists(f"plot-{_shown}.png"):
                _shown += 1
            figure.savefig(f"plot-{_shown}.png")
    plots.close("all")


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


def _send(line: socket.socket, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    line.sendall(struct.pack("!I", len(body)) + body)


if __name__ == "__main__":
    main()
