"""How fast a large library is filled and searched: `python bench/knowledge.py [--passages 100000] [--postgres URL]`.

The documents are made of the words of tests/knowledge, by a fixed seed, with frequencies as in a language: few words
are in most passages, most words in few.
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
from atlas_agents.knowledge.library import Knowledge
from atlas_agents.knowledge.loaders import Sources
from atlas_agents.knowledge.search import Searcher
from atlas_agents.storage.sqlite import SqliteStore

CORPUS = Path(__file__).parent.parent / "tests" / "knowledge"
_OF_A_DOCUMENT = 50


def questions() -> list[str]:
    lines = (CORPUS / "questions.txt").read_text().splitlines()
    return [line.split("|")[2].strip() for line in lines if line.strip()]


def write_documents(folder: Path, passages: int) -> None:
    """Sections of about a hundred words, drawn from real text and from a long tail of made-up words."""
    rng = random.Random(11)
    real = re.findall(r"[A-Za-z]+", " ".join(path.read_text() for path in sorted(CORPUS.glob("corpus/*.md"))))
    tail = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(4, 9))) for _ in range(40_000)]
    for number in range(0, passages, _OF_A_DOCUMENT):
        lines = [f"# Document {number}"]
        for place in range(_OF_A_DOCUMENT):
            words = rng.choices(real, k=70) + [tail[int(len(tail) * rng.random() ** 3)] for _ in range(30)]
            rng.shuffle(words)
            lines += [f"## Section {number + place} {' '.join(rng.choices(real, k=3))}", " ".join(words)]
        (folder / f"d{number:07}.md").write_text("\n\n".join(lines))


async def measure(store: Store, passages: int, rounds: int) -> dict[str, float]:
    """Seconds and milliseconds, all on this machine and in this process."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_documents(folder, passages)
        embedder = LocalEmbedder()
        await embedder.embed(["loaded"])
        knowledge = Knowledge(store, embedder, Sources())
        begun = time.perf_counter()
        report = await knowledge.add("t", str(folder))
        filled = time.perf_counter() - begun
        begun = time.perf_counter()
        await knowledge.search("t", "the first question reads all vectors")
        first = time.perf_counter() - begun
        searcher = Searcher(store, embedder)
        took: list[float] = []
        busy: list[float] = []
        for question in questions() * rounds:
            begun, cpu = time.perf_counter(), time.process_time()
            await searcher.search("t", Where("knowledge"), question, 5)
            took.append(time.perf_counter() - begun)
            busy.append(time.process_time() - cpu)
        begun = time.perf_counter()
        await knowledge.add("t", str(folder))
        again = time.perf_counter() - begun
        await knowledge.close()
    took.sort()
    busy.sort()
    return {
        "passages": report.passages,
        "ingest/s": report.passages / filled,
        "first search ms": first * 1000,
        "search p50 ms": statistics.median(took) * 1000,
        "search p95 ms": took[int(len(took) * 0.95)] * 1000,
        "search max ms": took[-1] * 1000,
        "CPU p50 ms": statistics.median(busy) * 1000,
        "CPU p95 ms": busy[int(len(busy) * 0.95)] * 1000,
        "unchanged again s": again,
        "resident MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--postgres", default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        store: Store = SqliteStore(Path(place) / "atlas.db")
        if given.postgres:
            from atlas_agents.storage.postgres import PostgresStore

            store = PostgresStore(given.postgres, schema="bench")
        await store.open()
        try:
            for name, value in (await measure(store, given.passages, given.rounds)).items():
                print(f"{name:18} {value:10.1f}")
        finally:
            await store.close()


if __name__ == "__main__":
    asyncio.run(main())
