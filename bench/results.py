"""Results of a run as a flat list of records, with their medians and ratios."""

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from venvs import adapter_names

Record = dict[str, Any]  # round, scenario, adapter, then the measured values or `error`


@dataclass
class Results:
    """All records of a run. `loads` has the load average at the start of each round."""

    machine: dict[str, Any]
    loads: list[float] = field(default_factory=list[float])
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
    def adapters(self) -> list[str]:
        return [name for name in adapter_names() if name in self.installed]

    def of(self, scenario: str, adapter: str) -> list[Record]:
        return [r for r in self.records if r["scenario"] == scenario and r["adapter"] == adapter]

    def values(self, scenario: str, adapter: str, name: str) -> dict[int, float]:
        """Return one measured value by round."""
        return {r["round"]: r[name] for r in self.of(scenario, adapter) if name in r}

    def median(self, scenario: str, adapter: str, name: str) -> float | None:
        values = self.values(scenario, adapter, name)
        return statistics.median(values.values()) if values else None

    def ratio(self, scenario: str, adapter: str, other: str, name: str = "cpu_ms") -> float | None:
        """Return the median of the ratios within each round, which cancels out noise that affects a whole round."""
        ours, theirs = self.values(scenario, adapter, name), self.values(scenario, other, name)
        ratios = [ours[number] / theirs[number] for number in ours.keys() & theirs.keys()]
        return statistics.median(ratios) if ratios else None

    def spread(self, scenario: str, adapter: str, name: str) -> float | None:
        """Return the interquartile range in percent of the median."""
        values = list(self.values(scenario, adapter, name).values())
        if len(values) < 3:
            return None
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return (high - low) / middle * 100

    @property
    def failures(self) -> list[str]:
        """Return one line per scenario and adapter that failed at least once."""
        texts: dict[tuple[str, str], list[str]] = {}
        for record in self.records:
            if "error" in record:
                texts.setdefault((record["adapter"], record["scenario"]), []).append(record["error"])
        return [f"FAILED {len(errors)}×: {a} {s}: {_last_line(errors[0])}" for (a, s), errors in texts.items()]


def _last_line(text: str) -> str:
    return (text.splitlines() or [""])[-1][:200]
