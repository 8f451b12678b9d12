"""Replay: a stored run is run again from its journal, without models and tools, and the first difference is named."""

import asyncio
import base64
import json
import multiprocessing
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest

from atlas_agents import (
    Agent,
    Answer,
    Approvals,
    Atlas,
    Cancelled,
    Compaction,
    History,
    Interceptor,
    Message,
    Policy,
    Question,
    RetryPolicy,
    Rule,
    Text,
    ToolCall,
    ToolContext,
    assistant,
    tool,
)
from atlas_agents.builtin_tools.team import delegate_task
from atlas_agents.core.errors import ProviderError
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import RunRow, Store
from atlas_agents.providers.base import Request
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import (
    Environment,
    Registry,
    ReplayError,
    ReplayResult,
    RunRecord,
    Scripted,
    calls,
    fails,
    list_steps,
    replay,
    says,
)
from atlas_agents.testing.replay import AgentSource, save_case
from checks import TIMEOUT, endless_tool, wait_until

PROMPT = "You are a helpful clerk.\nAnswer briefly."
ran: list[str] = []


@tool(effect="pure")
async def look(n: int) -> str:
    """Look something up."""
    ran.append(f"look {n}")
    return f"saw {n}"


@tool(effect="unsafe", confirm=True)
async def send_mail(to: str) -> str:
    """Send a mail."""
    ran.append(f"mail {to}")
    return f"sent to {to}"


def answers(answer: Any) -> Callable[[Question], Any]:
    return lambda question: answer


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def build(store: Store | None, *replies: Any, tools: Any = (look, send_mail), **more: Any) -> Atlas:
    options: dict[str, Any] = {"prompt": PROMPT, "settings": {}, **more.pop("agent", {})}
    clerk = Agent(
        "clerk",
        providers=more.pop("models", None) or [Scripted(*replies)],
        tools=tools,
        system_prompt=options.pop("prompt"),
        settings=options.pop("settings"),
        **options,
    )
    registry = Registry(Environment({}, dotenv=None))
    return Atlas([clerk, *more.pop("others", ())], store=store, registry=registry, **more)


async def last_run(store: Store, session: str = "default") -> RunRow:
    return (await store.runs("default", session))[-1]


async def record(*replies: Any, store: Store | None = None, message: Any = "Hello", **more: Any) -> tuple[Store, str]:
    """Run a turn with a scripted model, and return its store and its id."""
    store = store or MemoryStore()
    given = {key: more.pop(key) for key in ("output", "user", "settings", "metadata") if key in more}
    async with build(store, *replies, **more) as atlas, asyncio.timeout(TIMEOUT):
        with suppress(ProviderError, ValueError):
            await atlas.ask(message, **given)
    ran.clear()
    return store, (await last_run(store)).id


async def replayed(store: Store, run: str, **more: Any) -> ReplayResult:
    """Replay a run with an Atlas that has a model without replies, and check that nothing was run or written."""
    before = await dump(store)
    async with asyncio.timeout(TIMEOUT):
        result = await replay(run, build(None, **more), store=store)
    assert ran == [] and await dump(store) == before
    return result


async def dump(store: Store) -> list[Any]:
    runs = [run for each in await store.sessions("default") for run in await store.runs("default", each.key)]
    journals = [await store.journal("default", run.id) for run in runs]
    return [runs, journals, await store.audit("default"), await store.records("default", "request")]


def kinds(result: ReplayResult) -> list[str]:
    return [each.kind for each in result.differences]


async def test_run_with_tool_calls_is_replayed_without_running_them() -> None:
    store, run = await record(calls("look", n=1) + calls("look", n=2), calls("look", n=3), says("Done."))
    result = await replayed(store, run)
    assert result.same and result.check() is result and result.not_compared == ()
    assert (result.status, result.answer, result.rounds, result.error) == ("done", "Done.", 3, None)


async def test_changed_prompt_is_named_with_its_lines() -> None:
    store, run = await record(calls("look", n=1), says("Done."))
    result = await replayed(store, run, agent={"prompt": PROMPT.replace("briefly", "at length")})
    first = result.difference
    assert first is not None and (first.kind, first.where) == ("request", "round 1")
    assert first.summary == "the system prompt has changed"
    assert first.diff.splitlines() == [" You are a helpful clerk.", "-Answer briefly.", "+Answer at length."]
    assert kinds(result) == ["request"] * 2 and result.answer == "Done."
    with pytest.raises(AssertionError, match="round 1: the system prompt has changed"):
        result.check()


