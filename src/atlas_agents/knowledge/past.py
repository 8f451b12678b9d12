"""What else an agent can look back on: the calls it made, the turns it took, and the jobs it gave out or did, with this
person and nobody else."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from atlas_agents.core.jobs import JobRow, JobState
from atlas_agents.core.messages import Message
from atlas_agents.core.shelves import Hit
from atlas_agents.core.store import Store
from atlas_agents.knowledge.embedding import Embedder
from atlas_agents.knowledge.fusion import WORDS_WEIGH, words_of
from atlas_agents.knowledge.memories import Whose
from atlas_agents.stores.words import plain
from atlas_agents.tools.audit import Entry

_ROWS = 2_000
_SESSIONS = 40
_JOBS = 500
_OVER: tuple[JobState, ...] = ("done", "failed", "expired", "cancelled", "dead")
_MESSAGES = 60
_COMPARED = 60
_SHOWN = 600
_entries = msgspec.json.Decoder(Entry)


class Moment(msgspec.Struct, frozen=True):
    """Something that happened: what it was, when, and the id by which it can be looked up."""

    text: str
    at: int
    id: str


class Past(Protocol):
    """A place to look back at: `search_my_memories` asks each for the moments of one agent with one person."""

    async def moments(self, whose: Whose) -> Sequence[Moment]: ...


class Calls:
    """The agent's own calls for this person, out of the audit log; it is redacted already."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def moments(self, whose: Whose) -> Sequence[Moment]:
        found: list[Moment] = []
        for row in await self._store.audit(whose.tenant, limit=_ROWS, last=True):
            entry = _entries.decode(row.entry)
            if (entry.actor_external_id, str(entry.meta.get("user", ""))) != (whose.agent_id, whose.user):
                continue
            arguments = msgspec.json.encode(entry.meta.get("arguments", {}), enc_hook=str).decode()
            result = str(entry.meta.get("result") or entry.meta.get("error") or "")
            words = f"{entry.message}. Arguments: {arguments} Result: {result}"
            found.append(Moment(words[:_SHOWN], entry.timestamp, f"audit:{row.seq}"))
        return found


class Turns:
    """The turns that the agent took for this person: what was asked, and what it said last."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def moments(self, whose: Whose) -> Sequence[Moment]:
        found: list[Moment] = []
        for session in await self._store.sessions(whose.tenant, limit=_SESSIONS):
            runs = {
                run.id: run
                for run in await self._store.runs(whose.tenant, session.key)
                if (run.agent_id, run.user) == (whose.agent_id, whose.user)
            }
            if not runs:
                continue
            said: dict[str, list[Message]] = {}
            for row in await self._store.messages(whose.tenant, session.key, limit=_MESSAGES, last=True):
                if row.run_id in runs:
                    said.setdefault(row.run_id, []).append(Message.from_json(row.body))
            found += [
                Moment(_turn(messages, runs[id].status), runs[id].created_at, f"run:{id}")
                for id, messages in said.items()
            ]
        return found


class Jobs:
    """The jobs that the agent gave to others or did itself, for this person: what was to be done, and what came of it.

    Only those that are over: one that is open has a turn of its own still.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def moments(self, whose: Whose) -> Sequence[Moment]:
        return [
            Moment(_job(job), job.ended_at or job.created_at, f"job:{job.id}")
            for job in await self._store.jobs(whose.tenant, states=_OVER, limit=_JOBS)
            if job.user == whose.user and whose.agent_id in (job.agent_id, job.asker_agent)
        ]


def _job(job: JobRow) -> str:
    asker = f", asked by {job.asker_agent}" if job.asker_agent else ""
    came = job.result or job.error or ""
    return f"Task for {job.agent_id}{asker}: {job.task[:_SHOWN]}\nResult ({job.state}): {came[:_SHOWN]}"


def _turn(messages: Sequence[Message], status: str) -> str:
    asked = next((each.text for each in messages if each.role == "user" and not each.metadata.get("synthetic")), "")
    answer = next((each.text for each in reversed(messages) if each.role == "assistant" and each.text), "")
    return f"Asked: {asked[:_SHOWN]}\nAnswered ({status}): {answer[:_SHOWN]}"


async def ranked(
    moments: Sequence[Moment], question: str, embedder: Embedder | None, most: int
) -> list[tuple[Moment, float]]:
    """Those that share words with the question, by how many, and by how near they are in meaning."""
    wanted = {word.casefold() for word in plain(words_of(question))}
    hits = [
        Hit(place, len(wanted & {word.casefold() for word in plain([moment.text])}) / max(len(wanted), 1))
        for place, moment in enumerate(moments)
    ]
    best = sorted((hit for hit in hits if hit.score > 0), key=lambda hit: (-hit.score, -moments[hit.passage].at))
    chosen = best[:_COMPARED]
    near = await _cosines([moments[hit.passage].text for hit in chosen], question, embedder)
    scored = [
        (moments[hit.passage], round(cosine + WORDS_WEIGH * hit.score, 4))
        for hit, cosine in zip(chosen, near, strict=True)
    ]
    return sorted(scored, key=lambda pair: (-pair[1], -pair[0].at))[:most]


async def _cosines(texts: Sequence[str], question: str, embedder: Embedder | None) -> list[float]:
    if embedder is None or not texts:
        return [0.0] * len(texts)
    import numpy

    wanted, *vectors = await embedder.embed([question, *texts])
    if not wanted:
        return [0.0] * len(texts)
    first = numpy.frombuffer(wanted, numpy.float16).astype(numpy.float32)
    return [
        float(first @ numpy.frombuffer(vector, numpy.float16).astype(numpy.float32)) if vector else 0.0
        for vector in vectors
    ]
