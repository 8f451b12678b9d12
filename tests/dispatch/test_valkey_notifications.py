"""Notifications over Valkey: published after the commit; losing Valkey or a message loses nothing."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from in_process_members import Member, member
from member_processes import members
from processes import connect_process

from atlas_agents.config.open import open_valkey
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import PutSession
from atlas_agents.dispatch import cluster as cluster_module
from atlas_agents.dispatch.notifications import Notification
from atlas_agents.dispatch.valkey import ValkeySubscriber
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.testing import Scripted, says
from checks import TIMEOUT, wait_until
from stores.postgres_server import PostgresServer
from stores.valkey_server import PASSWORD, ValkeyServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


def record_notifications(this: Member) -> list[Notification]:
    received: list[Notification] = []
    this.cluster.subscribe(received.append)
    return received


def subscriber_of(this: Member) -> Any:
    return this.cluster._valkey


async def wait_connected(*members: Member, expected: bool = True) -> None:
    async def all_of_them() -> bool:
        return all(subscriber_of(this).connected is expected for this in members)

    await wait_until(all_of_them)


async def listen(url: str, schema: str) -> tuple[psycopg.AsyncConnection[Any], list[str]]:
    """Collect the notifications that Postgres sends."""
    connection, payloads = await psycopg.AsyncConnection.connect(url, autocommit=True), list[str]()
    connection.add_notify_handler(lambda notification: payloads.append(notification.payload))
    await connection.execute(f"LISTEN atlas_{schema}".encode())
    return connection, payloads


async def test_turns_run_without_postgres_notifications(url: str, schema: str, valkey: ValkeyServer) -> None:
    answers = Scripted(says("One."), says("Two."))
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False, redis_url=valkey.url) as front,
        member(url, schema, answers, redis_url=valkey.url) as back,
    ):
        await wait_connected(front, back)
        connection, payloads = await listen(url, schema)
        async with connection:
            assert (await front.atlas.ask("a", session="s")).text == "One."
            assert (await front.atlas.ask("b", session="s")).text == "Two."
            await connection.execute("SELECT 1")
        assert payloads == []
        assert len(answers.requests[1].messages) == 3


async def test_two_clusters_on_one_valkey_are_separate(url: str, schema: str, valkey: ValkeyServer) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False, redis_url=valkey.url) as one,
        member(url, schema, Scripted(), executes_runs=False, redis_url=valkey.url) as two,
        member(url, schema + "x", Scripted(), executes_runs=False, redis_url=valkey.url) as stranger,
    ):
        await wait_connected(one, two, stranger)
        received, others = record_notifications(two), record_notifications(stranger)
        await stranger.store.commit("default", [PutSession("theirs", label="x")])
        await one.store.commit("default", [PutSession("ours", label="x")])
        await wait_until(any_received(received))
        assert {notification.session for notification in received} == {"ours"}
        await wait_until(any_received(others))
        assert {notification.session for notification in others} == {"theirs"}


async def test_rolled_back_commit_is_not_published(url: str, schema: str, valkey: ValkeyServer) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False, redis_url=valkey.url) as one,
        member(url, schema, Scripted(), executes_runs=False, redis_url=valkey.url) as two,
    ):
        await wait_connected(one, two)
        received = record_notifications(two)

        async def roll_back(*arguments: Any) -> None:
            await one.cluster.enqueue_and_notify(*arguments)
            raise ValueError("not this one")

        store = PostgresStore(url, schema=schema, transaction_hook=roll_back)
        await store.open()
        with pytest.raises(ValueError, match="not this one"):
            await store.commit("default", [PutSession("undone", label="x")])
        await store.close()
        await one.store.commit("default", [PutSession("done", label="x")])
        await wait_until(any_received(received))
        assert {notification.session for notification in received} == {"done"}


async def test_postgres_takes_over_while_valkey_is_down(
    url: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ValkeyServer() as server:
        async with (
            asyncio.timeout(TIMEOUT),
            member(url, schema, Scripted(), executes_runs=False, redis_url=server.url) as front,
            member(url, schema, Scripted(*[says("Yes.")] * 4), redis_url=server.url) as back,
        ):
            await wait_connected(front, back)
            server.stop()
            assert (await front.atlas.ask("a", session="s")).text == "Yes."
            await wait_connected(front, back, expected=False)
            assert (await front.atlas.ask("b", session="s")).text == "Yes."
            server.start()
            await wait_connected(front, back)
            assert (await front.atlas.ask("c", session="s")).text == "Yes."
            with server.frozen():
                assert (await front.atlas.ask("d", session="s")).text == "Yes."
            assert len(back.executed) == 4
    assert "notifications go through Postgres" in caplog.text
    assert PASSWORD not in caplog.text


async def test_members_start_while_valkey_is_down(url: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    server = ValkeyServer()
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False, redis_url=server.url) as front,
        member(url, schema, Scripted(says("Yes."), says("Again.")), redis_url=server.url) as back,
    ):
        assert (await front.atlas.ask("a", session="s")).text == "Yes."
        with server:
            await wait_connected(front, back)
            assert (await front.atlas.ask("b", session="s")).text == "Again."
    assert "Valkey unreachable" in caplog.text


async def test_unpublished_commits_are_found_by_polling(
    url: str, schema: str, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each process died between a commit and its publication; the worker polls the queue."""
    monkeypatch.setattr(cluster_module, "_VALKEY_POLL_INTERVAL", 0.3)
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False, redis_url=valkey.url) as front,
        member(url, schema, Scripted(says("Yes.")), redis_url=valkey.url) as back,
    ):
        await wait_connected(front, back)

        def drop(payloads: Sequence[str]) -> None:
            """Publish nothing."""

        for this in (front, back):
            monkeypatch.setattr(subscriber_of(this), "publish", drop)
        assert (await front.atlas.ask("a", session="s")).text == "Yes."


