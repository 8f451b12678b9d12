"""Reading times as models write them: a moment, or a while from now."""

import re
from datetime import UTC, datetime

from atlas_agents.core.errors import BadArguments

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_WHILE = re.compile(r"(?:in\s+)?(\d{1,6})\s*(s|m|h|d|w|sec|min|hr|second|minute|hour|day|week)s?\.?", re.IGNORECASE)


def when(text: str, now: int) -> int:
    """Milliseconds since 1970; BadArguments unless it is a time to come. One without a zone is UTC, and a day lasts to
    its end."""
    written = text.strip()
    moment = _after(written, now) or _moment(written)
    if moment is None:
        raise BadArguments(
            f"deadline: {text[:80]!r} is no time; write it like 2026-11-15T18:00:00Z, or like 30 minutes"
        )
    if moment <= now:
        raise BadArguments(f"deadline: {text[:80]!r} has passed; now it is {_shown(now)}")
    return moment


def _after(written: str, now: int) -> int | None:
    found = _WHILE.fullmatch(written)
    return now + int(found[1]) * _UNITS[found[2][0].lower()] * 1000 if found else None


def _moment(written: str) -> int | None:
    try:
        found = datetime.fromisoformat(written)
    except ValueError:
        return None
    if len(written) <= len("2026-11-15"):
        found = found.replace(hour=23, minute=59, second=59)
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)


def _shown(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
