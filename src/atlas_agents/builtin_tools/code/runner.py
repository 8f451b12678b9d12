"""Process entry point inside the sandbox: runs code from its socket and reports the result. Imports nothing of Atlas.

It shares its process with the code, which can forge reports. The other side must treat a report as output of the code.
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

_MAX_VALUE, _MAX_TRACEBACK = 10_000, 4_000
_FILE = "<code>"
_FILE_TYPES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
_plot_number = 0


def main() -> None:
    channel = socket.socket(fileno=os.dup(0))
    channel.settimeout(None)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.umask(0o077)
    sys.argv = [_FILE]
    sys.path.insert(0, os.getcwd())
    _prepare_plots()
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    while request := _receive(channel):
        report = _run_and_report(request["code"], names)
        _send(channel, {"id": request["id"], **report})


def _run_and_report(code: str, names: dict[str, Any]) -> dict[str, Any]:
    report: dict[str, Any] = {}
    try:
        value = _run(code, names)
        if value is not None:
            report["value"] = _cut(repr(value), _MAX_VALUE)
    except BaseException as error:  # noqa: BLE001 - any exception of the code is its result
        report["error"] = _format_error(error)
    try:
        if "matplotlib.pyplot" in sys.modules:
            _save_plots(all_figures=False)
        _flush()
    except BaseException as error:  # noqa: BLE001
        report.setdefault("error", _format_error(error))
    return report


def _run(code: str, names: dict[str, Any]) -> Any:
    """Run code and return the value of its last statement, if that is an expression."""
    linecache.cache[_FILE] = (len(code), None, code.splitlines(keepends=True), _FILE)
    tree = ast.parse(code, _FILE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, _FILE, "exec"), names)  # noqa: S102 - the purpose of this process
    if last is None or not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), _FILE, "eval"), names)  # noqa: S307


def _format_error(error: BaseException) -> dict[str, str]:
    """Format a traceback without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != _FILE:
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace, limit=-20))
    except BaseException:  # noqa: BLE001 - its own `__str__` may raise anything
        text = type(error).__name__
    missing = error.name if isinstance(error, ModuleNotFoundError) and isinstance(error.name, str) else ""
    return {"traceback": _cut(text, _MAX_TRACEBACK), "missing": missing}


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}… {len(text) - limit:,} characters left out …{text[-limit // 2 :]}"


def _flush() -> None:
    """Flush the standard streams, and files that the code did not close."""
    open_files = [each for each in gc.get_objects() if type(each) in _FILE_TYPES]
    for file in (sys.stdout, sys.stderr, *open_files):
        with suppress(Exception):  # it is closed, or the code replaced it
            file.flush()


def _prepare_plots() -> None:
    """Install a matplotlib backend whose `plt.show()` saves each open figure to a file."""
    module: Any = types.ModuleType("atlas_plots")

    def load_canvas(name: str) -> Any:
        """Import matplotlib's canvas only when the code uses matplotlib."""
        if name != "FigureCanvas":
            raise AttributeError(name)
        base: Any = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg

        class Canvas(base):
            def print_figure(self: Any, *args: Any, **kwargs: Any) -> Any:
                self.figure.atlas_saved = True
                return base.print_figure(self, *args, **kwargs)

        module.FigureCanvas = Canvas
        return Canvas

    def show(*args: Any, **kwargs: Any) -> None:
        _save_plots(all_figures=True)

    module.__getattr__ = load_canvas
    module.show = show
    sys.modules["atlas_plots"] = module
    os.environ["MPLBACKEND"] = "module://atlas_plots"


def _save_plots(*, all_figures: bool) -> None:
    global _plot_number
    plots = sys.modules["matplotlib.pyplot"]
    for number in plots.get_fignums():
        figure = plots.figure(number)
        if all_figures or not getattr(figure, "atlas_saved", False):
            _plot_number += 1
            while os.path.exists(f"plot-{_plot_number}.png"):
                _plot_number += 1
            figure.savefig(f"plot-{_plot_number}.png")
    plots.close("all")


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


def _send(channel: socket.socket, report: dict[str, Any]) -> None:
    body = json.dumps(report).encode()
    channel.sendall(struct.pack("!I", len(body)) + body)


if __name__ == "__main__":
    main()
