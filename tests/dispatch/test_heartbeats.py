"""When a leader may conclude from a missing heartbeat that a worker is dead."""

import pytest

from atlas_agents.dispatch.queue import HEARTBEAT_TIMEOUT, HeartbeatRecord

_INTERVAL = HEARTBEAT_TIMEOUT / 4
_UNLOCKED = HEARTBEAT_TIMEOUT / 2
"""Timeout for a worker whose lock is gone."""


def _record(*, until: float) -> HeartbeatRecord:
    """Return a record with regular heartbeats since the time 0."""
    record = HeartbeatRecord(_INTERVAL, 3.0, 0.0)
    for n in range(1, round(until / _INTERVAL) + 1):
        record.add(n * _INTERVAL, has_failed=False)
    return record


def test_started_worker_waits_until_others_had_time_to_reconnect() -> None:
    record = _record(until=1.5)
    assert not record.can_judge(2.9, HEARTBEAT_TIMEOUT) and record.can_judge(3.0, HEARTBEAT_TIMEOUT)


def test_late_heartbeats_without_an_outage_do_not_delay_a_takeover() -> None:
    record = _record(until=30.0)
    for n in range(1, 20):
        record.add(30.0 + 2.5 * n, has_failed=False)
        assert all(record.can_judge(30.0 + 2.5 * n + part / 10, HEARTBEAT_TIMEOUT) for part in range(25))


def test_clock_of_the_database_that_is_set_forward_gives_live_workers_time_for_a_heartbeat() -> None:
    record = _record(until=30.0)
    record.note_clock(29.0, 30.5, 999.0)  # the answer was late
    record.note_clock(31.0, 31.0, 1_001.0)
    record.note_clock(31.0, 33.0, 1_002.0)
    assert record.can_judge(31.0, HEARTBEAT_TIMEOUT)
    record.note_clock(31.4, 31.4, 1_011.4)
    assert not any(record.can_judge(31.4 + part / 10, HEARTBEAT_TIMEOUT) for part in range(30))
    record.add(33.0, has_failed=False)
    record.note_clock(34.0, 34.0, 1_014.0)
    assert record.can_judge(34.5, HEARTBEAT_TIMEOUT)


def test_clock_of_the_database_that_is_set_back_does_not_delay_a_takeover() -> None:
    record = _record(until=30.0)
    record.note_clock(30.0, 30.0, 1_000.0)
    record.note_clock(31.0, 31.0, 900.0)
    assert record.can_judge(31.0, HEARTBEAT_TIMEOUT)


def test_short_outage_does_not_delay_a_takeover() -> None:
    record = _record(until=30.0)
    record.add(32.0, has_failed=True)
    assert record.can_judge(32.1, HEARTBEAT_TIMEOUT)


@pytest.mark.parametrize("timeout", [HEARTBEAT_TIMEOUT, _UNLOCKED])
def test_no_live_worker_looks_dead_after_an_outage(timeout: float) -> None:
    for outage in (1.0, 2.5, 4.0, 6.0, 60.0):
        record = _record(until=30.0)
        back = 30.0 + outage
        record.add(back, has_failed=True)
        for tenth in range(30):  # a worker whose last heartbeat was one interval earlier
            now = back + tenth / 10
            looks_dead = now - (30.0 - _INTERVAL) > timeout
            assert not (looks_dead and record.can_judge(now, timeout)), (outage, now)
        record.add(back + _INTERVAL, has_failed=False)
        record.add(back + 2 * _INTERVAL, has_failed=False)
        assert record.can_judge(back + 3.1, timeout)


def test_second_outage_gives_live_workers_their_time_again() -> None:
    record = _record(until=30.0)
    record.add(40.0, has_failed=True)
    record.add(42.5, has_failed=True)
    assert not any(record.can_judge(42.5 + part / 10, HEARTBEAT_TIMEOUT) for part in range(30))
    record.add(44.0, has_failed=False)
    assert record.can_judge(45.6, HEARTBEAT_TIMEOUT)


def test_worker_that_cannot_reach_the_database_judges_no_one() -> None:
    record = _record(until=30.0)
    assert record.can_judge(34.4, HEARTBEAT_TIMEOUT) and not record.can_judge(34.6, HEARTBEAT_TIMEOUT)


def test_worker_without_its_lock_is_dead_sooner_but_not_right_after_an_outage() -> None:
    record = _record(until=30.0)
    assert record.can_judge(31.0, _UNLOCKED)
    record.add(32.0, has_failed=True)
    assert not record.can_judge(32.1, _UNLOCKED) and record.can_judge(32.1, HEARTBEAT_TIMEOUT)


def test_lost_locks_are_no_evidence_while_live_workers_reconnect_after_a_restart() -> None:
    record = _record(until=30.0)
    record.add(32.5, has_failed=False)  # it waited for a connection; others have sent their last one at 28.6
    assert record.unlocked_timeout(32.6, connected_for=0.2) == HEARTBEAT_TIMEOUT
    assert record.unlocked_timeout(32.6, connected_for=30.0) == _UNLOCKED
