"""Worker protocol: pickles calls, results and errors, and frames them for the socket.

A worker loads this file without the package, so it imports only the standard library.
"""

import io
import os
import pickle
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from functools import partial, reduce
from importlib import import_module
from types import CellType
from typing import Any, NoReturn, TypeAlias

SMALL = 1 << 16  # bytes that are pickled in well under a millisecond, so without a thread
MAX_TEXT = 10_000  # characters of an error message
MAX_FAULT = 1 << 20

HEADER = struct.Struct("!cQ")
CALL, READY, RESULT, FAULT, PROGRESS, MISSING_MODULE = b"c", b"!", b"r", b"f", b"n", b"m"

Frame: TypeAlias = tuple[bytes, list[bytes]]
Values: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
_registry_lock = threading.Lock()


def frame(kind: bytes, body: Sequence[bytes] = ()) -> list[bytes]:
    return [HEADER.pack(kind, sum(map(len, body))), *body]


def working_directory() -> str | None:
    """Return the working directory; None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


def function_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)[:MAX_TEXT]


def error_text(error: BaseException, render: Callable[[BaseException], str] = str) -> str:
    try:
        return render(error)[:MAX_TEXT]
    except Exception:  # noqa: BLE001 - `__str__` of a user's class may raise anything
        return "(the error message cannot be formatted)"


class NotSendable(TypeError):
    """The call cannot be pickled, or not be unpickled in a worker; nothing has run."""


class _TooLarge(Exception):
    """The pickled value exceeds the size limit."""


class _PickleBuffer:
    """Collects pickled bytes up to a limit. Because it is Python code, other threads can run every 64 KB."""

    def __init__(self, limit: int) -> None:
        self.chunks: list[bytes] = []
        self._limit = limit
        self._size = 0

    def write(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > self._limit:
            raise _TooLarge
        self.chunks.append(bytes(chunk))

    def add(self, value: Any, pickler: type[pickle.Pickler] = pickle.Pickler) -> None:
        """Pickle a value, with cloudpickle if the given pickler fails."""
        count, size = len(self.chunks), self._size
        try:
            pickler(self, 5).dump(value)
        except _TooLarge:
            raise
        except Exception:  # noqa: BLE001 - a value's own code may raise anything; cloudpickle may succeed
            del self.chunks[count:]
            self._size = size
            _cloudpickle().Pickler(self, 5).dump(value)


class _PickleReader(io.BytesIO):
    """Provides bytes to an unpickler. Because it is Python code, other threads can run every 64 KB."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(size)


class _PlainPickler(pickle.Pickler):
    """Pickles only built-in types: a worker cannot import a class of `__main__` by its name."""

    def reducer_override(self, obj: Any, /) -> NoReturn:
        raise pickle.PicklingError(type(obj).__name__)


def _cloudpickle() -> Any:
    """Import cloudpickle on first use, so that workers start faster: most calls do not need it."""
    return import_module("cloudpickle")


def try_pack(function: Callable[..., Any], values: Values, unimportable: AbstractSet[str]) -> list[bytes] | None:
    """Pickle a small call of built-in types with an importable function; None for any other call."""
    reference = _reference(function, unimportable)
    if reference is not None:
        out = _PickleBuffer(SMALL)
        with suppress(Exception):
            _PlainPickler(out, 5).dump(reference)
            _PlainPickler(out, 5).dump(values)
            return out.chunks
    return None


def pack(function: Callable[..., Any], values: Values, unimportable: AbstractSet[str]) -> list[bytes]:
    """Pickle a call: the function by reference if a worker can import it, else by value."""
    out, reference = _PickleBuffer(sys.maxsize), _reference(function, unimportable)
    out.add(reference)
    with _by_value(unimportable):
        if reference is None:
            _add_or_raise(out, function, f"cannot send {function_name(function)} to a worker")
        try:
            out.add(values, _PlainPickler)
        except BaseException:
            for name, value in [*enumerate(values[0], 1), *values[1].items()]:
                _add_or_raise(out, value, f"cannot send argument {name!r} of {function_name(function)} to a worker")
            raise
    return out.chunks


def _add_or_raise(out: _PickleBuffer, value: Any, problem: str) -> None:
    try:
        out.add(value, _PlainPickler)
    except BaseException as error:
        raise NotSendable(f"{problem}: {error_text(error)}") from error


