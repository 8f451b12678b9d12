"""Hooks around tool calls and model calls: they change, answer, refuse and are audited; a resumed turn repeats none."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from atlas_agents import (
    Agent,
    Answer,
    Approvals,
    Atlas,
    ConfigError,
    Interceptor,
    Message,
    Policy,
    Question,
    Refused,
    Request,
    ToolCall,
    ToolContext,
    ToolResult,
    TurnContext,
    assistant,
    system,
    tool,
)
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import collect_events, endless_tool, summarize_events, wait_until

sent: list[str] = []


@pytest.fixture(autouse=True)
def _no_mail_sent() -> None:
    sent.clear()


@tool
async def send_mail(to: str, text: str = "") -> str:
    """Send a mail."""
    sent.append(to)
    return f"sent to {to}"


def mailer(to: str = "ana@example.org") -> Scripted:
    return Scripted(calls("send_mail", to=to), says("Done."))


def with_hooks(model: Scripted, *interceptors: Interceptor, **more: Any) -> Atlas:
    return in_memory_atlas(model, [send_mail], interceptors=interceptors, **more)


def result_of(model: Scripted) -> ToolResult:
    return model.requests[1].messages[-1].tool_results[0]


async def audited(atlas: Atlas) -> dict[str, Any]:
    (row,) = await atlas.audit.records("default")
    return row.entry.meta


def redirect(call: ToolCall) -> ToolCall:
    return replace(call, arguments={**call.arguments, "to": "test@example.org"})


# Before a tool call


async def test_hook_changes_the_arguments_of_a_call() -> None:
    async with with_hooks(model := mailer(), Interceptor(tool_call=redirect)) as atlas:
        events = summarize_events(await collect_events(atlas.send("go")))
        meta = await audited(atlas)
    assert sent == ["test@example.org"] and result_of(model).result == "sent to test@example.org"
    assert meta["arguments"] == {"to": "test@example.org"} and meta["requested"] == {"to": "ana@example.org"}
    assert meta["hooks"] == [{"hook": "redirect", "did": "changed arguments"}]
    assert [event[0] for event in events].count("tool:result") == 1


async def test_hook_that_changes_arguments_in_place_changes_nothing() -> None:
    def tamper(call: ToolCall) -> None:
        call.arguments["to"] = "eve@example.org"

    async with with_hooks(mailer(), Interceptor(tool_call=tamper)) as atlas:
        await atlas.ask("go")
        assert "hooks" not in await audited(atlas)
    assert sent == ["ana@example.org"]


async def test_arguments_from_a_hook_are_validated() -> None:
    def misspell(call: ToolCall) -> ToolCall:
        return replace(call, arguments={"recipient": "x"})

    async with with_hooks(model := mailer(), Interceptor(tool_call=misspell)) as atlas:
        await atlas.ask("go")
    assert result_of(model).error == "bad_arguments" and sent == []


async def test_person_approves_what_hooks_made_of_the_call() -> None:
    asked: list[Question] = []

    async def approve(question: Question) -> bool:
        asked.append(question)
        return True

    policy = Policy(tools={"send_mail": {"*": "ask"}})
    async with with_hooks(mailer(), Interceptor(tool_call=redirect), approve=approve, policy=policy) as atlas:
        await atlas.ask("go")
    assert [question.arguments for question in asked] == [{"to": "test@example.org"}] and sent == ["test@example.org"]


async def test_hook_answers_a_call_without_running_it() -> None:
    def answer(call: ToolCall) -> ToolResult:
        return ToolResult("", "ok", {"cached": True})

    async with with_hooks(model := mailer(), Interceptor(tool_call=answer, name="cache")) as atlas:
        await atlas.ask("go")
        meta = await audited(atlas)
    assert result_of(model).result == {"cached": True} and result_of(model).status == "ok" and sent == []
    assert meta["hooks"] == [{"hook": "cache", "did": "answered"}] and meta["verdict"] == "yes"


async def test_hook_is_not_asked_about_a_call_that_is_not_permitted() -> None:
    asked: list[str] = []

    def answer(call: ToolCall) -> ToolResult:
        asked.append(call.name)
        return ToolResult("", "ok", "fine")

    policy = Policy(tools={"send_mail": {"*": "no"}})
    async with with_hooks(model := mailer(), Interceptor(tool_call=answer), policy=policy) as atlas:
        await atlas.ask("go")
    assert result_of(model).error == "not_permitted" and asked == []


async def test_hook_refuses_a_call() -> None:
    async def refuse(call: ToolCall) -> None:
        raise Refused("no mail on Sundays")

    async with with_hooks(model := mailer(), Interceptor(tool_call=refuse, name="sundays")) as atlas:
        assert (await atlas.ask("go")).text == "Done."
        meta = await audited(atlas)
    assert result_of(model).result == "send_mail was not run: the hook 'sundays' refused it: no mail on Sundays"
    assert result_of(model).error == "not_permitted" and sent == []
    assert meta["hooks"] == [{"hook": "sundays", "did": "refused", "reason": "no mail on Sundays"}]


def fail(*_: Any) -> None:
    raise LookupError("password is hunter2")


async def hang(call: ToolCall, result: ToolResult | None = None) -> None:
    await asyncio.Event().wait()


def wrong(*_: Any) -> Any:
    return "text"


def rename(call: ToolCall) -> ToolCall:
    return replace(call, name="other")


@pytest.mark.parametrize(
    ("hook", "complaint"),
    [
        (fail, "the hook 'fail' failed."),
        (wrong, "the hook 'wrong' failed."),
        (rename, "the hook 'rename' failed."),
        (hang, "the hook 'hang' did not return within 0.05 seconds."),
    ],
)
async def test_hook_that_fails_or_hangs_refuses_the_call_by_name(
    hook: Callable[..., Any], complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with with_hooks(
        model := mailer(), Interceptor(tool_call=hook, timeout=0.05 if hook is hang else 30)
    ) as atlas:
        await atlas.ask("go")
        meta = await audited(atlas)
    assert result_of(model).result == f"send_mail was not run: {complaint}" and sent == []
    assert meta["hooks"][0]["did"] == "failed" and "hunter2" not in str(meta)


async def test_hooks_run_in_order_until_one_decides() -> None:
    def add(mark: str) -> Interceptor:
        def change(call: ToolCall) -> ToolCall:
            return replace(call, arguments={"to": call.arguments["to"] + mark})

        return Interceptor(tool_call=change, name=mark)

    def answer(call: ToolCall) -> ToolResult:
        return ToolResult("", "ok", call.arguments["to"])

    async with with_hooks(model := mailer("a"), add("1"), add("2"), Interceptor(tool_call=answer), add("3")) as atlas:
        await atlas.ask("go")
        meta = await audited(atlas)
    assert result_of(model).result == "a12"
    assert [action["hook"] for action in meta["hooks"]][:2] == ["1", "2"] and len(meta["hooks"]) == 3


async def test_hooks_receive_the_context_of_the_turn() -> None:
    seen: list[tuple[Any, ...]] = []

    def look(call: ToolCall, context: TurnContext[str]) -> None:
        seen.append((call.name, context.user, context.session, context.deps))

    def look_after(call: ToolCall, result: ToolResult, context: TurnContext[str]) -> None:
        seen.append((result.result, context.agent_id))

    def look_at_request(request: Request, context: TurnContext[str]) -> None:
        seen.append((len(request.messages), context.deps))

    hooks = Interceptor(tool_call=look, tool_result=look_after, request=look_at_request)
    agent = Agent("a", model=mailer(), tools=[send_mail])
    async with Atlas([agent], interceptors=[hooks]) as atlas:
        await atlas.ask("go", user="ana", session="s", deps="db")
    assert seen == [(1, "db"), ("send_mail", "ana", "s", "db"), ("sent to ana@example.org", "a"), (3, "db")]


# After a tool call


async def test_hook_changes_the_result_of_a_call() -> None:
    def hide(call: ToolCall, result: ToolResult) -> ToolResult:
        return replace(result, result=str(result.result).replace("ana@example.org", "[mail]"))

    async with with_hooks(model := mailer(), Interceptor(tool_result=hide)) as atlas:
        events = await collect_events(atlas.send("go"))
        meta = await audited(atlas)
    assert result_of(model).result == "sent to [mail]" and meta["result"] == "sent to [mail]"
    assert [event.result for event in events if event.type == "tool:result"] == ["sent to [mail]"]
    assert meta["hooks"][0]["did"] == "changed result"


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (fail, "the hook 'fail' failed."),
        (wrong, "the hook 'wrong' failed."),
        (hang, "the hook 'hang' did not return within 0.05 seconds."),
    ],
)
async def test_result_that_a_hook_did_not_check_is_withheld(
    hook: Callable[..., Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with with_hooks(
        model := mailer(), Interceptor(tool_result=hook, timeout=0.05 if hook is hang else 30)
    ) as atlas:
        await atlas.ask("go")
    assert sent == ["ana@example.org"] and result_of(model).status == "error"
    assert result_of(model).result == f"The call ended with status 'ok', but its result was withheld: {reason}"


async def test_hook_cannot_remove_the_mark_of_untrusted_content() -> None:
    @tool(effect="pure", untrusted="web")
    async def fetch() -> str:
        """Fetch a page."""
        return "page"

    def shorten(call: ToolCall, result: ToolResult) -> ToolResult:
        return ToolResult(call.id, "ok", "p", untrusted="short")

    model = Scripted(calls("fetch"), says("Done."))
    async with in_memory_atlas(model, [fetch], interceptors=[Interceptor(tool_result=shorten)]) as atlas:
        await atlas.ask("go")
    assert result_of(model).untrusted == "web: fetch; short"


async def test_refused_call_has_no_result_to_check() -> None:
    def refuse(call: ToolCall) -> None:
        raise Refused("no")

    def never(call: ToolCall, result: ToolResult) -> None:
        raise AssertionError("called for a call that did not run")

    async with with_hooks(model := mailer(), Interceptor(tool_call=refuse, tool_result=never)) as atlas:
        await atlas.ask("go")
    assert result_of(model).result.endswith("refused it: no")


# Hand-offs


async def test_hand_off_goes_to_the_agent_that_a_hook_chose() -> None:
    def choose(call: ToolCall) -> ToolCall:
        return replace(call, arguments={"agent": "c"})

    first = Agent("a", model=Scripted(calls("hand_off", agent="b")), hands_off_to=["b", "c"])
    others = [Agent(id, model=Scripted(says(f"I am {id}."))) for id in ("b", "c")]
    async with Atlas([first, *others], interceptors=[Interceptor(tool_call=choose)]) as atlas:
        assert (await atlas.ask("go", agent_id="a")).text == "I am c."


# Model calls


async def test_request_hook_replies_instead_of_the_model() -> None:
    def cached(request: Request) -> Message | None:
        return assistant("From the cache.") if request.messages[-1].text == "again" else None

    model = Scripted(says("Fresh."))
    async with in_memory_atlas(model, interceptors=[Interceptor(request=cached)], store=MemoryStore()) as atlas:
        await atlas.ask("first", session="s")
        stream = atlas.send("again", session="s")
        events = summarize_events(await collect_events(stream))
        reply = await stream.reply()
    assert reply.text == "From the cache." and reply.metadata["hooks"] == ["cached"] and len(model.requests) == 1
    assert ("stream:chunk", "From the cache.") in events and stream.usage.input_tokens == 0


async def test_hook_that_changed_a_reply_is_named_in_it() -> None:
    def sign(message: Message) -> Message:
        return assistant(f"{message.text} (checked)")

    async with in_memory_atlas(Scripted(says("Hello.")), interceptors=[Interceptor(incoming=sign)]) as atlas:
        reply = await atlas.ask("hi")
    assert reply.text == "Hello. (checked)" and reply.metadata["hooks"] == ["sign"]


async def test_message_hook_that_hangs_stops_the_turn() -> None:
    async def hang_forever(message: Message) -> None:
        await asyncio.Event().wait()

    hooks = [Interceptor(outgoing=hang_forever, name="slow", timeout=0.05)]
    async with in_memory_atlas(Scripted(), interceptors=hooks) as atlas:
        with pytest.raises(Refused, match=r"the hook 'slow' did not return within 0\.05 seconds"):
            await atlas.ask("hi")


def test_timeout_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="invalid timeout 0 of an interceptor"):
        in_memory_atlas(Scripted(), interceptors=[Interceptor(timeout=0)])


# Resumed turns


async def test_resumed_turn_uses_what_hooks_decided_before_the_crash(tmp_path: Path) -> None:
    started, keys, ran = asyncio.Event(), iter("abc"), list[str]()

    @tool(effect="keyed")
    async def pay(key: str, context: ToolContext) -> str:
        """Pay."""
        ran.append(key)
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()
        return f"paid with {key}"

    def add_key(call: ToolCall) -> ToolCall:
        return replace(call, arguments={"key": next(keys)})

    def mark(call: ToolCall, result: ToolResult) -> ToolResult:
        return replace(result, result=f"{result.result}!")

    hooks = [Interceptor(tool_call=add_key, tool_result=mark)]
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    first = Atlas([Agent("a", model=Scripted(calls("pay", key="x")), tools=[pay])], store=store, interceptors=hooks)
    first.send("go", session="s")
    await started.wait()
    await first.close(grace=0)
    model = Scripted(says("Done."))
    async with Atlas([Agent("a", model=model, tools=[pay])], store=store, interceptors=hooks) as atlas:
        (stream,) = await atlas.recover()
        await stream.reply()
        meta = await audited(atlas)
        steps = [row.kind for row in await store.journal("default", stream.stream_id)]
    assert ran == ["a", "a"] and next(keys) == "b"
    assert model.requests[0].messages[-1].tool_results[0].result == "paid with a!"
    assert meta["arguments"] == {"key": "a"} and meta["requested"] == {"key": "x"}
    assert [each["did"] for each in meta["hooks"]] == ["changed arguments", "changed result"]
    assert steps.count("hook") == 1
    await store.close()


async def test_resumed_turn_has_the_messages_that_a_hook_added() -> None:
    store, (wait, started) = MemoryStore(), endless_tool()
    await store.open()

    def add(message: Message) -> list[Message] | None:
        return [system("Mind the rules."), message] if message.tool_calls else None

    first = in_memory_atlas(Scripted(calls("forever")), [wait], store=store, interceptors=[Interceptor(incoming=add)])
    first.send("go", session="s")
    await started.wait()
    await first.close(grace=0)
    model = Scripted(says("Done."))
    async with in_memory_atlas(model, [wait], store=store, interceptors=[Interceptor(incoming=add)]) as atlas:
        (stream,) = await atlas.recover()
        await stream.reply()
        stored = [row.message.role for row in await store.messages("default", "s")]
    assert [message.role for message in model.requests[0].messages] == ["user", "system", "assistant", "tool"]
    assert stored == ["user", "system", "assistant", "tool", "assistant"]


async def test_approval_given_after_a_restart_is_for_what_hooks_decided() -> None:
    store, keys = MemoryStore(), iter("abc")
    await store.open()

    def add_key(call: ToolCall) -> ToolCall:
        return replace(call, arguments={"to": next(keys)})

    def atlas_with(model: Scripted) -> Atlas:
        policy, hooks = Policy(tools={"send_mail": {"*": "ask"}}), Interceptor(tool_call=add_key)
        return with_hooks(model, hooks, store=store, policy=policy, approve=Approvals(wait=True))

    first = atlas_with(mailer())
    first.send("go", session="s")
    await wait_until(first.pending)
    await first.close()
    async with atlas_with(Scripted(says("Done."))) as atlas:
        (stream,) = await atlas.recover()
        (question,) = await wait_until(atlas.pending)
        await atlas.answer(question.id, Answer("once", by="ana"))
        await stream.reply()
    assert question.arguments == {"to": "a"} and sent == ["a"] and next(keys) == "b"
