"""Parser of `AGENTS.md`: all keys, and the error for each mistake."""

from pathlib import Path

import pytest

from atlas_agents import BadModelRef, ConfigError, Tool, tool
from atlas_agents.workspace import AgentSpec, Workspace, build_agent, parse_agents
from atlas_agents.workspace.workspace import AgentsText

FULL = """\
# Agents

Text for people. Model: not a key here.

```
## an-example
```

## writer
Name: The Writer
Model: anthropic/claude-opus-4-6, openai/org/gpt-5.2
description:  Writes: long and short.
Role: publisher
Mode: tools
Tools: bash, shop/search
Temperature: 0.3
Max tokens: 2000
Top p: 0.9
Effort: High
Seed: 7
Service tier: flex
Parallel calls: off
Cache: 1h
Strict tools: on
MAX ROUNDS: 4
Budget: tokens=50000 seconds=60, agent dollars=2.50 per=day

Prompt: Write well.

### Style
Key: this is prose by now.

~~~md
## not-an-agent
~~~
The end.

## quiet\r
Tools: none\r
Prompt:\r

## plain
Description: Nothing else.
"""


def test_section_sets_all_fields_of_an_agent() -> None:
    prompt = "Write well.\n\n### Style\nKey: this is prose by now.\n\n~~~md\n## not-an-agent\n~~~\nThe end."
    assert parse_agents(FULL) == (
        AgentSpec(
            "writer",
            name="The Writer",
            description="Writes: long and short.",
            models=("anthropic/claude-opus-4-6", "openai/org/gpt-5.2"),
            role="publisher",
            mode="tools",
            tools=("bash", "shop/search"),
            temperature=0.3,
            max_tokens=2000,
            top_p=0.9,
            effort="high",
            seed=7,
            service_tier="flex",
            parallel_calls=False,
            cache="1h",
            strict_tools=True,
            max_rounds=4,
            budget=("tokens=50000 seconds=60", "agent dollars=2.50 per=day"),
            prompt=prompt,
            where="AGENTS.md:9",
        ),
        AgentSpec("quiet", tools=(), where="AGENTS.md:38"),
        AgentSpec("plain", description="Nothing else.", where="AGENTS.md:42"),
    )


ORDINARY = """\
# Contributing

Run `make test` before you commit.

## Setup commands

- Install: `make install`
- Model: see docs/model.md

## Style

Note: spaces, no tabs.
~~~
## a
Model: a/b
"""


def test_ordinary_file_for_coding_agents_is_prompt_text_of_the_default_agent(tmp_path: Path) -> None:
    """`AGENTS.md` of other tools is free text. It stopped the gateway because its headings are not names of agents."""
    (tmp_path / "AGENTS.md").write_text(ORDINARY)
    state = Workspace(tmp_path).load()
    assert [agent.id for agent in state.agents] == ["assistant"] and ORDINARY in state.prompt
    closed = ORDINARY + "~~~\n"
    written = AgentsText(closed.encode()).put(AgentSpec("writer", description="Writes.")).decode()
    assert written == closed + "\n# Agents\n\n## writer\n\nDescription: Writes.\n"
    assert [spec.id for spec in parse_agents(written)] == ["writer"]
    assert parse_agents(AgentsText(written.encode()).remove("writer").decode()) == ()
    again = AgentsText(written.encode()).put(AgentSpec("editor", description="Edits.")).decode()
    assert [spec.id for spec in parse_agents(again)] == ["writer", "editor"] and again.count("# Agents\n") == 1


@pytest.mark.parametrize("text", ["", "# Agents\n", "Only prose.\n### Small heading\n", "```\n## a\n```\n"])
def test_file_without_sections_defines_no_agent(text: str) -> None:
    assert parse_agents(text) == ()


