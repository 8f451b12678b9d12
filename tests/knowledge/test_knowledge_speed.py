"""A short run of bench/knowledge.py, to notice slowdowns."""

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest

from atlas_agents.storage.sqlite import SqliteStore
from checks import cpu_factor

BENCH = Path(__file__).parents[2] / "bench" / "knowledge.py"


def bench() -> Any:
    found = importlib.util.spec_from_file_location("bench_knowledge", BENCH)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.slow
async def test_import_and_search_of_three_thousand_passages_are_fast(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    began = time.process_time()
    measured = await bench().measure(store, 3_000, 1)
    await store.close()
    assert measured["passages"] == 3_000
    slower = 2 * cpu_factor()
    assert time.process_time() - began <= 15 * slower, measured  # 200 per second of CPU time
    assert measured["CPU p50 ms"] <= 25 * slower, measured
    assert measured["CPU p95 ms"] <= 50 * slower, measured
