"""News by Valkey: heard by the others after the commit; nothing is lost with it, nor with a publication."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cluster_members import members
from members import Member, member

from atlas_agents.config.open import open_valkey
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import PutSession
from atlas_agents.dispatch import cluster as cluster_module
from atlas_agents.dispatch.notifications import Notification
from atlas_agents.dispatch.valkey import ValkeySubscriber
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.testing import Scripted, says
from checks import PATIENCE, until
from gateway.processes import inside
from stores.postgres_server import PostgresServer
from stores.valkey_server import PASSWORD, ValkeyServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


def hears(here: Member) -> list[Notification]:
    heard: list[Notification] = []
    here.cluster.on_notification = heard.append
    return heard


def news_of(here: Member) -> Any:
    return here.cluster._valkey  # pyright: ignore[reportPrivateUsage]


async def up(*members: Member, hold: bool = True) -> None:
    async def all_of_them() -> bool:
        return all(news_of(here).connected is hold for here in members)

    await until(all_of_them)


async def notified(url: str, schema: str) -> tuple[psycopg.AsyncConnection[Any], list[str]]:
    """All that Postgres tells."""
    line, told = await psycopg.AsyncConnection.connect(url, autocommit=True), list[str]()
    line.add_notify_handler(lambda notice: told.append(notice.payload))
    await line.execute(f"LISTEN atlas_{schema}".encode())
    return line, told


async def test_turns_are_taken_in_and_answered_and_postgres_tells_nothing(
    url: str, schema: str, valkey: ValkeyServer
) -> None:
    answers = Scripted(says("One."), says("Two."))
    async with (
        asyncio.timeout(2 * PATIENCE),
        member(url, schema, Scripted(), works=False, redis_url=valkey.url) as front,
        member(url, schema, answers, redis_url=valkey.url) as back,
    ):
        await up(front, back)
        line, told = await notified(url, schema)
        async with line:
            assert (await front.atlas.ask("a", session="s")).text == "One."
            assert (await front.atlas.ask("b", session="s")).text == "Two."
            await line.execute("SELECT 1")
        assert told == []
        assert len(answers.requests[1].messages) == 3


async def test_two_clusters_on_one_valkey_do_not_hear_each_other(url: str, schema: str, valkey: ValkeyServer) -> None:
    async with (
        asyncio.timeout(2 * PATIENCE),
        member(url, schema, Scripted(), works=False, redis_url=valkey.url) as one,
        member(url, schema, Scripted(), works=False, redis_url=valkey.url) as two,
        member(url, schema + "x", Scripted(), works=False, redis_url=valkey.url) as stranger,
    ):
        await up(one, two, stranger)
        heard, strange = hears(two), hears(stranger)
        await stranger.store.commit("default", [PutSession("theirs", label="x")])
        await one.store.commit("default", [PutSession("ours", label="x")])
        await until(_some(heard))
        assert {notice.session for notice in heard} == {"ours"}
        await until(_some(strange))
        assert {notice.session for notice in strange} == {"theirs"}


async def test_a_commit_that_is_undone_is_not_told(url: str, schema: str, valkey: ValkeyServer) -> None:
    async with (
        asyncio.timeout(2 * PATIENCE),
        member(url, schema, Scripted(), works=False, redis_url=valkey.url) as one,
        member(url, schema, Scripted(), works=False, redis_url=valkey.url) as two,
    ):
        await up(one, two)
        heard = hears(two)

        async def undone(*given: Any) -> None:
            await one.cluster.enqueue_and_notify(*given)
            raise ValueError("not this one")

        store = PostgresStore(url, schema=schema, transaction_hook=undone)
        await store.open()
        with pytest.raises(ValueError, match="not this one"):
            await store.commit("default", [PutSession("undone", label="x")])
        await store.close()
        await one.store.commit("default", [PutSession("done", label="x")])
        await until(_some(heard))
        assert {notice.session for notice in heard} == {"done"}


async def test_when_valkey_goes_postgres_tells_and_when_it_is_back_it_tells_again(
    url: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ValkeyServer() as server:
        async with (
            asyncio.timeout(4 * PATIENCE),
            member(url, schema, Scripted(), works=False, redis_url=server.url) as front,
            member(url, schema, Scripted(*[says("Yes.")] * 4), redis_url=server.url) as back,
        ):
            await up(front, back)
            server.stop()
            assert (await front.atlas.ask("a", session="s")).text == "Yes."
            await up(front, back, hold=False)
            assert (await front.atlas.ask("b", session="s")).text == "Yes."
            server.start()
            await up(front, back)
            assert (await front.atlas.ask("c", session="s")).text == "Yes."
            with server.frozen():
                assert (await front.atlas.ask("d", session="s")).text == "Yes."
            assert len(back.taken) == 4
    assert "notifications go through Postgres" in caplog.text
    assert PASSWORD not in caplog.text


async def test_a_valkey_that_is_away_at_the_start_is_no_hindrance(
    url: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = ValkeyServer()
    async with (
        asyncio.timeout(2 * PATIENCE),
        member(url, schema, Scripted(), works=False, redis_url=server.url) as front,
        member(url, schema, Scripted(says("Yes."), says("Again.")), redis_url=server.url) as back,
    ):
        assert (await front.atlas.ask("a", session="s")).text == "Yes."
        with server:
            await up(front, back)
            assert (await front.atlas.ask("b", session="s")).text == "Again."
    assert "Valkey unreachable" in caplog.text


async def test_what_was_committed_and_never_published_is_found_without_news(
    url: str, schema: str, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each process died between a commit and its publication; the worker looks into the queue by itself."""
    monkeypatch.setattr(cluster_module, "_VALKEY_POLL_INTERVAL", 0.3)
    async with (
        asyncio.timeout(2 * PATIENCE),
        member(url, schema, Scripted(), works=False, redis_url=valkey.url) as front,
        member(url, schema, Scripted(says("Yes.")), redis_url=valkey.url) as back,
    ):
        await up(front, back)

        def lost(notices: Sequence[str]) -> None:
            """Nobody hears it."""

        for here in (front, back):
            monkeypatch.setattr(news_of(here), "publish", lost)
        assert (await front.atlas.ask("a", session="s")).text == "Yes."