async def test_members_with_and_without_valkey_work_together(
    url: str, schema: str, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As during a rolling change of the setting."""
    monkeypatch.setattr(cluster_module, "_POLL_INTERVAL", 0.3)
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False) as old,
        member(url, schema, Scripted(says("Yes."), says("Again.")), redis_url=valkey.url) as new,
    ):
        await wait_connected(new)
        assert (await old.atlas.ask("a", session="s")).text == "Yes."
        assert (await new.atlas.ask("b", session="s")).text == "Again."


@pytest.mark.parametrize(
    ("credentials", "options", "message"),
    [
        (":wrong-canary@", "", "access to Valkey denied: invalid username-password"),
        ("", "", "access to Valkey denied: Authentication required"),
        (f":{PASSWORD}@", "?nonsense=canary", "redis_url: invalid URL or option"),
    ],
)
async def test_rejected_valkey_credentials_are_an_error_at_start(
    url: str, schema: str, valkey: ValkeyServer, credentials: str, options: str, message: str
) -> None:
    address = f"redis://{credentials}127.0.0.1:{valkey.port}/0{options}"
    with pytest.raises(ConfigError, match=message) as refused:
        async with asyncio.timeout(TIMEOUT), member(url, schema, Scripted(), redis_url=address):
            pass
    assert "canary" not in str(refused.value)


async def test_unpublished_messages_go_to_the_fallback_and_gaps_are_reported() -> None:
    fallback, received, gaps = list[str](), list[str](), list[bool]()

    async def send(payloads: Sequence[str]) -> None:
        fallback.extend(payloads)

    with ValkeyServer() as server:
        subscriber = ValkeySubscriber(
            open_valkey(Secret(server.url)), received.append, lambda: gaps.append(subscriber.connected), send
        )
        await subscriber.open("here")
        running = asyncio.create_task(subscriber.run())

        async def contains(message: list[str], text: str) -> bool:
            return text in message

        async def gaps_reached(count: int) -> bool:
            return gaps.count(False) >= count

        async with asyncio.timeout(TIMEOUT):
            await wait_until(lambda: is_connected(subscriber, True))
            assert gaps == [True]
            server.stop()
            subscriber.publish(["a"])
            await wait_until(lambda: contains(fallback, "a"))
            await wait_until(lambda: gaps_reached(2))
            server.start()
            await wait_until(lambda: is_connected(subscriber, True))
            assert gaps[-1] is True
            subscriber.publish(["b"])
            await wait_until(lambda: contains(received, "b"))
            running.cancel()
            await asyncio.wait([running])
        await subscriber.close()
    assert (fallback, received) == (["a"], ["b"])


async def is_connected(subscriber: ValkeySubscriber, wait_connected: bool) -> bool:
    return subscriber.connected is wait_connected


async def test_subscriber_stops_even_if_the_client_loses_the_cancellation(
    url: str, schema: str, valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishing = asyncio.Event()

    async def publish(channel: str, message: str) -> None:
        """Lose a cancellation, as `asyncio.wait_for` of Python 3.11 does when the response arrives at the same time."""
        publishing.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1.5)

    async with asyncio.timeout(TIMEOUT) as limit:
        async with member(url, schema, Scripted(), executes_runs=False, redis_url=valkey.url) as this:
            await wait_connected(this)
            monkeypatch.setattr(subscriber_of(this)._client, "publish", publish)
            await this.store.commit("default", [PutSession("s", label="x")])
            await publishing.wait()
    assert not limit.expired()


def logs_in(home: Path) -> list[str]:
    return [path.read_text() for path in home.glob("*.log")]


async def test_clients_of_two_gateways_receive_whole_turns_while_valkey_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresServer() as server, ValkeyServer() as valkey:
        monkeypatch.setenv("ATLAS_REDIS_URL", valkey.url)
        async with AsyncExitStack() as wait_connected, asyncio.timeout(TIMEOUT):
            front, other, _ = await members(wait_connected, server, tmp_path, "gateway", "gateway", "worker")
            this, there = [
                await wait_connected.enter_async_context(connect_process(gateway)) for gateway in (front, other)
            ]
            received: list[list[dict[str, Any]]] = []
            for number in range(3):
                for client in (this, there):
                    await client.get("sessions.subscribe", sessionKey=f"s{number}")
                run = (await this.get("chat.send", sessionKey=f"s{number}", message="go"))["runId"]
                for client in (this, there):
                    await client.until("tool.result")
                if number == 1:
                    valkey.stop()
                for client in (this, there):
                    await client.until("chat.final")
                    received.append(client.events(run))
                if number == 1:
                    valkey.start()
            for one, two in zip(received[::2], received[1::2], strict=True):
                assert one == two
                assert [frame["data"]["seq"] for frame in one] == list(range(1, len(one) + 1))
    logs = logs_in(tmp_path)
    assert len(logs) == 3 and PASSWORD not in "".join(logs)


def any_received(received: list[Notification]) -> Any:
    async def some() -> list[Notification]:
        return received

    return some