ID = "expected ## and 1 to 64 letters, digits, _ or - (### for a heading in a prompt)"
KEYS = (
    "Known keys: Model, Description, Name, Role, Mode, Tools, Hands off to, Temperature, Max tokens, Top p, "
    "Effort, Seed, Service tier, Parallel calls, Cache, Strict tools, Max rounds, Output retries, Tool search, "
    "Budget, Recall, Prompt; free text goes after Prompt:"
)
LONG = "a" * 65


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("## ../../x\nModel: a/b", f"1: ##: invalid agent id '../../x': {ID}"),
        ("## ..\nModel: a/b", f"1: ##: invalid agent id '..': {ID}"),
        ("##\nModel: a/b", f"1: ##: invalid agent id '': {ID}"),
        ("\n## \nModel: a/b", f"2: ##: invalid agent id '': {ID}"),
        (f"## {LONG}\nModel: a/b", f"1: ##: invalid agent id '{LONG}': {ID}"),
        ("## two words\nModel: a/b", f"1: ##: invalid agent id 'two words': {ID}"),
        ("##assistant\nModel: a/b", f"1: ##: invalid agent id 'assistant': {ID}"),
        ("## a\u202eb\nModel: a/b", f"1: ##: invalid agent id 'a\\u202eb': {ID}"),
        ("## -rf\nModel: a/b", f"1: ##: invalid agent id '-rf': {ID}"),
        (
            "## a\nModel: a/b\n## b\nRole: x\n## A\nRole: y",
            "5: ## A: duplicate of 'a' at AGENTS.md:1",
        ),
        (
            "## a\n\n## b\nRole: x",
            "1: ## a: the section sets no key; add a line such as Description: …, or use ### for a heading in a prompt",
        ),
        ("## a\nModell: a/b", f"2: Modell: unknown key; did you mean Model? {KEYS}"),
        ("## a\n\nNote: hi\n## b\nRole: x", f"3: Note: unknown key; {KEYS}"),
        (
            "## a\nYou are kind.\n## b\nRole: x",
            "2: 'You are kind.': expected 'Key: value'; free text goes after a line 'Prompt:'",
        ),
        (
            "## a\nModel a/b\n## b\nRole: x",
            "2: 'Model a/b': expected 'Key: value'; free text goes after a line 'Prompt:'",
        ),
        (
            "## a\n- Model: a/b\n## b\nRole: x",
            "2: '- Model: a/b': expected 'Key: value'; free text goes after a line 'Prompt:'",
        ),
        (
            "## a\nModel:a/b\n## b\nRole: x",
            "2: 'Model:a/b': expected 'Key: value'; free text goes after a line 'Prompt:'",
        ),
        ("## a\nModel:", "2: Model: missing value; set one or remove the line"),
        ("## a\nRole: x\nrole: y", "3: role: already set in line 2; remove one of them"),
        (
            "## a\nModel: gpt",
            "2: Model: invalid model reference 'gpt': expected 'provider/model', "
            "for example 'anthropic/claude-opus-4-6'",
        ),
        (
            "## a\nModel: a/b, /c",
            "2: Model: invalid model reference '/c': expected 'provider/model', "
            "for example 'anthropic/claude-opus-4-6'",
        ),
        (
            "## a\nModel: a/b c/d",
            "2: Model: invalid model reference 'a/b c/d': it contains a space; separate two models with a comma",
        ),
        (
            "## a\nModel: a/b,",
            "2: Model: empty value in 'a/b,'; remove the extra comma",
        ),
        ("## a\nModel: a/b, a/b", "2: Model: 'a/b' is listed twice; remove one of them"),
        ("## a\nMode: dance", "2: Mode: unknown mode 'dance': expected tools or react or plan"),
        ("## a\nRole: user:ana", "2: Role: invalid role 'user:ana': expected 1 to 64 letters, digits, _ or -"),
        ("## a\nTools: *, bash", "2: Tools: * selects all tools; remove the other names"),
        (
            "## a\nTools: my tool",
            "2: Tools: invalid tool name 'my tool': expected names with commas, * for all, or none",
        ),
        (
            "## a\nTemperature: 2.5",
            "2: Temperature: invalid temperature '2.5': expected a number from 0 to 2, such as 0.3",
        ),
        (
            "## a\nTemperature: nan",
            "2: Temperature: invalid temperature 'nan': expected a number from 0 to 2, such as 0.3",
        ),
        (
            "## a\nTemperature: -1",
            "2: Temperature: invalid temperature '-1': expected a number from 0 to 2, such as 0.3",
        ),
        ("## a\nMax tokens: 0", "2: Max tokens: invalid number '0': expected an integer of at least 1"),
        ("## a\nMax tokens: 1.5", "2: Max tokens: invalid number '1.5': expected an integer of at least 1"),
        ("## a\nMax rounds: ten", "2: Max rounds: invalid number 'ten': expected an integer of at least 1"),
        (
            f"## a\nMax rounds: {'9' * 5000}",
            f"2: Max rounds: invalid number '{'9' * 80}': expected an integer of at least 1",
        ),
        (
            "## a\nEffort: huge",
            "2: Effort: invalid effort 'huge': expected one of none, minimal, low, medium, high, xhigh, max, "
            "or a number of tokens",
        ),
        (
            "## a\nTop p: 0",
            "2: Top p: invalid number '0': expected one above 0 and at most 1, such as 0.9",
        ),
        ("## a\nSeed: x", "2: Seed: invalid seed 'x': expected an integer"),
        ("## a\nCache: 2h", "2: Cache: invalid cache '2h': expected one of off, 5m, 1h"),
        ("## a\nParallel calls: 2", "2: Parallel calls: expected on or off, got '2'"),
        (
            "## a\nService tier: a b",
            "2: Service tier: invalid service tier 'a b': expected a name of the vendor, such as flex",
        ),
        (
            "\n## a\nEffort: 5000\nMax tokens: 4000",
            "2: ## a: effort must be less than max_tokens, which includes the reasoning, got effort=5000 and "
            "max_tokens=4000",
        ),
        ("## a\nBudget: tokens=0", "2: Budget: invalid budget tokens=0: must be more than 0"),
        (
            "## a\nBudget: tenant tokens=5",
            "2: Budget: a budget of scope 'tenant' cannot be set here: expected turn or session or agent",
        ),
        ("## a\nRecall: maybe", "2: Recall: expected on or off, got 'maybe'"),
        ("## a\nMax rounds: \u0663", "2: Max rounds: invalid number '\u0663': expected an integer of at least 1"),
        (
            "## a\nPrompt: x\n```\n## b\nRole: c",
            "3: ```: unclosed code block; close it with the same fence",
        ),
    ],
)
def test_error_names_file_line_and_key(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_agents(text)
    assert str(caught.value) == f"AGENTS.md:{error}"
    assert isinstance(caught.value, BadModelRef) == ("invalid model reference" in error)


def test_error_names_the_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("## a\nModel: gpt\n")
    with pytest.raises(ConfigError) as caught:
        Workspace(tmp_path).load()
    assert str(caught.value).startswith(f"{tmp_path}/AGENTS.md:2: Model: ")


# Build agents


@tool
async def bash(command: str) -> str:
    """Run a command."""
    return command


async def search(text: str) -> str:
    return text


TOOLS = [bash, Tool("shop/search", search), Tool("clock", search)]


def test_number_of_output_corrections_may_be_zero() -> None:
    (spec,) = parse_agents("## a\nOutput retries: 0\n")
    assert build_agent(spec, models=("http/any",)).settings.output_retries == 0
    with pytest.raises(ConfigError, match="2: Output retries: invalid number '-1': expected an integer of at least 0"):
        parse_agents("## a\nOutput retries: -1\n")


def test_tool_search_has_at_least_one_tool() -> None:
    (spec,) = parse_agents("## a\nTool search: 30\n")
    assert build_agent(spec, models=("http/any",)).settings.tool_search == 30
    with pytest.raises(ConfigError, match="2: Tool search: invalid number '0': expected an integer of at least 1"):
        parse_agents("## a\nTool search: 0\n")


def test_agent_is_built_from_its_section() -> None:
    agent = build_agent(parse_agents(FULL)[0], TOOLS, prompt="The workspace.")
    assert (agent.id, agent.name, agent.description) == ("writer", "The Writer", "Writes: long and short.")
    assert agent.models == ("anthropic/claude-opus-4-6", "openai/org/gpt-5.2")
    assert agent.settings.retry.order == "given"
    assert (agent.role, agent.mode, agent.temperature) == ("publisher", "tools", 0.3)
    assert (agent.max_tokens, agent.max_rounds) == (2000, 4)
    assert [tool.name for tool in agent.tools] == ["bash", "shop/search"]
    assert str(agent.system_prompt).startswith("The workspace.\n\nWrite well.\n\n### Style\n")


def test_agent_has_all_tools_by_default() -> None:
    _, quiet, plain = parse_agents(FULL)
    assert build_agent(quiet, TOOLS).tools == ()
    assert [tool.name for tool in build_agent(plain, TOOLS).tools] == ["bash", "shop/search", "clock"]
    assert (build_agent(plain).models, build_agent(plain).system_prompt) == ((), "")


def test_error_for_unknown_tool_lists_known_tools() -> None:
    spec = parse_agents("## a\nTools: bsh\n")[0]
    with pytest.raises(ConfigError) as caught:
        build_agent(spec, TOOLS)
    assert str(caught.value) == (
        "AGENTS.md:1: Tools: unknown tool 'bsh'; did you mean bash? Known tools: bash, clock, shop/search"
    )