async def test_prompt_of_one_turn_is_compared_and_stays_in_its_journal() -> None:
    name = "Ana"

    def prompt(context: Any) -> str:
        return f"The user is {name}."

    store, run = await record(calls("look", n=1), says("Done."), agent={"prompt": prompt})
    assert (await replayed(store, run, agent={"prompt": prompt})).status == "done"
    stored = [each.body for each in await store.records("default", "request")]
    assert stored and not any(b"Ana" in each for each in stored)
    steps = [step for step in await store.journal("default", run) if b"The user is Ana" in step.payload]
    assert len(steps) == 1
    name = "Bo"
    first = (await replayed(store, run, agent={"prompt": prompt})).difference
    assert first is not None and first.diff.splitlines() == ["-The user is Ana.", "+The user is Bo."]


async def test_contents_of_requests_are_stored_once() -> None:
    store = MemoryStore()
    async with build(store, says("1"), says("2"), says("3")) as atlas:
        for _ in range(3):
            await atlas.ask("Hello", session="s")
    assert len(await store.records("default", "request")) == 4  # the outline, the prompt and two tools
    replies = [
        step
        for run in await store.runs("default", "s")
        for step in await store.journal("default", run.id)
        if step.kind == "reply"
    ]
    sizes = [len(step.payload) - len(Message.from_json(step.payload).to_json()) for step in replies]
    assert max(sizes) < 100


@pytest.mark.parametrize(
    ("change", "summary"),
    [
        ({"tools": (look,)}, "the tool 'send_mail' is missing"),
        ({"tools": (send_mail,)}, "the tool 'look' is missing"),
        ({"agent": {"settings": {"temperature": 0.5}}}, "the model settings have changed"),
        ({"agent": {"tool_choice": "none"}}, "the tool choice has changed"),
    ],
)
async def test_changed_tools_and_settings_are_named(change: dict[str, Any], summary: str) -> None:
    store, run = await record(calls("look", n=1), says("Done."))
    first = (await replayed(store, run, **change)).difference
    assert first is not None and first.kind == "request" and summary in first.summary


async def test_changed_schema_is_named_and_the_call_is_refused() -> None:
    store, run = await record(calls("look", n=1), says("Done."))

    @tool(name="look", effect="pure")
    async def look_again(n: str) -> str:
        """Look something up."""
        raise AssertionError("not run")

    result = await replayed(store, run, tools=(look_again, send_mail))
    assert result.differences[0].summary == "the parameters of the tool 'look' have changed"
    assert [(each.kind, each.where) for each in result.differences[:2]] == [
        ("request", "round 1"),
        ("arguments", "round 1, call of look"),
    ]
    assert "does not accept these arguments" in result.differences[1].summary


async def test_changed_policy_is_named() -> None:
    allow, deny = (Policy(tools={"look": {"*": cell}}) for cell in ("yes", "no"))
    store, run = await record(calls("look", n=1), says("Done."), policy=allow, tools=(look,))
    assert (await replayed(store, run, policy=allow, tools=(look,))).same
    result = await replayed(store, run, policy=deny, tools=(look,))
    found = next(each for each in result.differences if each.kind == "policy verdict")
    assert found.where == "round 1, call of look" and found.expected.startswith("yes")
    assert "not permitted" in found.actual


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (Answer("no", by="ana", reason="too early"), {"cancelled": True, "reason": "too early"}),
        (Answer("once", by="ana", arguments={"to": "bo"}), {"edited_arguments": {"to": "bo"}, "result": "sent to bo"}),
        (Answer("once", by="ana"), "sent to ana"),
    ],
)
async def test_recorded_approvals_answer_the_same_questions(answer: Answer, result: Any, tmp_path: Path) -> None:
    store, run = await record(calls("send_mail", to="ana"), says("Done."), approve=answers(answer))
    (outcome,) = [step for step in await store.journal("default", run) if step.kind == "outcome"]
    assert msgspec.json.decode(outcome.payload)["result"] == result
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)  # the approval was bound to another directory
        assert (await replayed(store, run)).same


async def test_approval_that_is_not_needed_any_more_is_named() -> None:
    store, run = await record(calls("send_mail", to="ana"), says("Done."), approve=answers(True))
    freely = tool(name="send_mail", effect="unsafe")(send_mail.function)
    found = (await replayed(store, run, tools=(look, freely))).difference
    assert found is not None and found.kind == "policy verdict"
    assert found.summary == "the call needed an approval, and needs none now"


