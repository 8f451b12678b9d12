"""Times as people say them."""

import time
from datetime import datetime

_STEPS = ((60, "s"), (3600, "min"), (86400, "h"))


def ago(milliseconds: int, now: float | None = None) -> str:
    """`just now`, `5 min ago`, `3 h ago`, and a day beyond that."""
    passed = (time.time() if now is None else now) - milliseconds / 1000
    if passed < 5:
        return "just now"
    size = 1
    for limit, unit in _STEPS:
        if passed < limit:
            return f"{passed / size:.0f} {unit} ago"
        size = limit
    return day(milliseconds)


def lasting(seconds: float) -> str:
    """`0.4 s`, `12 s`, `5 min`, `3 h`, `9 days`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    size = 1
    for limit, unit in _STEPS:
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
        size = limit
    return f"{seconds / size:.0f} days" if seconds >= 1.5 * size else "1 day"


def day(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d")


def moment(milliseconds: int) -> str:
    """A date and a time on this machine's clock."""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
