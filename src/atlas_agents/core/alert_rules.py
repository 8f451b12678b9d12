"""Alert rules of the gateway, such as `error_rate > 10% for 5m to webhook`."""

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias, cast, get_args

import msgspec

from atlas_agents.core.errors import ConfigError

AlertMetric: TypeAlias = Literal[
    "error_rate",
    "first_token_p50",
    "first_token_p95",
    "first_token_p99",
    "turn_p50",
    "turn_p95",
    "turn_p99",
    "turns_open",
    "queue_waiting",
    "queue_lag",
    "workers_lost",
    "model_error_rate",
    "models_cooling",
    "budget_used",
    "disk_used",
]
"""Metrics of alert rules. Rates and shares are between 0 and 1, times are in seconds."""
ALERT_METRICS: tuple[AlertMetric, ...] = get_args(AlertMetric)
AlertTarget: TypeAlias = Literal["webhook", "telegram"]
_RULE = re.compile(
    r"(?P<metric>[a-z0-9_]+)\s*(?P<sign>[<>])\s*(?P<number>\d+(?:\.\d+)?)(?P<percent>%?)"
    r"(?:\s+for\s+(?P<hold>\d+(?:\.\d+)?)\s*(?P<unit>[smh]))?(?:\s+to\s+(?P<target>\w+))?"
)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_DEFAULT_HOLD = 60.0


class AlertRule(msgspec.Struct, frozen=True):
    """A condition that must hold for some seconds, and where to report it; no target means all."""

    text: str
    metric: AlertMetric
    above: bool
    threshold: float
    hold: float
    target: AlertTarget | None = None

    def applies(self, value: float | None) -> bool:
        """Return whether the condition holds for a value; it never holds for None, a missing value."""
        if value is None:
            return False
        return value > self.threshold if self.above else value < self.threshold


def parse_alert_rules(texts: Sequence[str]) -> tuple[AlertRule, ...]:
    """Parse rules such as `error_rate > 10% for 5m to webhook`; raises ConfigError for an invalid rule."""
    return tuple([_parse_rule(text.strip()) for text in texts])


def _parse_rule(text: str) -> AlertRule:
    found = _RULE.fullmatch(text)
    if found is None:
        raise ConfigError(f"invalid alert rule {text!r}: expected one like 'error_rate > 10% for 5m to webhook'")
    if found["metric"] not in ALERT_METRICS:
        raise ConfigError(f"unknown metric {found['metric']!r} in {text!r}: expected one of {', '.join(ALERT_METRICS)}")
    if found["target"] not in (None, *get_args(AlertTarget)):
        raise ConfigError(f"unknown target {found['target']!r} in {text!r}: expected webhook or telegram")
    hold = float(found["hold"]) * _UNITS[found["unit"]] if found["hold"] else _DEFAULT_HOLD
    threshold = float(found["number"]) / (100 if found["percent"] else 1)
    return AlertRule(
        text,
        found["metric"],
        found["sign"] == ">",
        threshold,
        hold,
        cast(AlertTarget | None, found["target"]),
    )