async def test_new_approval_is_named() -> None:
    store, run = await record(calls("look", n=1), says("Done."))
    policy = Policy(tools={"look": {"*": "ask"}, "send_mail": {"*": "yes"}})
    found = (await replayed(store, run, policy=policy)).difference
    assert found is not None and found.kind == "policy verdict"
    assert found.summary == "the call needs an approval, and needed none"


async def test_approval_that_was_not_given_in_time_is_not_given_again() -> None:
    async def never(question: Question) -> None:
        await asyncio.Event().wait()

    approve = Approvals(never, deadline=0.01)
    store, run = await record(calls("send_mail", to="ana"), says("Done."), approve=approve)
    assert (await replayed(store, run)).same
    assert b"no answer within" in (await store.journal("default", run))[-4].payload


async def test_standing_approval_counts_in_a_replay() -> None:
    store = MemoryStore()
    call = calls("send_mail", to="ana")
    async with build(store, call, says("1"), call, says("2"), approve=answers("always")) as atlas:
        await atlas.ask("Send it", session="s")
        await atlas.ask("Send it again", session="s")
    ran.clear()
    run = (await store.runs("default", "s"))[-1].id
    assert [step for step in await store.journal("default", run) if step.kind == "asked"] == []
    assert (await replayed(store, run)).same


async def test_refused_calls_are_refused_again_and_changed_texts_are_named() -> None:
    store, run = await record(calls("look", n="x"), calls("unknown"), says("Done."))
    assert (await replayed(store, run)).same


async def test_tool_that_timed_out_is_not_waited_for() -> None:
    forever, _ = endless_tool()
    forever.timeout = 0.05
    store, run = await record(calls("forever"), says("Done."), tools=(forever,), retries=())
    assert b'"timeout"' in b"".join([step.payload for step in await store.journal("default", run)])
    assert (await replayed(store, run, tools=(forever,))).same


class Named(Scripted):
    """A scripted model with a name of its own."""

    def __init__(self, name: str, *replies: Any) -> None:
        super().__init__(*replies)
        self.id = name


DOWN = fails(ProviderError("down", "auth"))
SLOW = fails(ProviderError("no answer for 60 s", "timeout"))
KEEP_ORDER = {"retry": RetryPolicy(order="given", backoff=0.0)}


async def test_failed_attempts_are_recorded_and_made_again() -> None:
    models = [Named("first", SLOW, SLOW, SLOW), Named("second", calls("look", n=1), says("Done."))]
    store, run = await record(models=models, agent=KEEP_ORDER)
    first, second = (await RunRecord.read(store, run)).requests
    assert first is not None and [(each.model, each.kind) for each in first.failed] == [("first", "timeout")] * 3
    assert second is not None and second.failed == ()
    assert "[first: timeout after" in list_steps(await RunRecord.read(store, run))[1].text
    now = [Named("first"), Named("second")]
    result = await replayed(store, run, models=now, agent=KEEP_ORDER)
    assert result.same and result.answer == "Done." and result.not_compared == ()
    fewer = await replayed(store, run, models=now, agent={"retry": RetryPolicy(order="given", retries=1)})
    assert fewer.difference is not None and fewer.difference.where == "round 1"
    assert fewer.difference.summary == "after failed attempts, the turn goes on differently"
    assert "first: timeout after" in fewer.difference.expected and "no provider answered" in fewer.difference.actual
    more = await replayed(store, run, models=now, agent={"retry": RetryPolicy(order="given", retries=5)})
    assert more.difference is not None and more.difference.actual == "first is asked next"
    other = await replayed(store, run, models=[Named("third")])
    assert other.same and other.not_compared == ("failed attempts of round 1: the agent has other models now",)


async def test_failed_attempts_cost_no_further_commit() -> None:
    async def count_commits(*models: Scripted) -> int:
        store = MemoryStore()
        commit, commits = store.commit, list[Any]()

        async def counted(tenant: str, writes: Any) -> list[Any]:
            commits.append(writes)
            return await commit(tenant, writes)

        store.commit = counted
        await record(store=store, models=models, agent=KEEP_ORDER)
        return len(commits)

    answered = Named("second", calls("look", n=1), says("Done."))
    assert await count_commits(Named("first", SLOW, DOWN), answered) == await count_commits(
        Named("first", calls("look", n=1), says("Done."))
    )


async def test_attempts_of_a_turn_that_failed_are_made_again() -> None:
    models = [Named("first", DOWN), Named("second", DOWN)]
    store, run = await record(models=models, agent=KEEP_ORDER)
    assert [each.model for each in (await RunRecord.read(store, run)).end.failed] == ["first", "second"]
    assert (await replayed(store, run, models=[Named("first"), Named("second")], agent=KEEP_ORDER)).same
    now = [Named("first"), Named("second"), Named("third")]
    result = await replayed(store, run, models=now, agent=KEEP_ORDER)
    assert result.difference is not None and result.difference.actual == "third is asked next"