async def test_members_with_and_without_valkey_find_what_the_others_did(
    url: str, schema: str, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting is changed in one process after the other."""
    monkeypatch.setattr(cluster_module, "_POLL_INTERVAL", 0.3)
    async with (
        asyncio.timeout(2 * PATIENCE),
        member(url, schema, Scripted(), works=False) as old,
        member(url, schema, Scripted(says("Yes."), says("Again.")), redis_url=valkey.url) as new,
    ):
        await up(new)
        assert (await old.atlas.ask("a", session="s")).text == "Yes."
        assert (await new.atlas.ask("b", session="s")).text == "Again."


@pytest.mark.parametrize(
    ("who", "options", "words"),
    [
        (":wrong-canary@", "", "access to Valkey denied: invalid username-password"),
        ("", "", "access to Valkey denied: Authentication required"),
        (f":{PASSWORD}@", "?nonsense=canary", "redis_url: invalid URL or option"),
    ],
)
async def test_a_valkey_that_does_not_let_us_in_is_told_at_the_start(
    url: str, schema: str, valkey: ValkeyServer, who: str, options: str, words: str
) -> None:
    address = f"redis://{who}127.0.0.1:{valkey.port}/0{options}"
    with pytest.raises(ConfigError, match=words) as refused:
        async with asyncio.timeout(2 * PATIENCE), member(url, schema, Scripted(), redis_url=address):
            pass
    assert "canary" not in str(refused.value)


async def test_what_cannot_be_published_is_told_otherwise_and_a_gap_is_noticed_until_it_is_back() -> None:
    otherwise, heard, gaps = list[str](), list[str](), list[bool]()

    async def tell(told: Sequence[str]) -> None:
        otherwise.extend(told)

    with ValkeyServer() as server:
        news = ValkeySubscriber(
            open_valkey(Secret(server.url)), heard.append, lambda: gaps.append(news.connected), tell
        )
        await news.open("here")
        running = asyncio.create_task(news.run())

        async def has(words: list[str], word: str) -> bool:
            return word in words

        async def missed(count: int) -> bool:
            return gaps.count(False) >= count

        async with asyncio.timeout(2 * PATIENCE):
            await until(lambda: _is(news, True))
            assert gaps == [True]
            server.stop()
            news.publish(["a"])
            await until(lambda: has(otherwise, "a"))
            await until(lambda: missed(2))
            server.start()
            await until(lambda: _is(news, True))
            assert gaps[-1] is True
            news.publish(["b"])
            await until(lambda: has(heard, "b"))
            running.cancel()
            await asyncio.wait([running])
        await news.close()
    assert (otherwise, heard) == (["a"], ["b"])


async def _is(news: ValkeySubscriber, up: bool) -> bool:
    return news.connected is up


async def test_it_ends_when_it_is_told_to_even_if_the_client_loses_that(
    url: str, schema: str, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishing = asyncio.Event()

    async def publish(channel: str, words: str) -> None:
        """As `asyncio.wait_for` of Python 3.11 does when the answer comes at the same time."""
        publishing.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1.5)

    async with asyncio.timeout(PATIENCE) as limit:
        async with member(url, schema, Scripted(), works=False, redis_url=valkey.url) as here:
            await up(here)
            monkeypatch.setattr(news_of(here)._client, "publish", publish)
            await here.store.commit("default", [PutSession("s", label="x")])
            await publishing.wait()
    assert not limit.expired()


def logs_in(home: Path) -> list[str]:
    return [path.read_text() for path in home.glob("*.log")]


@pytest.mark.timeout(120)
async def test_clients_of_two_gateways_hear_all_of_a_turn_while_valkey_comes_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresServer() as server, ValkeyServer() as valkey:
        monkeypatch.setenv("ATLAS_REDIS_URL", valkey.url)
        async with AsyncExitStack() as up, asyncio.timeout(60):
            front, other, _ = await members(up, server, tmp_path, "gateway", "gateway", "worker")
            here, there = [await up.enter_async_context(inside(gateway)) for gateway in (front, other)]
            heard: list[list[dict[str, Any]]] = []
            for number in range(3):
                for client in (here, there):
                    await client.get("sessions.subscribe", sessionKey=f"s{number}")
                run = (await here.get("chat.send", sessionKey=f"s{number}", message="go"))["runId"]
                for client in (here, there):
                    await client.until("tool.result")
                if number == 1:
                    valkey.stop()
                for client in (here, there):
                    await client.until("chat.final")
                    heard.append(client.events(run))
                if number == 1:
                    valkey.start()
            for one, two in zip(heard[::2], heard[1::2], strict=True):
                assert one == two
                assert [frame["data"]["seq"] for frame in one] == list(range(1, len(one) + 1))
    logs = logs_in(tmp_path)
    assert len(logs) == 3 and PASSWORD not in "".join(logs)


def _some(heard: list[Notification]) -> Any:
    async def some() -> list[Notification]:
        return heard

    return some
