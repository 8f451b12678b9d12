"""How a call, its result or its error becomes bytes and is read again, and the frames these travel in.

A worker loads this file too, and does so without the package: here only the standard library is imported.
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
from functools import reduce
from importlib import import_module
from typing import Any, NoReturn, TypeAlias

SMALL = 1 << 16  # bytes that are pickled in well under a millisecond, so on the loop itself
MAX_WORDS = 10_000  # characters of a message; a fault's own `str` may be of any length
MAX_FAULT = 1 << 20

HEAD = struct.Struct("!cQ")
CALL, READY, RESULT, FAULT, NEWS, MISSING = b"c", b"!", b"r", b"f", b"n", b"m"

Frame: TypeAlias = tuple[bytes, list[bytes]]
Values: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def framed(kind: bytes, body: Sequence[bytes] = ()) -> list[bytes]:
    return [HEAD.pack(kind, sum(map(len, body))), *body]


def here() -> str | None:
    """The working directory; None if it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)[:MAX_WORDS]


def words_of(error: BaseException, say: Callable[[BaseException], str] = str) -> str:
    try:
        return say(error)[:MAX_WORDS]
    except Exception:  # noqa: BLE001 - the message is the fault's own code
        return "its message cannot be read"


# Pickling, whoever does it.


class _TooBig(Exception):
    """More was pickled than there is room for."""