def find_unsendable(function: Callable[..., Any]) -> tuple[str, str] | None:
    """Return the first value that a closure, method or partial captures and that cannot be pickled, and the reason."""
    captured: dict[str, Any] = {}
    while isinstance(function, partial):
        captured |= {f"argument {index}": value for index, value in enumerate(function.args, 1)} | function.keywords
        function = function.func
    inner = getattr(function, "__func__", function)
    if inner is not function:
        captured["self"] = getattr(function, "__self__", None)
    names = getattr(getattr(inner, "__code__", None), "co_freevars", ())
    cells: tuple[CellType, ...] = getattr(inner, "__closure__", None) or ()
    for name, cell in zip(names, cells, strict=False):
        with suppress(ValueError):  # not assigned yet
            captured[name] = cell.cell_contents
    for name, value in captured.items():
        try:
            _PickleBuffer(sys.maxsize).add(value)
        except BaseException as error:  # noqa: BLE001 - a value's own code may raise anything
            return name, error_text(error)
    return None


def _reference(function: Callable[..., Any], unimportable: AbstractSet[str]) -> tuple[str, str] | None:
    """Return the module and attribute path of a function; for `@tool` functions it ends in `.function`."""
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module not in sys.modules or module == "__main__" or module in unimportable:
        return None
    try:
        found = reduce(getattr, path.split("."), sys.modules[module])
    except AttributeError:
        return None
    if found is function:
        return module, path
    return (module, f"{path}.function") if getattr(found, "function", None) is function else None


@contextmanager
def _by_value(names: AbstractSet[str]) -> Generator[None]:
    """Have cloudpickle pickle these modules by value meanwhile. Its registry is global, hence the lock."""
    if not names:
        yield
        return
    cloudpickle = _cloudpickle()
    with _registry_lock:
        registered = [
            sys.modules[name] for name in names - cloudpickle.list_registry_pickle_by_value() if name in sys.modules
        ]
        try:
            for module in registered:
                cloudpickle.register_pickle_by_value(module)
            yield
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


def unpack_call(stream: io.BytesIO) -> tuple[Callable[..., Any], Values]:
    """Unpickle a call; raises ModuleNotFoundError for a module that cannot be imported."""
    reference = pickle.load(stream)  # noqa: S301
    function = pickle.load(stream) if reference is None else _find(*reference)  # noqa: S301
    return function, pickle.load(stream)  # noqa: S301


def _find(module: str, attributes: str) -> Any:
    try:
        return reduce(getattr, attributes.split("."), import_module(module))
    except BaseException as error:  # importing a module may raise anything
        raise ModuleNotFoundError(error_text(error), name=module) from error


def pack_result(result: Any, function: Callable[..., Any], limit: int) -> Frame:
    out = _PickleBuffer(limit)
    try:
        out.add(result)
    except _TooLarge:
        return pack_fault(ValueError(f"the result of {function_name(function)} is larger than {limit / 1e6:g} MB"))
    except BaseException as error:  # noqa: BLE001 - a value's own code may raise anything
        what = f"cannot send the result of {function_name(function)} ({type(result).__name__}) from a worker"
        return pack_fault(TypeError(f"{what}: {error_text(error)}; return plain data, or set in_process=True"))
    return RESULT, out.chunks


def pack_fault(error: BaseException) -> Frame:
    """Pickle an error: its type name and message, and the error itself if it can be pickled."""
    if not isinstance(error, Exception) or isinstance(error, StopIteration):  # it would stop the parent's event loop
        error = RuntimeError(f"the function raised {error_text(error, repr)}")
    out = _PickleBuffer(MAX_FAULT)
    out.add((type(error).__name__, error_text(error)))
    count = len(out.chunks)
    try:
        error.add_note("Traceback in the worker:\n" + "".join(traceback.format_exception(error))[-MAX_TEXT:])
        out.add(error)
    except BaseException:  # noqa: BLE001 - a value's own code may raise anything
        del out.chunks[count:]
    return FAULT, out.chunks


def unpack_answer(kind: bytes, body: list[bytes], function: Callable[..., Any]) -> Any:
    """Return the function's result, or raise its exception. Only the worker can write to the socket."""
    stream = _PickleReader(b"".join(body))
    if kind == RESULT:
        try:
            return pickle.load(stream)  # noqa: S301
        except BaseException as error:
            raise TypeError(f"cannot unpickle the result of {function_name(function)}: {error_text(error)}") from error
    error_type, text = pickle.load(stream)  # noqa: S301
    try:
        error = pickle.load(stream)  # noqa: S301
    except BaseException:  # noqa: BLE001 - its class may need other arguments, or not be importable
        error = None
    if isinstance(error, Exception) and error_text(error) == text:
        raise error
    raise RuntimeError(f"{error_type}: {text}")
