"""Compare the results with our bars: python bench/check.py [--out results.json]. Exits with 1 if one is missed."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from results import Results
from tables import number
from venvs import BENCH_FOLDER, FIRST

TURN_BARS = ("S1", "S1r", "S2", "S2r", "S3", "S4", "S5", "S6", "S7")
TIMES_BASELINE, TIMES_BASELINE_PACED = 3.0, 1.5
SHARE_OF_BEST_PEER = 0.2
ROUNDS_RATIO, ROUND_200_MS = 1.5, 5.0
IMPORT_MS, CREATE_US, KB_PER_TURN = 250.0, 200.0, 80.0


@dataclass(frozen=True)
class Bar:
    """A limit and the measured value, if there is one."""

    what: str
    limit: float
    figure: float | None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.figure is None:
            return "not measured"
        return "pass" if self.figure <= self.limit else "MISS"


def all_bars(results: Results) -> list[Bar]:
    """Return all bars in the order of the table."""

    def figure(scenario: str, field: str) -> float | None:
        return results.median(scenario, "ours", field)

    return [
        *(_baseline_bar(results, name, TIMES_BASELINE) for name in TURN_BARS),
        _baseline_bar(results, "S1p", TIMES_BASELINE_PACED),
        *(_peer_bar(results, name) for name in TURN_BARS),
        Bar("CPU per round, 200 rounds against 50", ROUNDS_RATIO, figure("rounds", "ratio")),
        Bar("CPU ms per round at 400 messages", ROUND_200_MS, figure("rounds", "round_200_ms")),
        Bar("import, CPU ms", IMPORT_MS, figure("import", "cpu_ms")),
        _heavy_bar(results),
        Bar("agent with 10 tools, µs", CREATE_US, figure("create", "create_us")),
        Bar("KB per live turn", KB_PER_TURN, figure("S7m", "kb_per_turn")),
    ]


def _baseline_bar(results: Results, scenario: str, limit: float) -> Bar:
    cpu = results.median(scenario, "ours", "cpu_ms")
    baseline = results.median(scenario, "baseline", "cpu_ms")
    note = f"{number(cpu)} ms, baseline {number(baseline)} ms"
    return Bar(f"{scenario} CPU × baseline", limit, results.ratio(scenario, "ours", "baseline"), note)


def _peer_bar(results: Results, scenario: str) -> Bar:
    """Compare with the fastest peer."""
    what = f"{scenario} CPU × best peer"
    peers = [name for name in results.adapters if name not in FIRST]
    ratios = {peer: results.ratio(scenario, "ours", peer) for peer in peers}
    known = {peer: ratio for peer, ratio in ratios.items() if ratio is not None}
    if not known:
        return Bar(what, SHARE_OF_BEST_PEER, None)
    best = max(known, key=lambda peer: known[peer])
    note = f"{best} {number(results.median(scenario, best, 'cpu_ms'))} ms"
    return Bar(what, SHARE_OF_BEST_PEER, known[best], note)


def _heavy_bar(results: Results) -> Bar:
    what = "pydantic, HTTP client, database in the import"
    lists = [record["heavy"] for record in results.of("import", "ours") if "heavy" in record]
    return Bar(what, 0, len(lists[-1]) if lists else None, ", ".join(lists[-1]) if lists else "")


def bars_table(bars: list[Bar]) -> str:
    lines = ["| bar | at most | measured | | |", "|---|---:|---:|---|---|"]
    lines += [f"| {b.what} | {b.limit:g} | {number(b.figure)} | {b.verdict} | {b.note} |" for b in bars]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BENCH_FOLDER / "results.json", help="the results file to read")
    results = Results.load(parser.parse_args().out)
    bars = all_bars(results)
    missed = sum(bar.verdict == "MISS" for bar in bars)
    unmeasured = sum(bar.figure is None for bar in bars)
    print(bars_table(bars))
    print(
        f"\n{len(bars) - missed - unmeasured} pass, {missed} miss, {unmeasured} not measured; "
        f"{len(results.loads)} rounds, {len(results.failures)} failed measurements."
    )
    for line in results.failures:
        print(line)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
