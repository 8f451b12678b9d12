"""Session methods, and which user may access which session."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agui_client import open_page
from gateway_client import Client, connect_client, serve_and_connect, serve_gateway
from openai_client import connect_openai, user_messages
from paced_model import Paced

from atlas_agents import Agent, Approvals, Atlas, Policy, ProviderError, Tool, user
from atlas_agents.agents.sessions import make_title
from atlas_agents.app.agents import TitleWriter
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.store import AddMessage, DropSession, PutSession
from atlas_agents.gateway.server import Gateway
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Environment, Registry, Scripted, calls, fails, in_memory_atlas, says
from checks import wait_until

ANA, BOB = "ana-0123456789abcdefghijklmnop", "bob-0123456789abcdefghijklmnop"


def two_users(home: Path, **more: Any) -> None:
    lines: dict[str, Any] = {
        "ana": {"token": ANA, "scopes": ["read", "write", "approve"]},
        "bob": {"token": BOB, "scopes": ["read", "write", "approve"]},
    }
    (home / "tokens.json").write_text(json.dumps(lines | more))


def stored_atlas(*replies: Any, **options: Any) -> Atlas:
    return in_memory_atlas(Scripted(*replies), store=MemoryStore(), **options)


async def test_session_is_created_listed_updated_and_deleted(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, stored_atlas(says("Hi."))) as client:
        assert (await client.get("sessions.list"))["sessions"] == []
        key = (await client.get("sessions.create", label="Report", metadata={"a": 1}))["sessionKey"]
        (listed,) = (await client.get("sessions.list"))["sessions"]
        assert (listed["sessionKey"], listed["label"], listed["metadata"]) == (key, "Report", {"a": 1})
        assert (await client.request("sessions.create", sessionKey=key))["error"]["data"]["kind"] == "CONFLICT"
        changed = (await client.get("sessions.update", sessionKey=key, label="Weekly", archived=True))["session"]
        assert (changed["label"], changed["archived"]) == ("Weekly", True)
        assert (await client.get("sessions.list"))["sessions"] == []
        assert len((await client.get("sessions.list", archived=True))["sessions"]) == 1
        assert await client.get("sessions.delete", sessionKey=key) == {"ok": True}
        gone = await client.request("sessions.get", sessionKey=key)
        assert gone["error"]["data"]["kind"] == "SESSION_NOT_FOUND"
        deleted = [
            event["data"].get("deleted", False) for event in client.events() if event["event"] == "session.updated"
        ]
        assert deleted == [False, False, True]


async def test_session_list_is_paginated(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, stored_atlas()) as client:
        keys = [(await client.get("sessions.create"))["sessionKey"] for _ in range(5)]
        found: list[str] = []
        cursor: dict[str, Any] = {}
        while True:
            page = await client.get("sessions.list", limit=2, **cursor)
            found += [session["sessionKey"] for session in page["sessions"]]
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert found == keys[::-1]
        wrong = await client.request("sessions.list", cursor="x")
        assert wrong["error"]["code"] == -32602


def shop_atlas(model: Scripted) -> Atlas:
    """Return an Atlas whose agent uses the model `shop/small`; every model of the shop is this one."""
    registry = Registry(Environment({}, dotenv=None))
    registry.register("shop", lambda environment: model)
    return Atlas([Agent("assistant", model="shop/small")], registry=registry, store=MemoryStore())


async def test_model_and_effort_of_a_session_apply_to_all_its_clients(tmp_path: Path) -> None:
    model = Scripted(*[says("Hi.")] * 5)
    async with (
        serve_gateway(tmp_path, shop_atlas(model)) as gateway,
        connect_client(gateway) as client,
        connect_openai(gateway) as openai,
        open_page(gateway) as page,
    ):
        await client.get("chat.send", sessionKey="main", message="Hi")
        await client.until("chat.final")
        await client.get("sessions.update", sessionKey="main", model="shop/large", effort="low")
        await client.get("chat.send", sessionKey="main", message="Hi")
        assert (await client.until("chat.started"))["model"] == "shop/large"
        await client.until("chat.final")
        await openai.chat.completions.create(
            model="atlas/assistant", messages=user_messages("Hi"), extra_headers={"X-Atlas-Session": "main"}
        )
        finished = (await page.run("Hi", thread="main"))[-1]
        assert finished["type"] == "RUN_FINISHED"
        await client.get(
            "chat.send", sessionKey="main", message="Hi", model="shop/other", settings={"effort": "high", "seed": 1}
        )
        await client.until("chat.final")
    used = [(request.model, request.settings.effort) for request in model.requests]
    assert used == [("small", None), *[("large", "low")] * 3, ("other", "high")]


async def test_unusable_model_of_a_session_is_an_error_that_names_it(tmp_path: Path) -> None:
    atlas = shop_atlas(Scripted())
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        key = (await client.get("sessions.create"))["sessionKey"]
        refused = await client.request("sessions.update", sessionKey=key, model="shop2/large")
        assert refused["error"]["message"].startswith("sessions.update: model: unknown provider 'shop2'")
        await client.get("sessions.update", sessionKey=key, model="shop/large")
        lines = (await client.get("sessions.export", sessionKey=key))["lines"]
        atlas.registry.register("shop", no_provider)
        answer = (await client.request("chat.send", sessionKey=key, message="Hi"))["error"]
        assert answer["message"] == "the model of this session cannot be used, choose another one for it: it is closed"
        await client.get("sessions.import", text="\n".join(lines), sessionKey="copy")
        copy = (await client.get("sessions.get", sessionKey="copy"))["session"]
        assert "model" not in copy


def no_provider(_: object) -> Any:
    raise ConfigError("it is closed")


async def test_user_cannot_choose_another_model_through_a_session(tmp_path: Path) -> None:
    two_users(tmp_path)
    model = Scripted(says("Hi."))
    stored = {"choices": {"model": "shop/large", "effort": "max", "pinned": False, "folder": ""}}
    async with serve_gateway(tmp_path, shop_atlas(model)) as gateway, connect_client(gateway, ANA) as ana:
        key = (await ana.get("sessions.create", metadata={**stored, "a": 1}))["sessionKey"]
        refused = await ana.request("sessions.update", sessionKey=key, model="shop/large")
        assert refused["error"]["data"]["kind"] == "FORBIDDEN"
        assert refused["error"]["message"].endswith("this token may choose only these models: shop/small")
        changed = await ana.get("sessions.update", sessionKey=key, metadata={**stored, "b": 2})
        assert changed["session"]["metadata"] == {"b": 2}
        header = json.dumps({"atlas_session": 1, "key": "mine", "metadata": stored})
        await ana.get("sessions.import", text=header)
        forked = (await ana.get("sessions.fork", sessionKey="mine", metadata=stored))["sessionKey"]
        await ana.get("chat.send", sessionKey=forked, message="Hi")
        await ana.until("chat.final")
    assert [request.model for request in model.requests] == ["small"]


async def test_session_is_named_after_its_first_message(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, shop_atlas(Scripted(says("Hi.")))) as client:
        await client.get("chat.send", sessionKey="main", message="Please tell me\n all about **it** " + "x" * 100)
        while not (label := (await client.until("session.updated"))["session"]["label"]):
            pass
        assert label == "Tell me all about it…"
        found = await client.get(
            "sessions.update", sessionKey="main", model="shop/other", effort="low", pinned=True, folder="Work"
        )
        chosen = {"model": "shop/other", "effort": "low", "pinned": True, "folder": "Work"}
        assert found["session"] == {**found["session"], **chosen}
        found = await client.get("sessions.update", sessionKey="main", effort="", folder="", metadata={"x": 1})
        assert found["session"]["metadata"]["x"] == 1
        assert {key: found["session"].get(key) for key in chosen} == {**chosen, "effort": None, "folder": None}


@asynccontextmanager
async def titled_gateway(home: Path, *titles: Any, model: Any = None) -> AsyncGenerator[Client, None]:
    """Serve an Atlas whose sessions get their titles from a model with these replies."""
    atlas = stored_atlas(says("Sunny."), says("Cold."), says("Warm."))
    writer = TitleWriter(model or Scripted(*titles, id="titles"), atlas)
    try:
        async with serve_and_connect(home, atlas) as client:
            yield client
    finally:
        await writer.close()


async def wait_for_label(client: Client, label: str) -> None:
    while (await client.get("sessions.list"))["sessions"][0]["label"] != label:
        await client.until("session.updated")


WEATHER = "Please tell me how the weather is"


async def test_title_model_replaces_the_title_after_the_first_answer_and_is_counted(tmp_path: Path) -> None:
    async with titled_gateway(tmp_path, says('"Weather in Oslo."\nMore')) as client:
        for message in (WEATHER, "And tomorrow?"):
            await client.get("chat.send", sessionKey="main", message=message)
            await client.until("chat.final")
            await wait_for_label(client, "Weather in Oslo")
        rows = (await client.get("usage.summary", groupBy="model"))["rows"]
        assert {row["name"]: row["outputTokens"] > 0 for row in rows}["titles"]


async def test_title_model_that_never_answers_does_not_delay_the_end_of_the_turn(tmp_path: Path) -> None:
    model = Paced(says("Weather in Oslo"), pause=3600)
    async with titled_gateway(tmp_path, model=model) as client:
        await client.get("chat.send", sessionKey="main", message=WEATHER)
        await client.until("chat.final")
        await wait_for_label(client, "Tell me how the weather is")
        assert not (await client.get("sessions.list"))["sessions"][0]["running"]
        await client.get("chat.send", sessionKey="main", message="And tomorrow?")
        assert "Cold." in json.dumps(await client.until("chat.final"))


async def test_title_that_a_restart_prevented_is_written_after_the_next_answer(tmp_path: Path) -> None:
    atlas = stored_atlas(says("Sunny."), says("Cold."))
    async with serve_and_connect(tmp_path, atlas) as client:
        stopped = TitleWriter(Paced(says("Weather in Oslo"), pause=3600), atlas)
        await client.get("chat.send", sessionKey="main", message=WEATHER)
        await client.until("chat.final")
        await wait_for_label(client, "Tell me how the weather is")
        await stopped.close()
        writer = TitleWriter(Scripted(says("Weather in Oslo")), atlas)
        await client.get("chat.send", sessionKey="main", message="And tomorrow?")
        await wait_for_label(client, "Weather in Oslo")
        await writer.close()


@pytest.mark.parametrize("failure", [fails(ProviderError("no such model", "bad_request")), says(" ")])
async def test_title_model_that_fails_leaves_the_title_of_the_message(tmp_path: Path, failure: Any) -> None:
    model = Scripted(failure, id="titles")
    async with titled_gateway(tmp_path, model=model) as client:
        await client.get("chat.send", sessionKey="main", message=WEATHER)
        assert "error" not in await client.until("chat.final")
        await wait_until(lambda: len(model.requests) == 1)
        await wait_for_label(client, "Tell me how the weather is")


async def test_title_model_never_replaces_a_name_that_a_person_gave(tmp_path: Path) -> None:
    model = Scripted(says("Hello"), id="titles")
    async with titled_gateway(tmp_path, model=model) as client:
        key = (await client.get("sessions.create", label="My own"))["sessionKey"]
        await client.get("chat.send", sessionKey=key, message=WEATHER)
        await client.until("chat.final")
        await client.get("chat.send", sessionKey="other", message="Good morning to you")
        await wait_for_label(client, "Hello")
        sessions = (await client.get("sessions.list"))["sessions"]
        assert {each["label"] for each in sessions} == {"My own", "Hello"}
        assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("hello", "hello"),
        ("Could you please summarise the report? It is long.", "Summarise the report?"),
        ("# Fix this\n```py\nx = 1\n```", "Fix this"),
        ("What is the time in [Paris](https://example.org)?", "What is the time in Paris?"),
        ("x" * 100, "x" * 59 + "…"),
        ("```\ncode\n```", "code"),
        ("", ""),
    ],
)
def test_title_is_the_first_sentence_without_markup(text: str, title: str) -> None:
    assert make_title(text) == title


class DeletingStore(MemoryStore):
    """Deletes the session, as another gateway could, when its first message is read to name it."""

    async def messages(self, tenant: str, session: str, *, limit: int | None = None, **more: Any) -> Any:
        rows = await super().messages(tenant, session, limit=limit, **more)
        if session == "doomed" and limit and rows:
            await self.commit(tenant, [DropSession(session)])
        return rows


async def test_naming_a_session_that_was_just_deleted_does_not_create_it_again(tmp_path: Path) -> None:
    store = DeletingStore()
    body = user("Hello").to_json()
    await store.commit("default", [PutSession("doomed"), AddMessage("doomed", "m", body)])
    atlas = in_memory_atlas(Scripted(), store=store)
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        await client.get("sessions.list")
        gateway.hub.session_updates.report_change("doomed")
        await client.until("session.updated")
        assert (await client.get("sessions.list"))["sessions"] == []


async def test_list_subscriber_sees_when_a_session_is_running(tmp_path: Path) -> None:
    atlas = in_memory_atlas(Paced(says("One two three.")), store=MemoryStore())
    async with (
        serve_gateway(tmp_path, atlas) as gateway,
        connect_client(gateway) as other,
        connect_client(gateway) as client,
    ):
        await other.get("sessions.list")
        await client.get("chat.send", sessionKey="main", message="Go")
        states: list[bool] = []
        while states[-1:] != [False]:
            states.append((await other.until("session.updated"))["session"]["running"])
        assert True in states
        assert {event["event"] for event in other.events()} == {"session.updated"}


async def test_closed_connections_leave_no_subscriptions(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas(says("Hi."), says("Hi."))) as gateway:
        updates = gateway.hub.session_updates
        async with connect_client(gateway) as client:
            await client.get("sessions.list")
            await client.get("chat.send", sessionKey="main", message="Hi")
            await client.until("chat.final")
            assert updates.subscriber_count == 2
        await wait_until(lambda: updates.subscriber_count == 0)


async def test_assigned_agent_answers_in_a_session(tmp_path: Path) -> None:
    agents = [Agent("one", model=Scripted(says("I am one."))), Agent("two", model=Scripted(says("I am two.")))]
    atlas = Atlas(agents, store=MemoryStore(), registry=Registry(Environment({}, dotenv=None)))
    async with serve_and_connect(tmp_path, atlas) as client:
        key = (await client.get("sessions.create", agentId="two"))["sessionKey"]
        await client.get("chat.send", sessionKey=key, message="Who?")
        assert (await client.until("chat.started"))["agentId"] == "two"
        await client.until("chat.final")
        await client.get("sessions.update", sessionKey=key, agentId="one")
        await client.get("chat.send", sessionKey=key, message="And now?")
        assert (await client.until("chat.started"))["agentId"] == "one"
        for method in ("chat.send", "sessions.create"):
            wrong = await client.request(method, sessionKey=key, message="?", agentId="missing")
            assert wrong["error"]["data"]["kind"] == "AGENT_NOT_FOUND"


async def test_session_with_a_running_turn_is_not_deleted(tmp_path: Path) -> None:
    released = asyncio.Event()

    async def slow(input: str) -> str:
        await released.wait()
        return input

    atlas = in_memory_atlas(Scripted(calls("slow", input="x"), says("ok")), [Tool("slow", slow)], store=MemoryStore())
    async with serve_and_connect(tmp_path, atlas) as client:
        await client.get("chat.send", sessionKey="main", message="Go")
        await client.until("tool.call")
        assert (await client.request("sessions.delete", sessionKey="main"))["error"]["data"]["kind"] == "BUSY"
        released.set()
        await client.until("chat.final")
        assert await client.get("sessions.delete", sessionKey="main") == {"ok": True}


async def request_everything(client: Client, session: str, run_id: str, approval_id: str) -> list[dict[str, Any]]:
    """Return the responses to every request about a session, run and approval of another user."""
    return [
        await client.request("sessions.get", sessionKey=session),
        await client.request("sessions.update", sessionKey=session, label="mine"),
        await client.request("sessions.delete", sessionKey=session),
        await client.request("chat.history", sessionKey=session),
        await client.request("chat.wait", runId=run_id, timeoutMs=0),
        await client.request("chat.abort", runId=run_id),
        await client.request("approvals.resolve", approvalId=approval_id, decision="allow-once"),
        await client.request("exec.approve", approvalId=approval_id),
    ]


async def test_user_sees_own_runs_among_many_sessions_of_others(tmp_path: Path) -> None:
    two_users(tmp_path)
    store = MemoryStore()
    atlas = in_memory_atlas(Scripted(says("ok")), store=store)
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway, ANA) as ana:
        run_id = (await ana.get("chat.send", sessionKey="main", message="hello"))["runId"]
        await ana.until("chat.final")
        await store.commit(atlas.tenant, [PutSession(f"other{n}") for n in range(200)])
        assert [(run["runId"], run["sessionKey"]) for run in (await ana.get("runs.list"))["runs"]] == [(run_id, "main")]


async def test_data_of_another_user_is_not_visible(tmp_path: Path) -> None:
    two_users(tmp_path)
    done: list[str] = []

    async def act(input: str) -> str:
        done.append(input)
        return "done"

    atlas = in_memory_atlas(
        Scripted(calls("act", input="x"), says("ok")),
        [Tool("act", act, confirm=True)],
        store=MemoryStore(),
        approve=Approvals(wait=True),
    )
    async with (
        serve_gateway(tmp_path, atlas) as gateway,
        connect_client(gateway, ANA) as ana,
        connect_client(gateway, BOB) as bob,
    ):
        run_id = (await ana.get("chat.send", sessionKey="main", message="Secret words"))["runId"]
        approval = await ana.until("exec.approval_request")
        assert approval["sessionKey"] == "main"
        for session in ("main", "@ana/main", "../ana/main"):
            real = await request_everything(bob, session, run_id, approval["approvalId"])
            none = await request_everything(bob, "nowhere", "0" * 32, "0" * 32)
            assert [answer["error"] for answer in real] == [answer["error"] for answer in none]
        assert (await bob.get("sessions.list"))["sessions"] == []
        assert (await bob.get("approvals.list"))["approvals"] == []
        found = await bob.get("sessions.subscribe", sessionKey="main", runs={run_id: 0})
        assert (found["messages"], found["runs"]) == ([], [])
        assert await bob.get("chat.abort", sessionKey="main") == {"aborted": []}
        for method in ("audit.list", "audit.subscribe"):
            assert (await bob.request(method))["error"]["data"]["kind"] == "FORBIDDEN"
        await ana.get("exec.approve", approvalId=approval["approvalId"])
        await ana.until("chat.final")
        assert (await bob.get("usage.summary"))["rows"] == []
        assert len((await ana.get("usage.summary", groupBy="session"))["rows"]) == 1
        assert bob.events() == [] and done == ["x"]
        await check_main_token_sees_all(gateway)


async def check_main_token_sees_all(gateway: Gateway) -> None:
    """Check that the main token sees the sessions of all users."""
    async with connect_client(gateway) as owner:
        (session,) = (await owner.get("sessions.list"))["sessions"]
        assert session["sessionKey"] == "@ana/main"


async def test_two_users_may_use_the_same_session_key(tmp_path: Path) -> None:
    two_users(tmp_path)
    atlas = stored_atlas(says("To Ana."), says("To Bob."))
    async with (
        serve_gateway(tmp_path, atlas) as gateway,
        connect_client(gateway, ANA) as ana,
        connect_client(gateway, BOB) as bob,
    ):
        for client in (ana, bob):
            await client.get("chat.send", sessionKey="main", message="Hi")
            await client.until("chat.final")
        for client, text in ((ana, "To Ana."), (bob, "To Bob.")):
            history = (await client.get("chat.history", sessionKey="main"))["messages"]
            assert history[-1]["parts"] == [{"type": "text", "text": text}]
            assert {event["data"].get("sessionKey") for event in client.events() if "seq" in event["data"]} == {"main"}


@pytest.mark.parametrize("scope", ["write", "approve"])
async def test_token_without_read_scope_receives_no_events(scope: str, tmp_path: Path) -> None:
    token = "writer-0123456789abcdefghijklmnop"
    two_users(tmp_path, writer={"token": token, "scopes": [scope], "sessions": "all"})
    atlas = stored_atlas(says("Hi."), says("Ho."))
    async with (
        serve_gateway(tmp_path, atlas) as gateway,
        connect_client(gateway) as owner,
        connect_client(gateway, token) as writer,
    ):
        if scope == "write":
            await writer.get("chat.send", sessionKey="main", message="Go")
        refused = await writer.request("sessions.subscribe", sessionKey="main")
        assert refused["error"]["code"] == -32001
        await owner.get("chat.send", sessionKey="main", message="Go")
        await owner.until("chat.final")
        assert (await writer.request("health.check"))["error"]["code"] == -32001
        assert writer.events() == []


def atlas_with_policy() -> Atlas:
    async def act(input: str) -> str:
        """Do something."""
        return input

    policy = Policy(tools={"act": {"doer": "ask"}, "look": {"*": "yes"}})
    tools = [Tool("act", act), Tool("look", act), Tool("wipe", act)]
    agents = [
        Agent("assistant", model=Scripted(calls("look", input="x"), says("ok")), tools=tools, role="doer"),
        Agent("other", model="openai/gpt-x", description="Another."),
    ]
    return Atlas(agents, store=MemoryStore(), policy=policy, registry=Registry(Environment({}, dotenv=None)))


async def test_agents_models_and_tools_are_listed(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, atlas_with_policy()) as client:
        first, second = (await client.get("agents.list"))["agents"]
        assert (first["id"], first["default"], first["tools"]) == ("assistant", True, ["act", "look"])
        assert (await client.get("agents.get", agentId="other"))["agent"] == second
        models = (await client.get("models.list"))["models"]
        assert [(model["id"], model["available"]) for model in models] == [("scripted", True), ("openai/gpt-x", False)]
        found = {tool["name"]: tool for tool in (await client.get("tools.list", agentId="assistant"))["tools"]}
        assert [(found[name]["allowed"], found[name]["requiresApproval"]) for name in ("act", "look", "wipe")] == [
            (True, True),
            (True, False),
            (False, False),
        ]
        assert found["act"]["description"] == "Do something."
        matrix = await client.get("tools.matrix")
        assert matrix["rows"][0]["cells"] == {"act": "ask", "look": "yes", "wipe": "no"}


async def test_audit_entries_and_usage_are_listed(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, atlas_with_policy()) as client:
        await client.get("audit.subscribe")
        await client.get("chat.send", sessionKey="main", message="Look")
        entry = (await client.until("audit.entry"))["entry"]
        assert (entry["seq"], entry["entry"]["entityId"]) == (1, "look")
        await client.until("chat.final")
        assert (await client.get("audit.list"))["entries"] == [entry]
        assert (await client.get("audit.list", tool="act"))["entries"] == []
        at = entry["entry"]["timestamp"]
        owner = {"user": "owner", "from": at, "to": at + 1}
        assert (await client.get("audit.list", **owner))["entries"] == [entry]
        for other in ({"user": "ben"}, {"from": at + 1, "to": at + 2}, {"from": at - 1, "to": at}):
            assert await client.get("audit.list", **{**owner, **other}) == {"entries": []}, other
        answer = await client.request("audit.list", **{"from": at, "to": at})
        assert answer["error"]["message"] == "invalid range: 'from' is not earlier than 'to'"
        assert "from" in (await client.request("audit.list", **{"from": "yesterday"}))["error"]["message"]
        (row,) = (await client.get("usage.summary", groupBy="agent"))["rows"]
        assert (row["name"], row["turns"]) == ("assistant", 1) and row["inputTokens"] > 0


async def test_server_info_contains_no_secret(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, atlas_with_policy()) as client:
        assert (await client.get("limits.get"))["usedToday"] == {"assistant": 0, "other": 0}
        info = await client.get("system.info")
        assert info["features"]["methods"] == sorted(info["features"]["methods"])
        config = (await client.get("config.get"))["config"]
        assert config["port"] == 0 and config["token"] == "in the file `token`"
        assert (tmp_path / "token").read_text().strip() not in json.dumps(client.frames)


async def test_audit_log_is_listed_latest_first(tmp_path: Path) -> None:
    async def look(input: str) -> str:
        return input

    script = [step for n in range(12) for step in (calls("look", input=str(n)), says("ok"))]
    async with serve_and_connect(
        tmp_path, in_memory_atlas(Scripted(*script), [Tool("look", look)], store=MemoryStore())
    ) as client:
        for _ in range(12):
            await client.get("chat.send", sessionKey="main", message="Look")
            await client.until("chat.final")
        page = await client.get("audit.list", limit=5)
        assert [entry["seq"] for entry in page["entries"]] == [12, 11, 10, 9, 8]
        rest = await client.get("audit.list", cursor=page["nextCursor"])
        assert [entry["seq"] for entry in rest["entries"]] == [7, 6, 5, 4, 3, 2, 1]
        assert "nextCursor" not in rest
