"""Models for agents without an API key: another model of the agent, `ATLAS_MODEL` or the local model, with a notice."""

from pathlib import Path

import pytest

from atlas_agents import BadModelRef, tool
from atlas_agents.testing import Environment, Registry
from atlas_agents.workspace import LOCAL_MODEL, AgentSpec, Workspace, build_agents, resolve_models

CLAUDE, GPT = "anthropic/claude-opus-4-6", "openai/gpt-5.2"
NO_CLAUDE, NO_GPT = "no Anthropic key", "no OpenAI key"
TINY = "SmolLM2 135M"


@tool(effect="pure")
async def look() -> str:
    """Look at the sky."""
    return "blue"


@tool
async def post(text: str) -> str:
    """Post a text."""
    return text


def registry(*keys: str, model: str = "") -> Registry:
    return Registry(Environment({f"{key}_API_KEY": "k" for key in keys} | {"ATLAS_MODEL": model}, dotenv=None))


@pytest.mark.parametrize(
    ("named", "keys", "model", "available", "reasons"),
    [
        ([CLAUDE], ["ANTHROPIC"], "", [CLAUDE], None),
        ([CLAUDE], ["ANTHROPIC", "OPENAI"], GPT, [CLAUDE], None),
        ([CLAUDE, GPT], ["ANTHROPIC", "OPENAI"], "", [CLAUDE, GPT], None),
        ([CLAUDE, GPT], ["OPENAI"], "", [GPT], NO_CLAUDE),
        ([CLAUDE], ["OPENAI"], GPT, [GPT], NO_CLAUDE),
        ([CLAUDE], [], "", [LOCAL_MODEL], NO_CLAUDE),
        ([CLAUDE], [], GPT, [LOCAL_MODEL], f"{NO_CLAUDE}, {NO_GPT}"),
        ([CLAUDE, GPT], [], "", [LOCAL_MODEL], f"{NO_CLAUDE}, {NO_GPT}"),
        ([], ["OPENAI"], f" {GPT} ", [GPT], None),
        ([], [], "", [LOCAL_MODEL], "no model is chosen"),
        ([], [], GPT, [LOCAL_MODEL], NO_GPT),
    ],
)
def test_model_without_a_key_is_replaced(
    named: list[str], keys: list[str], model: str, available: list[str], reasons: str | None
) -> None:
    models, notice = resolve_models(AgentSpec("a", models=tuple(named)), registry(*keys, model=model))
    assert models == tuple(available)
    used = TINY if available == [LOCAL_MODEL] else available[0]
    assert notice == (f"Using {used}: {reasons}." if reasons else None)


def test_default_argument_overrides_the_environment() -> None:
    found = registry("OPENAI", "ANTHROPIC", model=GPT)
    assert resolve_models(AgentSpec("a"), found, CLAUDE) == ((CLAUDE,), None)


def test_agent_can_name_the_local_model() -> None:
    assert resolve_models(AgentSpec("a", models=("local/x",)), registry()) == (("local/x",), None)


def test_unknown_provider_is_an_error() -> None:
    spec = AgentSpec("a", models=("acme/x",), where="AGENTS.md:3")
    with pytest.raises(BadModelRef, match=r"^AGENTS\.md:3: Model: unknown provider 'acme'; known providers: anthropic"):
        resolve_models(spec, registry("OPENAI"))
    with pytest.raises(BadModelRef, match=r"^ATLAS_MODEL: invalid model reference 'gpt'"):
        resolve_models(AgentSpec("a"), registry(), "gpt")
    with pytest.raises(BadModelRef, match=r"^ATLAS_MODEL: unknown provider 'acme'"):
        resolve_models(AgentSpec("a"), registry(model="acme/x"))


def test_tool_search_of_the_settings_is_for_agents_without_their_own(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("## a\nTool search: 30\n\n## b\nRole: helper\n")
    workspace = Workspace(tmp_path)
    workspace.prepare()
    built = build_agents(workspace.state, [], registry(), tool_search=50)
    assert [agent.settings.tool_search for agent in built.agents] == [30, 50]


def test_default_workspace_needs_no_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    workspace = Workspace(tmp_path)
    workspace.prepare()
    caplog.set_level("INFO", "atlas_agents")
    built = build_agents(workspace.state, [], registry())
    (agent,) = built.agents
    assert (agent.id, agent.models) == ("assistant", (LOCAL_MODEL,))
    assert agent.system_prompt == ""  # the default files are too long for this model
    assert built.notices == {"assistant": f"Using {TINY}: {NO_CLAUDE}."}
    assert built.notices["assistant"] in caplog.text


@pytest.mark.parametrize(
    ("keys", "model", "used"),
    [
        (["ANTHROPIC"], "demo", "demo"),
        (["ANTHROPIC", "OPENAI"], GPT, GPT),
        (["ANTHROPIC"], GPT, LOCAL_MODEL),  # never a vendor that the user did not choose
        (["ANTHROPIC"], "", CLAUDE),
    ],
)
def test_explicit_model_wins_over_the_generated_agents_file(
    tmp_path: Path, keys: list[str], model: str, used: str
) -> None:
    workspace = Workspace(tmp_path)
    workspace.prepare()
    assert build_agents(workspace.state, [], registry(*keys, model=model)).refs == (used,)


def test_address_without_a_key_does_not_choose_the_model_of_the_generated_file(tmp_path: Path) -> None:
    """A proxy for another program is often set in a shell; the set-up card stays until a person chooses a model."""
    workspace = Workspace(tmp_path)
    workspace.prepare()
    address = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
    built = build_agents(workspace.state, [], Registry(Environment(address, dotenv=None)))
    assert (built.refs, built.notices) == ((LOCAL_MODEL,), {"assistant": f"Using {TINY}: {NO_CLAUDE}."})
    with_key = Registry(Environment(address | {"ANTHROPIC_API_KEY": "k"}, dotenv=None))
    assert build_agents(workspace.state, [], with_key).refs == (CLAUDE,)
    chosen = Registry(Environment(address | {"ATLAS_MODEL": CLAUDE}, dotenv=None))
    assert build_agents(workspace.state, [], chosen).refs == (CLAUDE,)  # a server of one's own may need no key


def test_edited_agents_file_wins_over_the_explicit_model(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.prepare()
    path = tmp_path / "AGENTS.md"
    path.write_text(path.read_text() + "\nTools: none\n")
    assert build_agents(workspace.state, [], registry("ANTHROPIC", model="demo")).refs == (CLAUDE,)


def test_agents_without_a_key_are_reported_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sections = [f"## agent-{number}\nModel: {CLAUDE}\n" for number in range(36)]
    (tmp_path / "AGENTS.md").write_text("\n".join(sections))
    caplog.set_level("INFO", "atlas_agents")
    built = build_agents(Workspace(tmp_path).state, [], registry())
    assert set(built.notices.values()) == {f"Using {TINY}: no Anthropic key."}
    (record,) = caplog.records
    assert "agents=agent-0, agent-1, agent-2 and 33 more" in record.getMessage()


def test_tiny_model_gets_only_the_tools_that_an_agent_names(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text(f"## a\nModel: {CLAUDE}\n\n## b\nModel: {CLAUDE}\nTools: look\n")
    state = Workspace(tmp_path).state
    assert [len(agent.tools) for agent in build_agents(state, [look, post], registry()).agents] == [0, 1]
    with_key = build_agents(state, [look, post], registry("ANTHROPIC"), only_named={"post"})
    assert [[tool.name for tool in agent.tools] for agent in with_key.agents] == [["look"], ["look"]]
