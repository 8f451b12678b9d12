"""Results of a run as a flat list of records, their medians and ratios, and the report in Markdown."""

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scenarios import SCENARIOS
from tables import table
from venvs import adapter_names, constant

Record = dict[str, Any]  # round, scenario, adapter, then the measured values or `error`

TURNS = [name for name in SCENARIOS if name not in ("S7m", "rounds") and not SCENARIOS[name].durable]
DURABLE_TURNS = [name for name in SCENARIOS if SCENARIOS[name].durable]


@dataclass
class Results:
    """All records of a run."""

    machine: str
    installed: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    records: list[Record] = field(default_factory=list[Record])

    @classmethod
    def load(cls, path: Path) -> "Results":
        if not path.exists():
            raise SystemExit(f"no results in {path}; run: python bench/run.py bench")
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(vars(self), indent=1) + "\n")

    @property
    def rounds(self) -> int:
        return max((record["round"] + 1 for record in self.records), default=0)

    def adapters(self, *, durable: bool) -> list[str]:
        """Return the measured adapters in the order of the tables."""
        known = [name for name in adapter_names() if name in self.installed]
        return [name for name in known if constant(name, "DURABLE", False) == durable]

    def measured(self, scenarios: list[str]) -> list[str]:
        seen = {record["scenario"] for record in self.records}
        return [name for name in scenarios if name in seen]

    def values(self, scenario: str, adapter: str, name: str) -> dict[int, float]:
        """Return one measured value by round."""
        records = [r for r in self.records if r["scenario"] == scenario and r["adapter"] == adapter]
        return {r["round"]: r[name] for r in records if name in r}

    def median(self, scenario: str, adapter: str, name: str) -> float | None:
        values = self.values(scenario, adapter, name)
        return statistics.median(values.values()) if values else None

    def ratio(self, scenario: str, adapter: str, other: str) -> float | None:
        """Return the median of the CPU ratios within each round: noise that affects a whole round cancels out."""
        ours, theirs = self.values(scenario, adapter, "cpu_ms"), self.values(scenario, other, "cpu_ms")
        ratios = [ours[number] / theirs[number] for number in ours.keys() & theirs.keys()]
        return statistics.median(ratios) if ratios else None

    @property
    def failures(self) -> list[str]:
        """Return one line per failed measurement."""
        failed = [record for record in self.records if "error" in record]
        return [f"FAILED {r['adapter']} {r['scenario']}: {r['error'].strip().rpartition(chr(10))[2]}" for r in failed]


def report(results: Results) -> str:
    """Return all tables."""
    parts = [f"{results.machine}, {results.rounds} interleaved round{'s' if results.rounds > 1 else ''}."]
    parts += [*_turns_part(results), *_size_part(results), *_rounds_part(results), *_durable_part(results)]
    return "\n\n".join([*parts, "Versions: " + ", ".join(_versions(results)) + ".", *results.failures])


def _legend(names: list[str]) -> str:
    return " · ".join(f"**{name}** {SCENARIOS[name].note}" for name in names) + "."


def _turns_part(results: Results) -> list[str]:
    turns, names = results.measured(TURNS), results.adapters(durable=False)
    if not turns or not names:
        return []
    rows = {"baseline, ms": {turn: results.median(turn, "baseline", "cpu_ms") for turn in turns}}
    rows |= {f"{name}, ×": {turn: results.ratio(turn, name, "baseline") for turn in turns} for name in names[1:]}
    return [
        _legend(turns),
        "CPU per turn of the client process: milliseconds of `baseline`, and multiples of it.",
        table("", rows),
    ]


def _size_part(results: Results) -> list[str]:
    if not results.measured(["import", "create", "S7m"]):
        return []
    rows = {
        name: {
            "import, CPU ms": results.median("import", name, "cpu_ms"),
            "agent µs": results.median("create", name, "create_us"),
            "KB per live turn": results.median("S7m", name, "kb_per_turn"),
            "installed MB": results.installed[name]["mb"],
            "packages": len(results.installed[name]["versions"]),
        }
        for name in results.adapters(durable=False)
    }
    return ["Start, size and memory:", table("", rows)]


def _rounds_part(results: Results) -> list[str]:
    columns = {"around round 50": "round_50_ms", "around round 200": "round_200_ms", "ratio": "ratio"}
    names = [name for name in results.adapters(durable=False) if results.values("rounds", name, "ratio")]
    rows = {
        name: {column: results.median("rounds", name, value) for column, value in columns.items()} for name in names
    }
    return ["CPU milliseconds of one model round as the history of a turn grows:", table("", rows)] if rows else []


def _durable_part(results: Results) -> list[str]:
    turns, names = results.measured(DURABLE_TURNS), results.adapters(durable=True)
    if not turns or not names:
        return []
    rows = {
        name: {f"{turn}, CPU ms": results.median(turn, name, "cpu_ms") for turn in turns}
        | {f"{turn} × ours_sqlite": results.ratio(turn, name, "ours_sqlite") for turn in turns}
        for name in names
    }
    return ["Turns that are stored in SQLite. " + _legend(turns), table("", rows)]


def _versions(results: Results) -> list[str]:
    """Return the versions of the packages that the adapters name."""
    found: dict[str, str] = {}
    for name, installed in results.installed.items():
        wanted = {package.split("[")[0].lower() for package in constant(name, "PIP")}
        found |= {p: version for p, version in installed["versions"].items() if p.lower() in wanted}
    return [f"{package} {version}" for package, version in sorted(found.items())]
