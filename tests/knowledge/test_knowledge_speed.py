"""A short run of bench/knowledge.py, to notice slowdowns."""

import time
from pathlib import Path

import pytest

from atlas_agents.storage.sqlite import SqliteStore
from checks import cpu_factor, load_benchmark


@pytest.mark.slow
async def test_import_and_search_of_three_thousand_passages_are_fast(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    began = time.process_time()
    measured = await load_benchmark("knowledge").measure(store, 3_000, 1)
    await store.close()
    assert measured["passages"] == 3_000
    slower = 2 * cpu_factor()
    assert time.process_time() - began <= 15 * slower, measured  # 200 per second of CPU time
    assert measured["CPU p50 ms"] <= 25 * slower, measured
    assert measured["CPU p95 ms"] <= 50 * slower, measured