class _Outbox:
    """Takes what a pickler writes, up to a limit; being Python, it lets other threads run every 64 KB."""

    def __init__(self, limit: int) -> None:
        self.pieces: list[bytes] = []
        self._limit = limit
        self._size = 0

    def write(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            raise _TooBig
        self.pieces.append(bytes(piece))

    def add(self, value: Any, pickler: type[pickle.Pickler] = pickle.Pickler) -> None:
        """Pickle a value; with cloudpickle what the given pickler cannot."""
        count, size = len(self.pieces), self._size
        try:
            pickler(self, 5).dump(value)
        except _TooBig:
            raise
        except Exception:  # noqa: BLE001 - a value's own code may raise anything, and cloudpickle may do without it
            del self.pieces[count:]
            self._size = size
            _cloudpickle().Pickler(self, 5).dump(value)


class _Inbox(io.BytesIO):
    """Gives an unpickler its bytes; being Python, it lets other threads run every 64 KB."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(size)


class _PlainPickler(pickle.Pickler):
    """Pickles built-in types and nothing else: a class of `__main__` has a name that means nothing to a worker."""

    def reducer_override(self, obj: Any, /) -> NoReturn:
        raise pickle.PicklingError(type(obj).__name__)


def _cloudpickle() -> Any:
    """Imported when first needed: most calls do without, and a worker starts faster."""
    return import_module("cloudpickle")


# A call: packed by the parent, unpacked by the worker.


def pack_at_once(function: Callable[..., Any], values: Values, foreign: AbstractSet[str]) -> list[bytes] | None:
    """A call as bytes, if that takes no time: few values, of built-in types, and a function that a worker can find."""
    reference = _reference(function, foreign)
    if reference is not None:
        out = _Outbox(SMALL)
        with suppress(Exception):
            _PlainPickler(out, 5).dump(reference)
            _PlainPickler(out, 5).dump(values)
            return out.pieces
    return None


def pack(function: Callable[..., Any], values: Values, foreign: AbstractSet[str]) -> list[bytes]:
    """A call as bytes: the function by reference where a worker can find it, else by value."""
    out, reference = _Outbox(sys.maxsize), _reference(function, foreign)
    out.add(reference)
    with _by_value(foreign):
        if reference is None:
            _add_or_say(out, function, f"{name_of(function)} cannot be sent to a worker")
        try:
            out.add(values, _PlainPickler)
        except BaseException:
            for name, value in [*enumerate(values[0], 1), *values[1].items()]:
                _add_or_say(out, value, f"argument {name!r} of {name_of(function)} cannot be sent to a worker")
            raise
    return out.pieces


def _add_or_say(out: _Outbox, value: Any, complaint: str) -> None:
    try:
        out.add(value, _PlainPickler)
    except BaseException as error:
        raise TypeError(f"{complaint}: {words_of(error)}") from error


def _reference(function: Callable[..., Any], foreign: AbstractSet[str]) -> tuple[str, str] | None:
    """The module and the attributes that lead to this very function; `@tool` puts it behind `.function`."""
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module not in sys.modules or module == "__main__" or module in foreign:
        return None
    try:
        found = reduce(getattr, path.split("."), sys.modules[module])
    except AttributeError:
        return None
    if found is function:
        return module, path
    return (module, f"{path}.function") if getattr(found, "function", None) is function else None


_registering = threading.Lock()


@contextmanager
def _by_value(names: AbstractSet[str]) -> Generator[None]:
    """For a while, cloudpickle sends what lives in these modules by value; its register is the whole process's."""
    if not names:
        yield
        return
    cloudpickle = _cloudpickle()
    with _registering:
        mine = [
            sys.modules[name] for name in names - cloudpickle.list_registry_pickle_by_value() if name in sys.modules
        ]
        try:
            for module in mine:
                cloudpickle.register_pickle_by_value(module)
            yield
        finally:
            for module in mine:
                cloudpickle.unregister_pickle_by_value(module)


def unpack_call(stream: io.BytesIO) -> tuple[Callable[..., Any], Values]:
    """The function and what to call it with; ModuleNotFoundError names a module that is not found here."""
    reference = pickle.load(stream)  # noqa: S301
    function = pickle.load(stream) if reference is None else _find(*reference)  # noqa: S301
    return function, pickle.load(stream)  # noqa: S301


def _find(module: str, attributes: str) -> Any:
    try:
        return reduce(getattr, attributes.split("."), import_module(module))
    except BaseException as error:  # importing runs code
        raise ModuleNotFoundError(words_of(error), name=module) from error


# What came of it: packed by the worker, unpacked by the parent.


def pack_result(result: Any, function: Callable[..., Any], limit: int) -> Frame:
    out = _Outbox(limit)
    try:
        out.add(result)
    except _TooBig:
        return pack_fault(ValueError(f"the result of {name_of(function)} is larger than {limit / 1e6:g} MB"))
    except BaseException as error:  # noqa: BLE001 - a value's own code may raise anything
        what = f"the result of {name_of(function)}, a {type(result).__name__},"
        return pack_fault(TypeError(f"{what} cannot be sent back from a worker: {words_of(error)}"))
    return RESULT, out.pieces


def pack_fault(error: BaseException) -> Frame:
    """An error as bytes: its words, which always arrive, then itself, where it can be pickled."""
    if not isinstance(error, Exception) or isinstance(error, StopIteration):  # the parent's loop would obey it
        error = RuntimeError(f"the function raised {words_of(error, repr)}")
    out = _Outbox(MAX_FAULT)
    out.add((type(error).__name__, words_of(error)))
    count = len(out.pieces)
    try:
        error.add_note("In the worker:\n" + "".join(traceback.format_exception(error))[-MAX_WORDS:])
        out.add(error)
    except BaseException:  # noqa: BLE001 - as above
        del out.pieces[count:]
    return FAULT, out.pieces


def unpack_answer(kind: bytes, body: list[bytes], function: Callable[..., Any]) -> Any:
    """What the function returned, or raise what it raised. The bytes came over a socket that only the worker has."""
    stream = _Inbox(b"".join(body))
    if kind == RESULT:
        try:
            return pickle.load(stream)  # noqa: S301
        except BaseException as error:
            raise TypeError(f"the result of {name_of(function)} cannot be rebuilt here: {words_of(error)}") from error
    kind_of_error, words = pickle.load(stream)  # noqa: S301
    try:
        error = pickle.load(stream)  # noqa: S301
    except BaseException:  # noqa: BLE001 - the fault's class may ask for more than its text, or be unknown here
        error = None
    if isinstance(error, Exception) and words_of(error) == words:
        raise error
    raise RuntimeError(f"{kind_of_error}: {words}")
