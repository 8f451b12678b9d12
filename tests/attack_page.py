"""The table of docs/design/attacks.md, generated from tests/attacks.toml and recorded results (`make texts`).

`make attacks` runs the test of every row and records the results in tests/attack_results.json. A test whose parameters
name `root` or `unprivileged` counts for that user, any other for the user who runs it; results of the other are kept.
`make attacks ROWS="16.1-mptcp"` runs only some rows.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

ROOT = Path(__file__).parent.parent
ROWS = ROOT / "tests/attacks.toml"
RESULTS = ROOT / "tests/attack_results.json"
PAGE = ROOT / "docs/design/attacks.md"
BACKENDS = ("bubblewrap", "landlock", "wasm")
USERS = {"root": "as root", "unprivileged": "unprivileged"}
_BLOCK = re.compile(r"(<!-- attacks -->\n).*?(<!-- end of attacks -->)", re.DOTALL)
_ORDER = ("failed", "skipped", "held")
"""Of several results, the first of these counts."""


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An attack, the test that makes it, and the sandbox backends that it is made on."""

    id: str
    attack: str
    test: str
    backends: tuple[str, ...] = ()


def read_rows() -> list[Row]:
    """Read all rows; raises msgspec.ValidationError for an unknown or missing field."""
    return [msgspec.convert(row, Row) for row in tomllib.loads(ROWS.read_text(encoding="utf-8"))["row"]]


@cache
def tests_in(path: str) -> frozenset[str]:
    """The names of the test functions in a file; none if there is no such file."""
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    found = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def has_test(row: Row) -> bool:
    path, _, name = row.test.partition("::")
    return name.startswith("test_") and name in tests_in(path)


def filled(page: str) -> str:
    """Return the page with its table as the rows and the recorded results are now."""
    results: dict[str, dict[str, dict[str, str]]] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    lines = ["| row | attack | test | backend | " + " | ".join(USERS.values()) + " |", "|---|---|---|---|---|---|"]
    for row in sorted(read_rows(), key=_row_order):
        path, _, name = row.test.partition("::")
        test = f"[{name.removeprefix('test_').replace('_', ' ')}](https://github.com/atlas-agents/atlas-agents/blob/main/{path})"
        for backend in row.backends or ("",):
            states = [results.get(user, {}).get(row.id, {}).get(backend, "not run") for user in USERS]
            lines.append(f"| {row.id} | {row.attack} | {test} | {backend or '–'} | {' | '.join(states)} |")
    table = "\n".join(lines)
    return _BLOCK.sub(lambda block: f"{block[1]}\n{_summary(results)}\n\n{table}\n\n{block[2]}", page)


def _row_order(row: Row) -> tuple[Any, ...]:
    """Sort `16.9-x` before `16.10-x`."""
    return tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"[.-]", row.id))


def _summary(results: dict[str, dict[str, dict[str, str]]]) -> str:
    rows = read_rows()
    sentences = [f"{len(rows)} rows."]
    for user, label in USERS.items():
        states = [state for row in rows for state in results.get(user, {}).get(row.id, {}).values()]
        if states:
            counts = ", ".join(f"{states.count(state)} {state}" for state in reversed(_ORDER) if state in states)
            sentences.append(f"Run {label}: {counts}.")
    return " ".join(sentences)


def run_rows(ids: Sequence[str]) -> None:
    """Run the tests of all rows, or of those with these ids, and record the results."""
    rows = [row for row in read_rows() if not ids or row.id in ids]
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        tests = sorted({row.test for row in rows if has_test(row)})
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", f"--junitxml={report.name}"]
        subprocess.run([*command, *tests], cwd=ROOT, check=False)
        states = _read_report(report.name)
    recorded: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    current = "root" if os.geteuid() == 0 else "unprivileged"
    for user in USERS:
        before = recorded.get(user, {})
        found = {row.id: _row_states(row, _cases_of(user, current, states[row.test])) for row in rows}
        recorded[user] = {row.id: found.get(row.id) or before.get(row.id, {}) for row in read_rows()}
    RESULTS.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _read_report(path: str) -> dict[str, list[tuple[str, str]]]:
    """Return (parameters, state) of every case, by test."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name, _, parameters = str(case.get("name")).partition("[")
        test = f"{str(case.get('classname')).replace('.', '/')}.py::{name}"
        failed = case.find("failure") is not None or case.find("error") is not None
        found[test].append(
            (parameters, "failed" if failed else "skipped" if case.find("skipped") is not None else "held")
        )
    return found


def _cases_of(user: str, current: str, cases: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the cases of a user: those whose parameters name it, and for the current user those that name none."""
    named = [(parameters, next((each for each in USERS if each in parameters), current)) for parameters, _ in cases]
    return [case for case, (_, owner) in zip(cases, named, strict=True) if owner == user]


def _row_states(row: Row, cases: list[tuple[str, str]]) -> dict[str, str]:
    """Return the state per backend: of the cases that name it, or of all if none names a backend."""
    states: dict[str, str] = {}
    for backend in row.backends or ("",):
        of_backend = [state for parameters, state in cases if backend and backend in parameters]
        named = any(each in parameters for parameters, _ in cases for each in BACKENDS)
        relevant = of_backend if named and backend else [state for _, state in cases]
        states[backend] = next((state for state in _ORDER if state in relevant), "")
    return {backend: state for backend, state in states.items() if state}


if __name__ == "__main__":
    if "--run" in sys.argv:
        run_rows(sys.argv[sys.argv.index("--run") + 1 :])
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
