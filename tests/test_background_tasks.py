"""Background tasks: kept alive, logged when they fail, cancelled when their owner closes."""

import asyncio
import gc
import logging

import pytest

from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.errors import StoreError
from checks import TIMEOUT


async def test_background_task_runs_to_its_end_without_another_reference() -> None:
    tasks, done = BackgroundTasks("test"), asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(0)
        gc.collect()
        await asyncio.sleep(0)
        done.set()

    tasks.spawn(work())
    assert len(tasks) == 1
    async with asyncio.timeout(TIMEOUT):
        await tasks.wait()
    assert done.is_set() and not len(tasks)


async def test_spawn_returns_the_task_and_its_result_can_be_awaited() -> None:
    async def work() -> int:
        return 7

    tasks = BackgroundTasks("test")
    assert await tasks.spawn(work()) == 7


async def test_failed_background_task_is_logged_with_its_owner_and_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("by zero")

    tasks = BackgroundTasks("ledger")
    tasks.spawn(fail())
    await tasks.wait()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and record.exc_info is not None
    assert "ledger" in record.getMessage() and "by zero" in record.getMessage()


async def test_expected_failure_is_logged_as_a_warning_without_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise StoreError("away")

    tasks = BackgroundTasks("ledger", expected=StoreError)
    tasks.spawn(fail())
    await tasks.wait()
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.WARNING, None)
    assert record.getMessage() == "background task failed: owner=ledger error=away"


async def test_close_cancels_all_tasks_and_those_they_start_while_ending(caplog: pytest.LogCaptureFixture) -> None:
    tasks, ended = BackgroundTasks("test"), list[str]()

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
            if name == "first":
                tasks.spawn(forever("second"))
                await asyncio.sleep(0)

    tasks.spawn(forever("first"))
    await asyncio.sleep(0)
    async with asyncio.timeout(TIMEOUT):
        await tasks.close()
    assert ended == ["first", "second"] and not len(tasks) and not caplog.records


async def test_task_cancelled_before_it_starts_leaves_no_unawaited_coroutine() -> None:
    tasks = BackgroundTasks("test")
    tasks.spawn(asyncio.Event().wait())
    async with asyncio.timeout(TIMEOUT):
        await tasks.close()
    gc.collect()


async def test_wait_ends_at_its_limit_and_cancels_nothing() -> None:
    tasks, go = BackgroundTasks("test"), asyncio.Event()

    async def work() -> None:
        await go.wait()

    task = tasks.spawn(work())
    await tasks.wait(0.01)
    assert not task.done() and [*tasks] == [task]
    go.set()
    await tasks.wait(TIMEOUT)
    assert task.done() and not task.cancelled()


async def test_task_can_close_its_own_owner() -> None:
    tasks = BackgroundTasks("test")
    other = tasks.spawn(asyncio.Event().wait())
    async with asyncio.timeout(TIMEOUT):
        await tasks.spawn(tasks.close())
    assert other.cancelled()


def test_tasks_of_another_event_loop_are_not_awaited() -> None:
    tasks, loop = BackgroundTasks("test"), asyncio.new_event_loop()

    async def start() -> asyncio.Task[bool]:
        return tasks.spawn(asyncio.Event().wait())

    task = loop.run_until_complete(start())
    asyncio.run(tasks.close())
    assert not task.done() and len(tasks) == 1
    loop.run_until_complete(tasks.close())
    loop.close()
    assert task.cancelled()


async def test_adopted_task_is_logged_like_a_spawned_one(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    tasks = BackgroundTasks("test")
    tasks.adopt(asyncio.create_task(fail()))
    await tasks.wait()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
