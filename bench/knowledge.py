"""Speed of ingest and search in a large knowledge base: `python bench/knowledge.py [--passages 100000] [--postgres
URL]`.

The documents consist of words of tests/knowledge, drawn with a fixed seed and the frequencies of a natural language:
few words are in most passages, most words are in few.
"""

import argparse
import asyncio
import random
import re
import resource
import statistics
import tempfile
import time
from pathlib import Path

from atlas_agents.core.store import Store, Where
from atlas_agents.knowledge.embedding import LocalEmbedder
from atlas_agents.knowledge.library import Knowledge, Searcher
from atlas_agents.knowledge.loaders import Sources
from atlas_agents.storage.sqlite import SqliteStore

CORPUS = Path(__file__).parent.parent / "tests" / "knowledge"
_PASSAGES_PER_DOCUMENT = 50


def questions() -> list[str]:
    lines = (CORPUS / "questions.txt").read_text().splitlines()
    return [line.split("|")[2].strip() for line in lines if line.strip()]


def write_documents(folder: Path, passages: int) -> None:
    """Write sections of about a hundred words, drawn from real text and a long tail of random words."""
    rng = random.Random(11)
    real = re.findall(r"[A-Za-z]+", " ".join(path.read_text() for path in sorted(CORPUS.glob("corpus/*.md"))))
    tail = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(4, 9))) for _ in range(40_000)]
    for number in range(0, passages, _PASSAGES_PER_DOCUMENT):
        lines = [f"# Document {number}"]
        for index in range(_PASSAGES_PER_DOCUMENT):
            words = rng.choices(real, k=70) + [tail[int(len(tail) * rng.random() ** 3)] for _ in range(30)]
            rng.shuffle(words)
            lines += [f"## Section {number + index} {' '.join(rng.choices(real, k=3))}", " ".join(words)]
        (folder / f"d{number:07}.md").write_text("\n\n".join(lines))


async def measure(store: Store, passages: int, rounds: int) -> dict[str, float]:
    """Measure ingest and search in this process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_documents(folder, passages)
        embedder = LocalEmbedder()
        await embedder.embed(["loaded"])
        knowledge = Knowledge(store, embedder, Sources())
        started = time.perf_counter()
        report = await knowledge.add("t", str(folder))
        ingest_seconds = time.perf_counter() - started
        started = time.perf_counter()
        await knowledge.search("t", "the first question reads all vectors")
        first_seconds = time.perf_counter() - started
        searcher = Searcher(store, embedder)
        durations: list[float] = []
        cpu_seconds: list[float] = []
        for question in questions() * rounds:
            started, cpu = time.perf_counter(), time.process_time()
            await searcher.search("t", Where("knowledge"), question, 5)
            durations.append(time.perf_counter() - started)
            cpu_seconds.append(time.process_time() - cpu)
        started = time.perf_counter()
        await knowledge.add("t", str(folder))
        again_seconds = time.perf_counter() - started
        await knowledge.close()
    durations.sort()
    cpu_seconds.sort()
    return {
        "passages": report.passages,
        "ingest/s": report.passages / ingest_seconds,
        "first search ms": first_seconds * 1000,
        "search p50 ms": statistics.median(durations) * 1000,
        "search p95 ms": durations[int(len(durations) * 0.95)] * 1000,
        "search max ms": durations[-1] * 1000,
        "CPU p50 ms": statistics.median(cpu_seconds) * 1000,
        "CPU p95 ms": cpu_seconds[int(len(cpu_seconds) * 0.95)] * 1000,
        "unchanged again s": again_seconds,
        "resident MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--postgres", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store: Store = SqliteStore(Path(folder) / "atlas.db")
        if options.postgres:
            from atlas_agents.storage.postgres import PostgresStore

            store = PostgresStore(options.postgres, schema="bench")
        await store.open()
        try:
            for name, value in (await measure(store, options.passages, options.rounds)).items():
                print(f"{name:18} {value:10.1f}")
        finally:
            await store.close()


if __name__ == "__main__":
    asyncio.run(main())