async def test_secret_in_the_message_of_a_failed_attempt_is_not_recorded() -> None:
    store, key = MemoryStore(), "tiger-in-the-7-woods"
    models = [Named("first", fails(ProviderError(f"bad key {key}", "auth"))), Named("second", says("Done."))]
    async with build(store, models=models, agent=KEEP_ORDER) as atlas:
        atlas.keep_secret(Secret(key))
        await atlas.ask("Hello")
    steps = await store.journal("default", (await last_run(store)).id)
    assert b"bad key [REDACTED]" in b"".join([step.payload for step in steps])


async def test_metadata_of_the_session_is_that_of_each_round() -> None:
    """What a tool set in the turn, and what later turns changed, would otherwise be different in the prompt."""

    @tool(effect="unsafe")
    async def choose(size: str, context: ToolContext) -> str:
        """Choose a size."""
        context.metadata.set("size", size)
        return "ok"

    def says_size(context: Any) -> str:
        return f"The size is {context.metadata.get('size', 'unknown')}."

    rule = Rule(says_size)
    store = MemoryStore()
    replies = (calls("choose", size="large"), says("Done."), calls("choose", size="small"), says("Done."))
    options: dict[str, Any] = {"tools": (choose,), "agent": {"rules": [rule]}}
    async with build(store, *replies, **options) as atlas:
        for _ in range(2):
            await atlas.ask("Hello", session="s")
    for row in await store.runs("default", "s"):
        result = await replayed(store, row.id, **options)
        assert result.same, result.difference
    session = await store.session("default", "s")
    assert session is not None and session.metadata == {"size": "small"}


async def test_context_window_that_another_turn_learned_is_no_difference() -> None:
    too_long = fails(ProviderError("too long", "context_length"))
    store, model = MemoryStore(), Scripted(too_long, says("Short."), says("Done."))
    async with build(store, models=[model]) as atlas:
        for text in ("x" * 6000, "y" * 3000, "Hello"):
            with suppress(ProviderError):
                await atlas.ask(text, session="s")
    runs = await store.runs("default", "s")
    limits = [[each.limit for each in (await RunRecord.read(store, row.id)).requests if each] for row in runs]
    assert any(limit for found in limits for limit in found)
    for row in runs:
        for models in ([model], [Scripted()]):  # the same process, which has learned it, and a new one
            result = await replayed(store, row.id, models=models)
            assert result.same, result.difference


async def test_failed_turn_fails_in_the_same_way() -> None:
    store, run = await record(calls("look", n=1), says("Half an ") + fails(ProviderError("quota used up", "quota")))
    assert (await last_run(store)).status == "failed"
    result = await replayed(store, run)
    assert result.same and (result.status, result.answer) == ("failed", "")
    assert result.error is not None and "quota used up" in result.error


async def test_cancelled_turn_is_cancelled_again() -> None:
    store, (forever, running) = MemoryStore(), endless_tool()
    async with build(store, calls("forever"), tools=(forever,)) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("Hello")
        await running.wait()
        stream.cancel()
        with pytest.raises(Cancelled):
            await stream.reply()
    result = await replayed(store, (await last_run(store)).id, tools=(forever,))
    assert result.same and result.status == "cancelled"


async def test_turn_that_was_cancelled_while_a_person_was_asked_is_cancelled_again() -> None:
    store = MemoryStore()
    async with build(store, calls("send_mail", to="ana"), approve=Approvals(wait=True)) as atlas:
        stream = atlas.send("Hello")
        await wait_until(atlas.pending)
        stream.cancel()
        with pytest.raises(Cancelled):
            await stream.reply()
    result = await replayed(store, (await last_run(store)).id)
    assert result.same and result.status == "cancelled"


async def test_compaction_uses_the_recorded_summary() -> None:
    history = History(compaction=Compaction(window=1000))
    store = MemoryStore()
    summary = "<summary>They talked about x and y. Open: nothing at all.</summary>"
    async with build(store, *[says(f"a{n} " + "y" * 400) for n in range(2)], history=None) as atlas:
        for n in range(2):
            await atlas.ask(f"q{n} " + "x" * 400, session="s")
    async with build(store, says(summary), says("Done."), history=history) as atlas:
        await atlas.ask("z" * 1500, session="s")
    run = (await store.runs("default", "s"))[-1].id
    assert [step.kind for step in await store.journal("default", run)][1] == "summary"
    assert (await replayed(store, run, history=history)).same
    steps = [step for step in await store.journal("default", run) if step.kind == "summary"]
    assert len(steps) == 1 and b"Open: nothing at all" in steps[0].payload


