"""The page of attacks: every row names an attack once, and a test that exists."""

import json
import re

import pytest

import attack_page


def test_every_row_names_a_test_that_exists() -> None:
    missing = [f"{row.id}: {row.test}" for row in attack_page.read_rows() if not attack_page.has_test(row)]
    assert missing == []


def test_ids_are_unique_and_attacks_are_sentences() -> None:
    rows = attack_page.read_rows()
    ids = [row.id for row in rows]
    assert len(ids) == len(set(ids)), sorted({id for id in ids if ids.count(id) > 1})
    assert [row.id for row in rows if not re.fullmatch(r"[A-Z`].*[^.|]\.", row.attack)] == []


def test_backends_are_known() -> None:
    assert {each for row in attack_page.read_rows() for each in row.backends} <= set(attack_page.BACKENDS)


def test_no_recorded_attack_succeeded() -> None:
    recorded = json.loads(attack_page.RESULTS.read_text(encoding="utf-8"))
    failed = [
        (user, id) for user, rows in recorded.items() for id, states in rows.items() if "failed" in states.values()
    ]
    assert failed == []


def test_page_shows_all_rows_and_results() -> None:
    page = attack_page.PAGE.read_text(encoding="utf-8")
    assert page == attack_page.filled(page), "run `make texts`"


@pytest.mark.parametrize(
    ("cases", "state"),
    [
        ([("landlock]", "held"), ("bubblewrap]", "failed")], "held"),
        ([("landlock-a]", "held"), ("landlock-b]", "failed")], "failed"),
        ([("", "held")], "held"),
        ([("bubblewrap]", "held")], ""),
        ([], ""),
    ],
)
def test_result_of_a_backend_is_that_of_its_cases(cases: list[tuple[str, str]], state: str) -> None:
    row = attack_page.Row("x", "An attack.", "tests/x.py::test_x", ("landlock",))
    assert attack_page._row_states(row, cases) == ({"landlock": state} if state else {})
