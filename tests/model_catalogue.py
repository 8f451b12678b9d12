"""Generates the data of the model catalogue, `providers/models.json`, from the installed `genai-prices`, offline.

Run `make catalogue` after an upgrade of that package. For each vendor the file has its models with their matching
rules, context windows and prices. Rules and prices keep the meaning that they have in `genai-prices`:

- A rule is a list of alternatives, each a list of conditions that all hold: `=` equal, `^` starts with, `$` ends with,
  `*` contains, `~` matches a regular expression.
- Prices that start on a later day are kept with that day; earlier ones than today's are dropped, and so are those of
  certain hours of the day.
"""

import json
import sys
from collections.abc import Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from genai_prices import types
from genai_prices.data import providers

TARGET = Path(__file__).parents[1] / "src/atlas_agents/providers/models.json"
VENDORS: dict[str, list[list[str]]] = {
    "anthropic": [["^claude"]],
    "openai": [["^gpt-"], ["^chatgpt-"], ["^codex-"], ["^computer-use"], ["~^o[134]\\b"]],
    "google": [["^gemini"]],
    "deepseek": [["^deepseek"]],
    "x-ai": [["^grok"]],
    "mistral": [["~^(?:labs-)?(?:mi|code|dev|magi|mini)stral"], ["~^(?:mix|pix|vox)tral"], ["^open-mi"]],
    "moonshotai": [["^kimi"], ["^moonshot"]],
    "minimax": [["^minimax"]],
    "zai": [["^glm-"]],
    "cohere": [["^command"]],
    "meta": [["^muse-"]],
    "aws": [["*anthropic.claude"]],
}
"""Vendors that sell their own models, and the names that are looked up there; of Amazon's only Anthropic's models, as
their price depends on the region. Open models, which many companies sell and anyone can run, have no price here."""
_OPEN = ("gpt-oss", "gemma")
_WINDOWS = {"gemini-2.5": 1_048_576, "gemini-3": 1_048_576}
"""Context windows that are missing in `genai-prices`, by prefix: ai.google.dev/gemini-api/docs/models."""
_RATES = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok")


def generate(today: date) -> str:
    """Return the content of the data file."""
    known = {provider.id: provider for provider in providers}
    lines: list[str] = []
    for vendor, names in VENDORS.items():
        models = [_model(each, today) for each in known[vendor].models if _is_wanted(vendor, each)]
        rows = ",\n".join(_dump(row) for row in models)
        lines.append(f"[{_dump(vendor)},{_dump(names)},[\n{rows}\n]]")
    source = f"genai-prices {version('genai-prices')}"
    return f"[{_dump(source)},{_dump(today.isoformat())},[\n" + ",\n".join(lines) + "\n]]\n"


def _is_wanted(vendor: str, model: types.ModelInfo) -> bool:
    if vendor == "aws":
        return "anthropic" in model.id
    return not model.id.startswith(_OPEN) and not (vendor == "google" and model.id.startswith("claude"))


def _model(model: types.ModelInfo, today: date) -> list[Any]:
    prices = [row for row in _price_rows(model, today) if len(row[1]) > 1 and None not in row[1][:2]]
    window = model.context_window or next((size for name, size in _WINDOWS.items() if model.id.startswith(name)), None)
    return [model.id.lower(), _alternatives(model.match), window, prices]


def _price_rows(model: types.ModelInfo, today: date) -> Iterator[list[Any]]:
    """Yield the first day of each price, the price, and the prices of larger requests; today's is the first."""
    found = (
        [types.ConditionalPrice(prices=model.prices)] if isinstance(model.prices, types.ModelPrice) else model.prices
    )
    rows: list[list[Any]] = []
    for each in found:
        if isinstance(each.constraint, types.TimeOfDateConstraint):
            continue
        start = each.constraint.start_date if each.constraint else date.min
        if start <= today:
            rows.clear()
        rows.append(["" if start <= today else start.isoformat(), _rates(each.prices, 0), _tiers(each.prices)])
    yield from rows


def _rates(price: types.ModelPrice, tokens: int) -> list[float | None]:
    """Return the prices of a request with this many input tokens."""
    values = [getattr(price, name) for name in _RATES]
    while values and values[-1] is None:
        values.pop()
    return [None if value is None else _at(value, tokens) for value in values]


def _at(value: Any, tokens: int) -> float:
    if isinstance(value, types.TieredPrices):
        fitting = [tier.price for tier in value.tiers if tokens > tier.start]
        value = fitting[-1] if fitting else value.base
    return int(value) if value == int(value) else float(value)


def _tiers(price: types.ModelPrice) -> list[Any]:
    values = [getattr(price, name) for name in _RATES]
    starts = sorted({tier.start for value in values if isinstance(value, types.TieredPrices) for tier in value.tiers})
    return [[start, _rates(price, start + 1)] for start in starts]


def _alternatives(clause: Any) -> list[list[str]]:
    match clause:
        case types.ClauseOr():
            return [each for inner in clause.or_ for each in _alternatives(inner)]
        case types.ClauseAnd():
            found: list[list[str]] = [[]]
            for inner in clause.and_:
                found = [[*one, *other] for one in found for other in _alternatives(inner)]
            return found
        case types.ClauseEquals():
            return [["=" + clause.equals.lower()]]
        case types.ClauseStartsWith():
            return [["^" + clause.starts_with.lower()]]
        case types.ClauseEndsWith():
            return [["$" + clause.ends_with.lower()]]
        case types.ClauseContains():
            return [["*" + clause.contains.lower()]]
        case types.ClauseRegex():
            return [["~" + clause.regex]]
        case _:
            raise TypeError(f"unknown matching rule: {clause!r}")


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def main() -> None:
    today = date.fromisoformat(sys.argv[1]) if len(sys.argv) > 1 else date.today()
    TARGET.write_text(generate(today), encoding="utf-8")
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
