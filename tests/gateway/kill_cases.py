"""Cases in which a gateway is killed and its clients reconnect: `python kill_cases.py --kills 1000`.

Three clients talk to a gateway that is killed at random store operations, those of its start included, and started
again at once. Each must receive its runs to the end, and every session must answer another message afterwards.
"""

import argparse
import asyncio
import os
import random
import resource
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
from kill_scripts import SCRIPTS
from reconnecting_client import Profile, ReconnectingClient, problems

import fork_server

HERE = Path(__file__).parent
SILENT_AFTER = 120.0
"""Seconds without the terminal event, after the last start, that make a client a silent one."""
_PROBLEM = "  problem: "
_PROFILES: tuple[Profile, ...] = ("full", "plain", "repeating")
_FIRST_POINTS, _START_POINTS = 220, 60


class KillCase(msgspec.Struct, frozen=True):
    """A script, and the fault point at which each process is killed in turn; the process after them is not killed."""

    script: str
    kill_at: tuple[int, ...]
    seed: int


KINDS = ("silent client", "stuck session", "lost reset or words", "duplicate frames", "missing message")
"""Kinds of problems that are counted, also if there are none."""


class Result(msgspec.Struct):
    """What happened in some cases."""

    cases: int = 0
    kills: int = 0
    kills_during_start: int = 0
    reconnects: int = 0
    bad: list[str] = []

    def counts(self) -> dict[str, int]:
        """Return the numbers of kills, reconnects and problems by kind."""
        lines = [line.removeprefix(_PROBLEM) for each in self.bad for line in each.splitlines()[1:]]
        problems = Counter([line.split(":")[0] for line in lines])
        return {
            "kills": self.kills,
            "kills during start": self.kills_during_start,
            "reconnects": self.reconnects,
            **{kind: problems[kind] for kind in {**dict.fromkeys(KINDS), **problems}},
        }


def random_case(seed: int) -> KillCase:
    """Draw a case: kills in the middle of a turn, and kills while the gateway starts again."""
    generator = random.Random(seed)
    kill_at = [generator.randint(1, _FIRST_POINTS)]
    kill_at += [generator.randint(1, _START_POINTS) for _ in range(generator.randint(1, 4))]
    return KillCase(generator.choice(list(SCRIPTS)), tuple(kill_at), seed)


async def run_case(case: KillCase, home: Path, result: Result) -> None:
    """Run a case and add what happened to the result."""
    with held_port() as port:
        found = await _run_clients(case, home, port, result)
    result.cases += 1
    if found:
        lines = [_PROBLEM + line for line in found]
        result.bad.append("\n".join([f"CASE {msgspec.json.encode(case).decode()} in {home}", *lines]))


async def _run_clients(case: KillCase, home: Path, port: int, result: Result) -> list[str]:
    """Run the clients and the processes of a case, and return what went wrong."""
    clients = [ReconnectingClient(profile, profile, home, port) for profile in _PROFILES]
    talks = [asyncio.create_task(_talk(client, case, home)) for client in clients]
    found: list[str] = []
    for number, kill_at in enumerate((*case.kill_at, 0)):
        code = await _run_process(case, number, kill_at, (home, port), talks, result)
        if code != -signal.SIGKILL:
            found += [f"ended gateway: {(home / 'log').read_text()[-2000:]}"] if code is not None else []
            break
    silent = [client for client, talk in zip(clients, talks, strict=True) if not talk.done()]
    for talk in talks:
        talk.cancel()
    found += [f"{'stuck session' if client.answers else 'silent client'}: {client.profile}" for client in silent]
    for client, answer in zip(clients, await asyncio.gather(*talks, return_exceptions=True), strict=True):
        if isinstance(answer, list):
            found += [f"{line} ({client.profile})" for line in answer]
        elif not isinstance(answer, asyncio.CancelledError):
            found.append(f"failed client: {answer!r} ({client.profile})")
    result.reconnects += sum(client.reconnects for client in clients)
    return found


async def _run_process(
    case: KillCase,
    number: int,
    kill_at: int,
    place: tuple[Path, int],
    talks: list[asyncio.Task[list[str]]],
    result: Result,
) -> int | None:
    """Run a gateway process and return its exit code; None if all clients had their answers before it ended."""
    home, port = place
    command = (str(HERE / "kill_process.py"), str(home), str(port), case.script, str(kill_at), str(case.seed + number))
    with (home / "log").open("a") as log:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
        process = await fork_server.start(*command, stderr=log, env=environment)
    ended, talking = asyncio.create_task(process.wait()), asyncio.create_task(asyncio.wait(talks))
    timeout = SILENT_AFTER if kill_at == 0 else None
    await asyncio.wait((ended, talking), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    answered = not ended.done()
    process.send_signal(signal.SIGKILL)
    code = await ended
    talking.cancel()
    if answered:
        return None
    result.kills += 1
    result.kills_during_start += b"ready" not in await process.stdout.read()
    return code


async def _talk(client: ReconnectingClient, case: KillCase, home: Path) -> list[str]:
    """Send a message and, once it is answered, another one to the same session; return what went wrong."""
    found: list[str] = []
    for text in ("Go", "Once more"):
        run_id = await client.send(text)
        client.answers += 1
        found += await asyncio.to_thread(problems, client, run_id, case.script, lambda id: _stored(home, id))
    return found


def _stored(home: Path, run_id: str) -> list[str]:
    with closing(sqlite3.connect(home / "atlas.db")) as database:
        rows = database.execute("SELECT id FROM messages WHERE run_id = ? ORDER BY seq", (run_id,)).fetchall()
    return [id for (id,) in rows]


@contextmanager
def held_port() -> Generator[int]:
    """Yield a port of both loopback addresses that no other process is given, also while no gateway listens on it."""
    with socket.socket() as holder, socket.socket(socket.AF_INET6) as holder_v6:
        for each in (holder, holder_v6):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder_v6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        with suppress(OSError):  # without IPv6 there is nothing to hold
            holder_v6.bind(("::1", port))
        yield port


async def run_cases(seeds: range, kills: int, concurrency: int, until: float = float("inf")) -> Result:
    """Run random cases until so many processes were killed, the seeds are used up, or the time is over."""
    result = Result()
    remaining = iter(seeds)

    async def work(folder: Path) -> None:
        for seed in remaining:
            if result.kills >= kills or len(result.bad) >= 5 or time.monotonic() > until:
                return
            home = folder / str(seed)
            home.mkdir()
            await run_case(random_case(seed), home, result)

    with tempfile.TemporaryDirectory(prefix="atlas-kills-") as folder:
        await asyncio.gather(*[work(Path(folder)) for _ in range(concurrency)])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="stop after so many kills")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after so long")
    parser.add_argument("--concurrency", type=int, default=6, help="cases at a time")
    given, began = parser.parse_args(), time.monotonic()
    seeds = range(given.seed, given.seed + given.kills)
    result = asyncio.run(run_cases(seeds, given.kills, given.concurrency, began + given.seconds))
    print("\n\n".join(result.bad), file=sys.stderr)
    seconds, usage = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    tally = {"cases": result.cases, "injected": {}, "at": result.counts(), "bad": result.bad}
    print(msgspec.json.encode({**tally, "seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime}).decode())


if __name__ == "__main__":
    main()
