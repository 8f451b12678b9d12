"""Permissions: grants, the matrix, and the policy of the example team."""

from pathlib import Path

import pytest

from atlas_agents import Agent, Atlas, ConfigError, Policy, ToolResult, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools.policy import Actor

TEAM = Path(__file__).parent.parent / "examples" / "team" / "policy.toml"
PUBLISHERS = ["kelly", "fran", "dwight", "timmy", "terry", "cornwall", "link", "emma", "donna", "reynolds", "penny"]
COLUMNS = ["atlas", "binky", "tina", "sunday", "publishers", "archy", "daily-intel", "others"]
MATRIX = {
    "search_atlasux_knowledge": "YYYYYYYY",
    "search_my_memories": "YYYYYYYY",
    "get_subscription_info": "YYYNNNNN",
    "get_team_members": "YYNNNNNN",
    "send_telegram_message": "YYYYYYYY",
    "post_to_x": "YNNYNNNN",
    "search_x": "YNNYNYYN",
    "delegate_task": "YYNYNNNN",
}
EXCEPTIONS = {("post_to_x", "kelly"), ("search_x", "kelly"), ("delegate_task", "petra"), ("get_team_members", "petra")}


def _cells() -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for name, row in MATRIX.items():
        for column, cell in zip(COLUMNS, row, strict=True):
            people = {"publishers": PUBLISHERS, "others": ["petra", "another"]}.get(column, [column])
            for person in people:
                found.append((name, person, "yes" if cell == "Y" or (name, person) in EXCEPTIONS else "no"))
    return found


@pytest.mark.parametrize(("name", "person", "expected"), _cells())
def test_policy_of_the_example_team_matches_the_table(name: str, person: str, expected: str) -> None:
    assert Policy.load(TEAM).verdict(name, Actor(person)).cell == expected


def test_most_specific_entry_wins_and_of_several_groups_the_most_restrictive() -> None:
    policy = Policy(
        tools={"act": {"*": "yes", "staff": "no", "writer": "ask", "ana": "yes"}},
        groups={"staff": ["ana", "ben", "cid"]},
    )
    verdicts = [
        policy.verdict("act", Actor(who, role)).cell
        for who, role in (("ana", ""), ("ben", ""), ("cid", "writer"), ("eve", ""))
    ]
    assert verdicts == ["yes", "no", "no", "yes"]


def test_permission_must_be_granted_to_the_agent_its_role_or_the_user() -> None:
    policy = Policy(grants={"ana": ["file:read"], "operator": ["file:*"], "user:uma": ["mail:send"]})
    assert policy.verdict("t", Actor("ana"), needs=["file:read"]).cell == "yes"
    assert policy.verdict("t", Actor("ana"), needs=["file:read", "file:write"]).cell == "no"
    assert policy.verdict("t", Actor("bob", "operator"), needs=["file:write"]).cell == "yes"
    assert policy.verdict("t", Actor("bob", "", "uma"), needs=["mail:send"]).cell == "yes"
    denied = policy.verdict("t", Actor("bob", "clerk"), needs=["mail:send"])
    assert (denied.cell, denied.rule) == ("no", "policy: mail:send is not granted to bob (clerk)")


def test_tool_with_side_effects_is_denied_without_an_entry() -> None:
    assert Policy().verdict("act", Actor("ana")).cell == "no"
    assert Policy().verdict("look", Actor("ana"), acts=False).cell == "yes"


@tool
async def wipe(path: str) -> str:
    """Erase a folder."""
    raise AssertionError("must not run")


@tool(effect="pure")
async def look(path: str) -> str:
    """Look at a folder."""
    return f"{path}: empty"


async def test_model_sees_only_permitted_tools_and_calls_are_checked_again() -> None:
    model = Scripted(calls("wipe", path="/"), says("I may not."))
    async with in_memory_atlas(model, [wipe, look], policy=Policy()) as atlas:
        await atlas.ask("wipe it")
    assert [spec.name for spec in model.requests[0].tools] == ["look"]
    result = model.requests[1].messages[-1].parts[0]
    assert isinstance(result, ToolResult)
    assert (result.error, result.result) == (
        "not_permitted",
        "wipe is not permitted for assistant: policy: wipe has side effects, and no entry allows it.",
    )


async def test_replaced_policy_takes_effect_at_once() -> None:
    model = Scripted(calls("look", path="/"), says("ok"), calls("look", path="/"), says("no"))
    atlas = in_memory_atlas(model, [look], policy=Policy(tools={"look": {"*": "yes"}}))
    await atlas.ask("look")
    atlas.policy = Policy(tools={"look": {"*": "no"}})
    await atlas.ask("look")
    statuses = [
        part.status for request in (model.requests[1], model.requests[3]) for part in request.messages[-1].tool_results
    ]
    assert statuses == ["ok", "error"]
    assert model.requests[2].tools == ()


async def test_each_agent_has_the_verdicts_of_its_own_role() -> None:
    policy = Policy(tools={"look": {"reader": "yes"}})
    models = {role: Scripted(calls("look", path="/"), says("ok")) for role in ("reader", "clerk")}
    atlas = Atlas([Agent(role, role=role, model=model, tools=[look]) for role, model in models.items()], policy=policy)
    for role in models:
        await atlas.ask("look", agent_id=role, session=role)
    assert [models[role].requests[1].messages[-1].tool_results[0].status for role in models] == ["ok", "error"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[tools.act]\nmaybe = ['a']", "tools.act.maybe: expected yes, ask or no"),
        ("[tools.act]\nyes = 'a'", "tools.act.yes: expected yes, ask or no"),
        ("[tools.act]\nyes = ['a']\nno = ['a']", "tools.act lists 'a' twice"),
        ("[tool.act]\nyes = ['a']", "unknown section 'tool'"),
        ("[grants]\na = 'file:read'", "grants.a must be a list of names"),
        ("tools = 3", "tools must be a table"),
        ("[tools", "is not valid TOML"),
    ],
)
def test_error_of_a_policy_file_names_the_file_and_the_key(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"policy\.toml") as caught:
        Policy.load(path)
    assert complaint in str(caught.value)


def test_missing_policy_file_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"cannot read policy nowhere\.toml"):
        Policy.load("nowhere.toml")
