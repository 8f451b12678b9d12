"""The structure of the code stays within its bars: few modules, no cycles, short paths through the code."""

from functools import cache
from pathlib import Path

import pytest

import structure

ROOT = Path(__file__).parent.parent


@cache
def sources() -> structure.Sources:
    return structure.Sources(ROOT)


def test_modules_and_imports_stay_within_their_bars() -> None:
    assert len(sources().product_modules) <= 260
    assert sources().import_lines / sources().lines <= 0.06


def test_no_import_cycle() -> None:
    assert sources().cycles == []


def test_no_layer_is_evaded_by_a_module_name_in_a_string() -> None:
    assert sources().evasions == []


@pytest.mark.slow
def test_turns_cross_few_files() -> None:
    crossed = structure.traced(ROOT)
    assert len(crossed["chat"]) <= 45, crossed["chat"]
    assert len(crossed["ask"]) <= 30, crossed["ask"]
