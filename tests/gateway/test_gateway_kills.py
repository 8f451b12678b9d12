"""Clients that reconnect at once to a gateway that is killed, also while it starts: none is left without an answer.

`make crash` runs more than 1,000 kills.
"""

from collections.abc import Callable

import pytest
from kill_cases import run_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SEEDS, KILLS = 100, 20


async def test_reconnecting_clients_receive_every_run_to_its_end(
    record_property: Callable[[str, object], None],
) -> None:
    result = await run_cases(range(1, 1 + SEEDS), KILLS, concurrency=3)
    record_property("crash_cases", result.cases)
    assert not result.bad, "\n\n".join(result.bad)
    assert result.kills >= KILLS and result.kills_during_start >= KILLS / 6, "so few kills prove little"