async def test_structured_output_is_read_again() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    store, run = await record(says("no"), says('{"n": 3}'), output=schema)
    result = await replayed(store, run)
    assert result.same and result.output == {"n": 3} and result.rounds == 2


async def test_steering_message_enters_at_the_same_point() -> None:
    store, reached, go_on = MemoryStore(), asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        reached.set()
        await go_on.wait()
        return "went on"

    async with build(store, calls("wait"), says("Both."), tools=(wait,)) as atlas, asyncio.timeout(TIMEOUT):
        first = atlas.send("1", session="s")
        await reached.wait()
        steering = atlas.send("Also 2", session="s", when_busy="steer")
        await steering.accepted()
        go_on.set()
        await first.reply()
        await steering.reply()
    result = await replayed(store, first.stream_id, tools=(wait,))
    assert result.same and result.answer == "Both."
    with pytest.raises(ReplayError, match=f"entered run '{first.stream_id}': replay that one"):
        await replay(steering.stream_id, build(None, tools=(wait,)), store=store)


async def test_delegated_job_and_its_delegation_are_replayed() -> None:
    store = MemoryStore()
    task = calls("delegate_task", target_agent="writer", task_description="write it")
    writer = Agent("writer", model=Scripted(says("Written.")))
    more: dict[str, Any] = {"tools": (delegate_task,), "others": (writer,)}
    async with build(store, task, says("Delegated."), says("It is written."), **more) as atlas, atlas.jobs.running():
        await atlas.ask("Have it written")

        async def settled() -> bool:
            return not await store.pending_jobs("default", 1 << 60) and not await store.open_runs()

        await wait_until(settled)
        (job,) = await atlas.jobs.list()
    runs = [*await store.runs("default", "default"), *await store.runs("default", job.session)]
    assert len(runs) == 3
    for run in runs:
        assert (await replayed(store, run.id, **more)).same
    assert len(await store.jobs("default")) == 1


