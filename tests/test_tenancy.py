"""Tenants: plan limits, users, and the two tools that report them."""

from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, ConfigError, Plan, QuotaExceeded, User
from atlas_agents.builtin_tools.team import get_subscription_info, get_team_members
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Environment, Registry, Reply, Scripted, VirtualClock, calls, says

TOOLS = [get_team_members, get_subscription_info]


def make_atlas(*replies: Reply, store: Any = None, clock: Any = None, **more: Any) -> Atlas:
    clock = clock or VirtualClock()
    agents = [
        Agent("lead", model=Scripted(*replies), tools=TOOLS, role="boss"),
        Agent("other", model=Scripted(says("x"))),
    ]
    registry = Registry(Environment({}, dotenv=None))
    return Atlas(agents, store=store or MemoryStore(clock=clock), clock=clock, registry=registry, **more)


async def set_plan(atlas: Atlas, **limits: int) -> None:
    await atlas.tenancy.put_plan(Plan("small", **limits))
    await atlas.tenancy.use_plan("small")


async def test_default_tenant_has_one_owner_and_no_limits() -> None:
    async with make_atlas(says("Hello.")) as atlas:
        await atlas.ask("hi")
        assert await atlas.tenancy.plan() == Plan("unlimited")
        assert await atlas.tenancy.users() == [User("owner", "owner")]


async def test_turn_over_the_token_quota_is_refused_before_the_model_call(tmp_path: Path) -> None:
    clock, model = VirtualClock(), Scripted(says("One."), says("Two."), says("Three."))
    store = SqliteStore(tmp_path / "atlas.db", clock=clock)
    await store.open()

    def opened() -> Atlas:
        return Atlas([Agent("a", model=model)], store=store, clock=clock)

    async with opened() as atlas:
        await set_plan(atlas, tokens=1000)
        await atlas.ask("first")
        await set_plan(atlas, tokens=2)
    async with opened() as again:  # the count survives a restart
        with pytest.raises(QuotaExceeded, match="is used up"):
            await again.ask("second")
        assert len(model.requests) == 1
        assert [run.status for run in await store.runs("default", "default")] == ["done"], "it was not taken in"
        await clock.advance(32 * 86400)
        with pytest.raises(QuotaExceeded, match="too little left"):
            await again.ask("too small")
        assert len(model.requests) == 1
        await set_plan(again, tokens=1000)
        assert (await again.ask("third")).text == "Two."
    await store.close()


async def test_running_turn_ends_when_the_token_quota_is_used_up() -> None:
    atlas = make_atlas(calls("get_subscription_info"), says("never"))
    async with atlas:
        await set_plan(atlas, tokens=1)
        with pytest.raises(QuotaExceeded):
            await atlas.ask("hi")
        runs = await atlas.store.runs("default", "default") if atlas.store else []
        assert [run.status for run in runs] == ["failed"]


async def test_owner_stays_a_user_with_a_seat_when_others_are_added() -> None:
    async with make_atlas() as atlas:
        await set_plan(atlas, seats=2)
        await atlas.tenancy.put_user(User("zoe"))
        assert [each.name for each in await atlas.tenancy.users()] == ["owner", "zoe"]
        assert (await atlas.tenancy.used()).seats == 2
        with pytest.raises(QuotaExceeded, match="no seat is left in the plan small, which has 2"):
            await atlas.tenancy.put_user(User("ann"))
        for edit in (atlas.tenancy.put_user(User("owner", status="suspended")), atlas.tenancy.remove_user("owner")):
            with pytest.raises(ConfigError, match="owner cannot be changed or removed"):
                await edit


async def test_agents_storage_and_seats_are_limited() -> None:
    clock = VirtualClock()
    async with make_atlas(*[says("Hello.")] * 3, clock=clock) as atlas:
        await set_plan(atlas, agents=1, seats=2, storage=100)
        with pytest.raises(QuotaExceeded, match="allows 1 agents"):
            await atlas.ask("hi", agent_id="other")
        await atlas.ask("hi")
        await clock.advance(61)
        with pytest.raises(QuotaExceeded, match="bytes"):
            await atlas.ask("hi")
        for name in ("ann", "ann"):
            await atlas.tenancy.put_user(User(name))
        with pytest.raises(QuotaExceeded, match="no seat is left"):
            await atlas.tenancy.put_user(User("eve"))
        with pytest.raises(ConfigError, match="unknown plan"):
            await atlas.tenancy.use_plan("large")


async def test_team_tools_return_plan_and_members() -> None:
    atlas = make_atlas(calls("get_team_members") + calls("get_subscription_info"), says("So it is."))
    async with atlas:
        await set_plan(atlas, tokens=10**6, agents=5, seats=3)
        await atlas.tenancy.put_user(User("ann", "admin"))
        await atlas.tenancy.put_user(User("bob", status="invited"))
        results = [event.result async for event in atlas.send("who?", user="ann") if event.type == "tool:result"]
        team, plan = sorted(results, key=lambda result: isinstance(result, dict))
    assert [(each["id"], each["role"], each["status"]) for each in team] == [
        ("lead", "boss", "active"),
        ("other", "", "active"),
        ("ann", "admin", "active"),
        ("bob", "member", "invited"),
        ("owner", "owner", "active"),
    ]
    assert plan["plan"] == "small" and plan["agents"] == {"used": 2, "limit": 5}
    assert plan["seats"] == {"used": 3, "limit": 3} and plan["storage_bytes"]["used"] > 0
    assert plan["tokens"]["limit"] == 10**6 and plan["tokens"]["used_this_month"] > 0


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ({}, ["lead", "other", "ann", "bob", "owner"]),
        ({"role_filter": "Admin"}, ["ann"]),
        ({"status_filter": "invited"}, ["bob"]),
        ({"role_filter": "boss", "status_filter": "active"}, ["lead"]),
        ({"role_filter": "none"}, []),
    ],
)
async def test_members_are_filtered_and_show_their_last_activity(filters: dict[str, str], ids: list[str]) -> None:
    atlas = make_atlas(calls("get_team_members", **filters), says("ok"))
    async with atlas:
        await atlas.tenancy.put_user(User("ann", "admin"))
        await atlas.tenancy.put_user(User("bob", status="invited"))
        stream = atlas.send("who?", user="ann")
        found: list[dict[str, Any]] = []
        async for event in stream:
            if event.type == "tool:result":
                found = event.result
        assert [each["id"] for each in found] == ids
        assert {each["id"] for each in found if each["last_active"]} == set(ids) & {"lead", "ann"}
