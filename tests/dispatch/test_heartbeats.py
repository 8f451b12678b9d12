"""When a leader may conclude from a missing heartbeat that a worker is dead."""

from atlas_agents.dispatch.queue import HEARTBEAT_TIMEOUT, HeartbeatRecord

_INTERVAL = HEARTBEAT_TIMEOUT / 4


def _record(*, until: float) -> HeartbeatRecord:
    """Return a record with regular heartbeats since the time 0."""
    record = HeartbeatRecord(HEARTBEAT_TIMEOUT, 0.0)
    for n in range(1, round(until / _INTERVAL) + 1):
        record.add(n * _INTERVAL, has_failed=False)
    return record


def test_started_worker_waits_until_others_had_time_to_reconnect() -> None:
    record = _record(until=1.5)
    assert not record.can_judge_others(2.9) and record.can_judge_others(3.0)


def test_late_heartbeats_without_an_outage_do_not_delay_a_takeover() -> None:
    record = _record(until=30.0)
    for n in range(1, 20):
        record.add(30.0 + 2.5 * n, has_failed=False)
        assert all(record.can_judge_others(30.0 + 2.5 * n + part / 10) for part in range(25))


def test_short_outage_does_not_delay_a_takeover() -> None:
    record = _record(until=30.0)
    record.add(32.0, has_failed=True)
    assert record.can_judge_others(32.1)


def test_no_live_worker_looks_dead_after_an_outage() -> None:
    for outage in (1.0, 2.5, 4.0, 6.0, 60.0):
        record = _record(until=30.0)
        back = 30.0 + outage
        record.add(back, has_failed=True)
        for tenth in range(30):  # a worker whose last heartbeat was one interval earlier
            now = back + tenth / 10
            looks_dead = now - (30.0 - _INTERVAL) > HEARTBEAT_TIMEOUT
            assert not (looks_dead and record.can_judge_others(now)), (outage, now)
        record.add(back + _INTERVAL, has_failed=False)
        record.add(back + 2 * _INTERVAL, has_failed=False)
        assert record.can_judge_others(back + 3.1)


def test_second_outage_gives_live_workers_their_time_again() -> None:
    record = _record(until=30.0)
    record.add(40.0, has_failed=True)
    record.add(42.5, has_failed=True)
    assert not any(record.can_judge_others(42.5 + part / 10) for part in range(30))
    record.add(44.0, has_failed=False)
    assert record.can_judge_others(45.6)


def test_worker_that_cannot_reach_the_database_judges_no_one() -> None:
    record = _record(until=30.0)
    assert record.can_judge_others(34.4) and not record.can_judge_others(34.6)