async def test_turn_that_was_resumed_after_a_crash_is_replayed(tmp_path: Path) -> None:
    program = f"""
import asyncio, os
from atlas_agents import Agent, Atlas, tool
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Scripted, calls

@tool(effect="pure")
async def look(n: int) -> str:
    \"\"\"Look something up.\"\"\"
    if n == 2:
        os._exit(9)
    return f"saw {{n}}"

async def main():
    store = SqliteStore({str(tmp_path / "atlas.db")!r})
    await store.open()
    model = Scripted(calls("look", n=1), calls("look", n=2))
    await Atlas([Agent("clerk", model=model, tools=[look], system_prompt={PROMPT!r})], store=store).ask("Hello")

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await process.wait() == 9
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    try:
        async with build(store, says("Done."), tools=(look,)) as atlas:
            (stream,) = await atlas.recover()
            assert (await stream.reply()).text == "Done."
        ran.clear()
        result = await replayed(store, (await last_run(store)).id, tools=(look,))
        assert result.same and (result.answer, result.rounds) == ("Done.", 3)
    finally:
        await store.close()


async def test_later_turns_of_the_session_are_not_seen() -> None:
    store = MemoryStore()
    async with build(store, says("1"), says("2"), says("3")) as atlas:
        for text in ("a", "b", "c"):
            await atlas.ask(text, session="s")
    for run in await store.runs("default", "s"):
        assert (await replayed(store, run.id)).same


async def test_hooks_are_not_asked_again() -> None:
    asked: list[str] = []

    def note(what: Any) -> None:
        asked.append(type(what).__name__)

    def change(call: ToolCall) -> ToolCall:
        note(call)
        return msgspec.structs.replace(call, arguments={"n": 7})

    guard = Interceptor(outgoing=note, incoming=note, tool_call=change)
    store, run = await record(calls("look", n=1), says("Done."), interceptors=[guard])
    assert asked == ["Message", "Message", "ToolCall", "Message"]
    (intent,) = [step for step in await store.journal("default", run) if step.kind == "intent"]
    assert msgspec.json.decode(intent.payload)["arguments"] == {"n": 7}
    asked.clear()
    assert (await replayed(store, run, interceptors=[guard])).same and asked == []


async def test_reply_that_a_hook_gave_has_no_request_to_compare() -> None:
    def answer(request: Request) -> Message | None:
        return assistant(ToolCall("c1", "look", {"n": 1})) if len(request.messages) == 1 else None

    hook = Interceptor(request=answer)
    store, run = await record(says("Done."), interceptors=[hook])
    assert (await replayed(store, run, interceptors=[hook])).same
    result = await replayed(store, run)
    assert result.same and result.not_compared == ("requests of round 1: a hook gave these replies without a request",)


SECRET = 'tiger in "the" 7 woods/+é'


@pytest.mark.parametrize(
    "written",
    [
        base64.b64encode(f"ana:{SECRET}".encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        json.dumps({"echo": SECRET}),
        SECRET.encode().hex(),
    ],
    ids=["base64", "base64url", "url", "form", "json", "hex"],
)
async def test_saved_run_has_no_secret_in_another_encoding(written: str, tmp_path: Path) -> None:
    @tool(effect="pure")
    async def log_in(password: str) -> str:
        """Log in."""
        return f"accepted {written}."

    model = Scripted(calls("log_in", password=SECRET), says(f"I sent {written}."))
    store, run = await record(models=[model], tools=(log_in,), message=f"Log in with {written}")
    agents, path = build(store, tools=(log_in,)), tmp_path / "test_login.py"
    await save_case(await RunRecord.read(store, run), agents, path, AgentSource("agents"))
    saved = path.with_suffix(".json").read_text()
    encoded = written if "{" not in written else json.dumps(written)[1:-1]
    assert encoded.strip("{}") not in saved and SECRET not in json.dumps(json.loads(saved), ensure_ascii=False)
    assert saved.count("[REDACTED]") >= 4 and (await replay(path.with_suffix(".json"), agents)).same


async def test_secret_that_is_split_over_parts_is_removed(tmp_path: Path) -> None:
    first, second = "The password is tiger-in-", "the-7-woods, as you know."
    message = Message("user", (Text(first), Text(second)))
    store, run = await record(says("Thank you."), message=message)
    agents, path = build(store), tmp_path / "test_split.py"
    agents.keep_secret(Secret("tiger-in-the-7-woods"))
    await save_case(await RunRecord.read(store, run), agents, path, AgentSource("agents"))
    saved = path.with_suffix(".json").read_text()
    assert "The password is [REDACTED], as you know." in saved and "the-7-woods" not in saved
    assert (await replay(path.with_suffix(".json"), agents)).same


async def test_secret_in_the_metadata_of_the_session_is_removed(tmp_path: Path) -> None:
    store = MemoryStore()
    async with build(store, says("Done.")) as atlas:
        await atlas.sessions.put("default", metadata={"api_key": "tiger-in-the-7-woods", "size": "large"})
        await atlas.ask("Hello")
    agents, path = build(store), tmp_path / "test_metadata.py"
    await save_case(await RunRecord.read(store, (await last_run(store)).id), agents, path, AgentSource("agents"))
    saved = path.with_suffix(".json").read_text()
    assert "tiger" not in saved and "large" in saved


async def test_saved_run_has_no_secret_in_any_field_of_its_data(tmp_path: Path) -> None:
    password = "tiger-Wq7-lake-93"
    names = ("id", "call_id", "key", "kind", "session", "tenant", "agent_id", "role", "type", "status")

    @tool(effect="pure")
    async def login(password: str, context: ToolContext) -> Any:
        """Log in."""
        context.metadata.set("shared_state", {"session": password})
        return {**dict.fromkeys(names, password), "messages": [password], password: [{"id": password}]}

    store, run = await record(calls("login", password=password), says("Done."), tools=[login], metadata={"plan": "a"})
    original = await RunRecord.read(store, run)
    assert "state" in [step.kind for step in original.steps]
    async with asyncio.timeout(TIMEOUT):
        await save_case(original, build(None, tools=[login]), tmp_path / "test_login.py", AgentSource("atlas"))
        saved = (tmp_path / "test_login.json").read_text()
        assert original.to_json().decode().count(password) > len(names) and password not in saved
        assert (await replay(tmp_path / "test_login.json", build(None, tools=[login]))).same


@pytest.mark.parametrize(
    ("argument", "result"),
    [
        ("show", '{"user": "ana", "password": "tiger-Wq7-lake-93"}'),
        ("show", [{"name": "password", "value": "tiger-Wq7-lake-93"}]),
        ("mysqldump --password=tiger-Wq7-lake-93 shop", "done"),
        ("show", {"headers": {"Authorization": "Bearer tiger-Wq7-lake-93"}}),
    ],
    ids=["json", "pair", "command", "header"],
)
async def test_saved_run_has_no_secret_that_its_data_names(argument: str, result: Any, tmp_path: Path) -> None:
    @tool(effect="pure")
    async def execute(command: str) -> Any:
        """Execute a command."""
        return result

    store, run = await record(calls("execute", command=argument), says("It is tiger-Wq7-lake-93."), tools=[execute])
    agents, path = build(None, tools=[execute]), tmp_path / "test_command.py"
    async with asyncio.timeout(TIMEOUT):
        await save_case(await RunRecord.read(store, run), agents, path, AgentSource("agents"))
        assert "It is [REDACTED]." in (saved := path.with_suffix(".json").read_text()) and "tiger" not in saved
        assert (await replay(path.with_suffix(".json"), agents)).same


async def test_saved_run_has_no_secret_of_its_prompt_message_or_error(tmp_path: Path) -> None:
    secret = "tiger-Wq7-lake-93"
    cases: list[dict[str, Any]] = [
        {"agent": {"prompt": f"DB_PASSWORD={secret}"}},
        {"message": f"Why does PGPASSWORD={secret} psql fail?"},
        {"models": [Scripted(fails(ProviderError(f"password={secret} is wrong: {secret}", "auth")))]},
    ]
    for number, case in enumerate(cases):
        store, run = await record(says(f"It is {secret}."), **case)
        path = tmp_path / f"test_{number}.py"
        async with asyncio.timeout(TIMEOUT):
            agents = build(None, agent=case.get("agent", {}))
            await save_case(await RunRecord.read(store, run), agents, path, AgentSource("agents"))
        saved = path.with_suffix(".json").read_text()
        assert "[REDACTED]" in saved and secret not in saved, case


@pytest.mark.parametrize("effect", ["network", "process"])
async def test_agent_code_reaches_neither_network_nor_processes(effect: str) -> None:
    def prompt(context: Any) -> str:
        if effect == "process":
            subprocess.run(["true"], check=True)
        else:
            socket.create_connection(("127.0.0.1", 9))
        return "Never."

    store, run = await record(says("Done."))
    result = await replayed(store, run, agent={"prompt": prompt})
    assert result.status == "failed" and not result.same
    assert result.error is not None and "during a replay" in result.error
    with pytest.raises(ConnectionRefusedError), socket.socket() as client:
        client.connect(("127.0.0.1", 9))  # allowed again


DEEP = msgspec.Raw(b"[" * 100_000 + b"]" * 100_000)
DAMAGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda whole: whole.update(steps=[]), "has no end"),
    (lambda whole: whole["steps"].pop(), "has no end: its last step is 'reply'"),
    (lambda whole: whole["steps"][-1].update(payload=5), r"step 3 \(ended\) .* cannot be read"),
    (lambda whole: whole["steps"][1]["payload"].update(request=5), r"step 2 \(reply\) .* cannot be read"),
    (lambda whole: whole.update(request={"model": 5}), "the request of run .* cannot be read"),
    (lambda whole: whole.update(messages=[5]), "cannot be read"),
    (lambda whole: whole["steps"][1]["payload"].update(deep=DEEP), "cannot be read: maximum recursion depth"),
    (lambda whole: whole.update(messages=[]), "messages of run .* are missing"),
    (lambda whole: whole.update(history=[{"id": "x"}]), "cannot be read"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGES)
async def test_damaged_file_is_refused_before_it_is_replayed(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    store, run = await record(says("Done."))
    whole = msgspec.json.decode((await RunRecord.read(store, run)).to_json())
    file = tmp_path / "run.json"
    file.write_bytes(msgspec.json.encode(whole))
    assert RunRecord.load(file).id == run
    change(whole)
    file.write_bytes(msgspec.json.encode(whole))
    with pytest.raises(ReplayError, match=f"{message}.*save it again"):
        RunRecord.load(file)


async def test_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    store, run = await record(says("Done."))
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ReplayError, match=r"cannot write .*test_a\.py: .*; choose another folder"):
        await save_case(
            await RunRecord.read(store, run), build(None), tmp_path / "file" / "test_a.py", AgentSource("atlas")
        )


def _connect() -> None:
    with socket.create_connection(("127.0.0.1", 9), timeout=TIMEOUT):
        pass


def _run_thread() -> None:
    raised: list[BaseException] = []

    def connect() -> None:
        try:
            _connect()
        except BaseException as error:  # noqa: BLE001 - what the thread got is raised by its starter
            raised.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join(TIMEOUT)
    raise raised[0]


def _spawn() -> None:
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join(TIMEOUT)


async def _look_up() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


async def _use_executor() -> None:
    await asyncio.get_running_loop().run_in_executor(None, _connect)


@pytest.mark.parametrize("effect", ["thread", "executor", "pool", "name", "process of a pool", "spawn"])
async def test_threads_of_agent_code_reach_neither_network_nor_processes(effect: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result(TIMEOUT)  # its thread runs before the replay
        effects: dict[str, Callable[[], Any]] = {
            "thread": _run_thread,
            "executor": _use_executor,
            "pool": lambda: pool.submit(_connect).result(TIMEOUT),
            "name": _look_up,
            "process of a pool": lambda: pool.submit(subprocess.run, ["true"], check=True).result(TIMEOUT),
            "spawn": _spawn,
        }

        async def prompt(context: Any) -> str:
            done = effects[effect]()
            if done is not None:
                await done
            return "Never."

        store, run = await record(says("Done."))
        result = await replayed(store, run, agent={"prompt": prompt})
        assert result.status == "failed" and result.error is not None and "during a replay" in result.error
        with pytest.raises(ConnectionRefusedError):
            pool.submit(_connect).result(TIMEOUT)  # allowed again


async def test_process_that_has_replayed_a_run_exits_without_errors() -> None:
    """When a process exits, the globals of modules become None while objects are still finalized."""
    program = """
