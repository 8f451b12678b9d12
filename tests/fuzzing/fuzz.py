"""Fuzzing: mutate valid inputs of every reader, for a time or a number of examples, and keep what fails.

`make fuzz` runs all targets for ten minutes each. `FUZZ="sse --minutes 2"` chooses one. A finding is shrunk and stored
in tests/fuzzing/findings; the test suite repeats all findings.
"""

import argparse
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from targets import EXAMPLE_SECONDS, TARGETS, Target

FINDINGS = Path(__file__).parent / "findings"
_BATCH = 500
_TOKENS = (b"\n", b"\r\n", b"\x00", b"\xff", b"\xed\xa0\x80", b'"', b"}", b"{", b"]", b"\\", b" ", b"\xf0\x9f\x98\x80")


class Hang(BaseException):
    """A reader took longer than the time limit of an example."""


def mutations(target: Target) -> st.SearchStrategy[bytes]:
    """Inputs: seeds with some edits (delete, repeat, insert, overwrite, cut, join with another), or any bytes."""
    seeds, tokens = st.sampled_from(list(target.seeds)), st.sampled_from([*_TOKENS, *target.tokens])
    edit = st.tuples(
        st.integers(0, 5),
        st.integers(0, 10_000),
        st.sampled_from((1, 1, 2, 5, 30, 200)),
        st.one_of(tokens, st.binary(max_size=4), seeds),
    )
    edited = st.builds(_apply, seeds, st.lists(edit, max_size=8))
    if not target.is_json:
        return st.one_of(edited, edited, edited, st.binary(max_size=200))
    replaced = st.builds(_replace, seeds, st.lists(st.tuples(st.integers(0, 10_000), _json_values()), max_size=4))
    return st.one_of(replaced, replaced, replaced, edited, st.binary(max_size=200))


def _json_values() -> st.SearchStrategy[Any]:
    numbers = st.sampled_from((None, True, 0, -1, 1.5, 2**31, 2**53, 2**63, 2**64, -(2**70), 1e308))
    texts = st.sampled_from(
        ("", "main", "\0", "x" * 5000, "9999-12-31", "0000-00-00", "../../etc", "* * * * *", "https://[", "\ud800")
    )
    return st.recursive(
        st.one_of(numbers, texts, st.text(max_size=10), st.integers()),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )


def _replace(seed: bytes, edits: list[tuple[int, Any]]) -> bytes:
    """Replace values somewhere in a JSON document."""
    document = {"": json.loads(seed)}
    for at, value in edits:
        places = list(_places(document))
        holder, key = places[at % len(places)]
        holder[key] = value
    return json.dumps(document[""]).encode()


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    keys: Any = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in list(keys):
        yield node, key
        yield from _places(node[key])


def _apply(data: bytes, edits: list[tuple[int, int, int, bytes]]) -> bytes:
    for kind, at, size, token in edits:
        start = at % (len(data) + 1)
        end = min(len(data), start + size)
        match kind:
            case 0:
                data = data[:start] + data[end:]
            case 1:
                data = data[:end] + data[start:]
            case 2:
                data = data[:start] + token + data[start:]
            case 3:
                data = data[:start] + token + data[start + len(token) :]
            case 4:
                data = data[:start]
            case _:
                data = data[:start] + token[start % (len(token) + 1) :]
    return data[:200_000]


@contextmanager
def time_limit(seconds: float) -> Generator[None]:
    """Raise Hang in this thread after some seconds. The time limit of a test continues afterwards."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"no result after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, remaining)


def run_examples(
    target: Target, count: int, seed: int, check: Callable[[Target, bytes], None]
) -> tuple[int, bytes | None, BaseException | None]:
    """Run examples; return how many ran, and the smallest failing input with its error."""
    ran, failing = 0, b""

    @hypothesis_seed(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
        report_multiple_bugs=False,
    )
    @given(mutations(target))
    def example(data: bytes) -> None:
        nonlocal ran, failing
        ran += 1
        try:
            check(target, data)
        except BaseException:
            failing = data
            raise

    try:
        example()
    except Exception as error:  # noqa: BLE001 - a finding
        return ran, failing, error
    return ran, None, None


def check_in_time(target: Target, data: bytes) -> None:
    """Check one input within the time limit."""
    try:
        with time_limit(2 * EXAMPLE_SECONDS):
            target.check(data)
    except Hang as hang:
        raise AssertionError(str(hang)) from None


def save_finding(target: Target, data: bytes) -> Path:
    folder = FINDINGS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def fuzz(make: Callable[[], Target], minutes: float, seed: int) -> bool:
    """Run one target for a time; return whether nothing was found."""
    target, total, started = make(), 0, time.monotonic()
    target.open()
    try:
        while time.monotonic() - started < minutes * 60:
            ran, data, error = run_examples(target, _BATCH, seed, check_in_time)
            total, seed = total + ran, seed + 1
            if data is not None:
                path = save_finding(target, data)
                print(f"{target.name}: finding {path}: {type(error).__name__}: {error}"[:2000], flush=True)
                return False
    finally:
        target.close()
    print(f"{target.name}: {total:,} examples in {time.monotonic() - started:.0f} s, no finding", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"some of: {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--minutes", type=float, default=10.0, help="time per target (default: 10)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31, help="of the random examples")
    given_arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    chosen = [TARGETS[name] for name in given_arguments.targets or TARGETS]
    print(f"seed {given_arguments.seed}, {given_arguments.minutes:g} minutes per target", flush=True)
    return 0 if all([fuzz(make, given_arguments.minutes, given_arguments.seed) for make in chosen]) else 1


if __name__ == "__main__":
    sys.exit(main())
