"""Markdown tables of measured values. Standard library only."""

import statistics
from collections.abc import Mapping, Sequence


def number(value: float | None) -> str:
    """Format with three digits; counts are exact."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each value over the rounds."""
    return {name: statistics.median([each[name] for each in rounds]) for name in rounds[0]}


def table(corner: str, rows: Mapping[str, Mapping[str, float | None]]) -> str:
    """Return a Markdown table with one row per name; all rows have the columns of the first one."""
    columns = list(next(iter(rows.values())))
    lines = [f"| {corner} | " + " | ".join(columns) + " |", "|---" + "|---:" * len(columns) + "|"]
    for name, row in rows.items():
        lines.append(f"| {name} | " + " | ".join(number(row[column]) for column in columns) + " |")
    return "\n".join(lines)