import sys, types
early = sys.modules["early"] = types.ModuleType("early")  # modules that were imported first are cleared last
from atlas_agents.testing.replay import sealed

class Late:
    def __del__(self, audit=sys.audit):
        audit("late")

with sealed():
    early.late = Late()
sys.addaudithook(lambda *_, kept=(early, sys.modules["atlas_agents.testing.replay"]): None)
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=subprocess.PIPE)
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")


async def test_other_tasks_connect_while_a_replay_runs() -> None:
    replaying, connected = asyncio.Event(), asyncio.Event()

    async def prompt(context: Any) -> str:
        replaying.set()
        await connected.wait()
        return PROMPT

    async def connect() -> None:
        await replaying.wait()
        with pytest.raises(ConnectionRefusedError):
            _connect()
        connected.set()

    store, run = await record(says("Done."))
    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as tasks:
        tasks.create_task(connect())
        assert (await replayed(store, run, agent={"prompt": prompt})).status == "done"


async def test_turn_that_takes_more_or_fewer_rounds_is_named() -> None:
    store, run = await record(calls("look", n=1), calls("look", n=2), says("Done."))
    fewer = await replayed(store, run, agent={"max_rounds": 1})
    assert [each.summary for each in fewer.differences] == ["the turn ends after 1 of 3 recorded replies"]
    store, run = await record(calls("look", n=1), agent={"max_rounds": 1})
    more = await replayed(store, run)
    assert more.difference is not None and more.difference.where == "round 2"
    assert more.difference.summary == "the model is asked again, after all 1 recorded replies were used"


