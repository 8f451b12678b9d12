"""A short run of every fuzz target, and all findings of longer ones."""

import signal
from collections.abc import Generator

import fuzz
import pytest
from targets import TARGETS, Target

EXAMPLES = 40


def check(target: Target, data: bytes) -> None:
    """Check one input. If one hangs, hypothesis repeats it after the time limit, and `conftest.py` ends the process."""
    target.check(data)


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Generator[Target]:
    made = TARGETS[request.param]()
    made.open()
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", TARGETS, indirect=True)
def test_reader_survives_mutated_inputs(target: Target) -> None:
    _, data, error = fuzz.run_examples(target, EXAMPLES, 1, check)
    assert data is None, (data, error)


@pytest.mark.parametrize("target", TARGETS, indirect=True)
def test_reader_accepts_its_seeds(target: Target) -> None:
    for seed in target.seeds:
        target.check(seed)


@pytest.mark.parametrize("target", TARGETS, indirect=True)
def test_findings_stay_fixed(target: Target) -> None:
    for path in sorted((fuzz.FINDINGS / target.name).glob("*")):
        target.check(path.read_bytes())


def test_mutations_reach_deep_and_hangs_are_found() -> None:
    class Slow(Target):
        name = "slow"
        seeds = (b"abc",)

        def check(self, data: bytes) -> None:
            assert b"\xff" not in data

    _, data, error = fuzz.run_examples(Slow(), 2000, 1, check)
    assert data is not None and b"\xff" in data and isinstance(error, AssertionError)
    with pytest.raises(fuzz.Hang), fuzz.time_limit(0.05):
        while True:
            pass
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0  # the time limit of this test
