"""Results as Markdown: the short page for the docs and the long report for tuning."""

from collections.abc import Callable, Iterable

from results import Results
from scenarios import SCENARIOS
from venvs import constant

Cell = Callable[[str], str]  # value of an adapter in a column

TURNS = [name for name in SCENARIOS if name not in ("S7m", "rounds") and not SCENARIOS[name].durable]
DURABLE_TURNS = [name for name in SCENARIOS if SCENARIOS[name].durable]
SHOWN_VERSIONS = {"atlas-agents", "openai", "httpx", "pydantic"}  # besides the packages that an adapter requires


def number(value: float | None) -> str:
    """Format with three digits; counts are exact."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def short_page(results: Results) -> str:
    """Return the tables for the docs."""
    return "\n\n".join(
        [
            _machine(results),
            *_turns_part(results),
            *_rounds_part(results),
            *_durable_part(results),
            "Versions: " + "; ".join(_versions(results)) + ".",
            *results.failures,
        ]
    )


def _turns_part(results: Results) -> list[str]:
    names, turns = _in_memory(results), _measured(results, TURNS)
    if not turns:
        return []
    return [
        " · ".join(f"**{name}** {SCENARIOS[name].note}" for name in turns) + ".",
        "CPU milliseconds of the client process per turn, median:",
        _table(names, {name: _median(results, name, "cpu_ms") for name in turns}),
        "The same as a multiple of `baseline`, each round compared with itself:",
        _table(names, {name: _times_baseline(results, name) for name in turns}),
        "Start, size and memory:",
        _table(names, _size_columns(results)),
    ]


def long_report(results: Results) -> str:
    """Return the short page and all other measurements."""
    names = _in_memory(results)
    turns = _measured(results, TURNS)
    detail = {
        "Spread of the CPU figures (interquartile range, %)": {s: _spread(results, s) for s in turns},
        "Wall milliseconds per turn": {s: _median(results, s, "wall_ms") for s in turns},
        "Streaming": _streaming_columns(results),
        "256 turns at once, and memory": _crowd_columns(results),
    }
    if any("perf" in record for record in results.records):
        detail["Counted by perf, per turn"] = {s: _median(results, s, "perf") for s in turns}
    tables = [f"{title}:\n\n{_table(names, columns)}" for title, columns in detail.items()]
    loads = ", ".join(f"{load:.1f}" for load in results.loads)
    return "\n\n".join([short_page(results), *tables, f"Load average at the start of each round: {loads}."])


def _size_columns(results: Results) -> dict[str, Cell]:
    return {
        "import CPU ms": _median(results, "import", "cpu_ms"),
        "modules": _median(results, "import", "modules"),
        "start to first S2 answer, CPU ms": _median(results, "S2", "boot_cpu_ms"),
        "agent µs": _median(results, "create", "create_us"),
        "agent KB": _median(results, "create", "agent_kb"),
        "KB per live turn": _median(results, "S7m", "kb_per_turn"),
        "installed MB": lambda name: number(results.installed[name]["mb"]),
        "packages": lambda name: str(len(results.installed[name]["versions"])),
    }


def _streaming_columns(results: Results) -> dict[str, Cell]:
    return {
        "S5 CPU µs per delta": _median(results, "S5", "cpu_ms", 1e3 / SCENARIOS["S5"].deltas),
        "S1p CPU µs per delta": _median(results, "S1p", "cpu_ms", 1e3 / SCENARIOS["S1p"].deltas),
        "S5 deltas/s": _median(results, "S5", "turns_per_s", SCENARIOS["S5"].deltas),
        "S1 first delta µs": _median(results, "S1", "first_delta_us"),
        "S1p first delta µs": _median(results, "S1p", "first_delta_us"),
        "S5 first delta µs": _median(results, "S5", "first_delta_us"),
    }


def _crowd_columns(results: Results) -> dict[str, Cell]:
    return {
        "S7 turns/s": _median(results, "S7", "turns_per_s"),
        "S7 p50 ms": _median(results, "S7", "p50_ms"),
        "S7 p99 ms": _median(results, "S7", "p99_ms"),
        "peak RSS S2 MB": _median(results, "S2", "peak_rss_mb"),
        "peak RSS S5 MB": _median(results, "S5", "peak_rss_mb"),
        "peak RSS S7m MB": _median(results, "S7m", "peak_rss_mb"),
    }


def _rounds_part(results: Results) -> list[str]:
    names = [name for name in results.adapters if results.of("rounds", name)]
    if not names:
        return []
    columns = {
        "around round 50": _median(results, "rounds", "round_50_ms"),
        "around round 200": _median(results, "rounds", "round_200_ms"),
        "ratio": _median(results, "rounds", "ratio"),
    }
    return ["CPU milliseconds of one model round as the history of a turn grows:", _table(names, columns)]


def _durable_part(results: Results) -> list[str]:
    turns = _measured(results, DURABLE_TURNS)
    if not turns:
        return []
    legend = " · ".join(f"**{name}** {SCENARIOS[name].note}" for name in turns)
    columns = {f"{name}, CPU ms": _median(results, name, "cpu_ms") for name in turns}
    columns |= {f"{name} × ours_sqlite": _times(results, name, "ours_sqlite") for name in turns}
    return [f"Turns that are stored in SQLite. {legend}.", _table(_durable(results), columns)]


def _durable(results: Results) -> list[str]:
    return [name for name in results.adapters if constant(name, "DURABLE", False)]


def _in_memory(results: Results) -> list[str]:
    return [name for name in results.adapters if not constant(name, "DURABLE", False)]


def _table(names: Iterable[str], columns: dict[str, Cell]) -> str:
    lines = ["| | " + " | ".join(columns) + " |", "|---" + "|---:" * len(columns) + "|"]
    lines += [f"| {name} | " + " | ".join(cell(name) for cell in columns.values()) + " |" for name in names]
    return "\n".join(lines)


def _measured(results: Results, scenarios: list[str]) -> list[str]:
    seen = {record["scenario"] for record in results.records}
    return [name for name in scenarios if name in seen]


def _median(results: Results, scenario: str, field: str, scale: float = 1.0) -> Cell:
    def cell(adapter: str) -> str:
        value = results.median(scenario, adapter, field)
        return number(None if value is None else value * scale)

    return cell


def _times_baseline(results: Results, scenario: str) -> Cell:
    return _times(results, scenario, "baseline")


def _times(results: Results, scenario: str, other: str) -> Cell:
    return lambda adapter: number(results.ratio(scenario, adapter, other))


def _spread(results: Results, scenario: str) -> Cell:
    return lambda adapter: number(results.spread(scenario, adapter, "cpu_ms"))


def _machine(results: Results) -> str:
    machine = results.machine
    pinned = "client and server on a core each" if machine["pinned"] else "cores not pinned"
    count = len(results.loads)
    rounds = "1 round" if count == 1 else f"{count} interleaved rounds"
    return f"Python {machine['python']}, {machine['cpus']} × {machine['cpu']}, {pinned}, {rounds}, {machine['date']}."


def _versions(results: Results) -> list[str]:
    lines: list[str] = []
    for name in results.adapters:
        wanted = SHOWN_VERSIONS | {package.split("[")[0].lower() for package in constant(name, "PIP")}
        versions = results.installed[name]["versions"]
        lines.append(f"{name}: " + ", ".join(f"{p} {v}" for p, v in versions.items() if p.lower() in wanted))
    return lines