async def test_unknown_and_unfinished_runs_are_refused(tmp_path: Path) -> None:
    store, (forever, running) = MemoryStore(), endless_tool()
    with pytest.raises(ReplayError, match="not found: run 'nope'"):
        await replay("nope", build(None), store=store)
    async with build(store, calls("forever"), tools=(forever,)) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("Hello")
        await running.wait()
        with pytest.raises(ReplayError, match="has not ended: its status is 'running'"):
            await replay(stream.stream_id, build(None), store=store)
        stream.cancel()
        with pytest.raises(Cancelled):
            await stream.reply()
    other = Agent("other", model=Scripted())
    with pytest.raises(ReplayError, match=r"of the agent 'clerk', which is not given \(given: other\)"):
        await replay(stream.stream_id, other, store=store)
    with pytest.raises(ReplayError, match="cannot read the recorded run"):
        await replay(tmp_path / "missing.json", other)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE journal_rows SET payload = CAST('{' AS BLOB) WHERE kind = 'reply'", "step 2 of run .* was changed"),
        ("DELETE FROM journal_rows", "its steps were deleted by retention"),
        ("DELETE FROM messages", "the messages of run .* were deleted"),
        ("UPDATE messages SET body = CAST('{' AS BLOB)", "message 1 of session 'default' cannot be read"),
        ("UPDATE runs SET request = CAST('{' AS BLOB)", "the request of run .* cannot be read"),
    ],
)
async def test_damaged_rows_are_named(statement: str, message: str, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    try:
        _, run = await record(says("Done."), store=store)
        with closing(sqlite3.connect(tmp_path / "atlas.db")) as database, database:
            database.execute(statement)
        with pytest.raises(ReplayError, match=message):
            await replay(run, build(None), store=store)
    finally:
        await store.close()
