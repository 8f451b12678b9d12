"""`AGENTS.md` taken apart: what may stand in it, and what each mistake is told."""

from pathlib import Path

import pytest

from atlas_agents import BadModelRef, ConfigError, Tool, tool
from atlas_agents.workspace import AgentSpec, Workspace, build_agent, parse_agents

FULL = """\
# Agents

Free words for people. Model: is no key here.

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
MAX ROUNDS: 4

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


def test_all_that_can_be_said_about_an_agent() -> None:
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
            max_rounds=4,
            prompt=prompt,
            where="AGENTS.md:9",
        ),
        AgentSpec("quiet", tools=(), where="AGENTS.md:30"),
        AgentSpec("plain", description="Nothing else.", where="AGENTS.md:34"),
    )


@pytest.mark.parametrize("text", ["", "# Agents\n", "Only prose.\n### Small heading\n", "```\n## a\n```\n"])
def test_a_file_without_sections_names_nobody(text: str) -> None:
    assert parse_agents(text) == ()


ID = "write ## and a name of 1 to 64 letters, digits, _ or - (### for a heading in a prompt)"
KEYS = (
    "There are Model, Description, Name, Role, Mode, Tools, Hands off to, Temperature, Max tokens, Max rounds, Recall, "
    "Prompt; free text goes after Prompt:"
)
LONG = "a" * 65


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("## ../../x\nModel: a/b", f"1: ##: '../../x' is no id for an agent; {ID}"),
        ("## ..\nModel: a/b", f"1: ##: '..' is no id for an agent; {ID}"),
        ("##\nModel: a/b", f"1: ##: '' is no id for an agent; {ID}"),
        ("\n## \nModel: a/b", f"2: ##: '' is no id for an agent; {ID}"),
        (f"## {LONG}\nModel: a/b", f"1: ##: '{LONG}' is no id for an agent; {ID}"),
        ("## two words\nModel: a/b", f"1: ##: 'two words' is no id for an agent; {ID}"),
        ("##assistant\nModel: a/b", f"1: ##: 'assistant' is no id for an agent; {ID}"),
        ("## a\u202eb\nModel: a/b", f"1: ##: 'a\\u202eb' is no id for an agent; {ID}"),
        ("## -rf\nModel: a/b", f"1: ##: '-rf' is no id for an agent; {ID}"),
        (
            "## a\nModel: a/b\n## b\nRole: x\n## A\nRole: y",
            "5: ## A: there is an agent 'a' already: AGENTS.md:1",
        ),
        (
            "## a\n\n## b\nRole: x",
            "1: ## a: this section says nothing about an agent; "
            "give it a line like Description: …, or write ### for a heading in a prompt",
        ),
        ("## a\nModell: a/b", f"2: Modell: there is no such key; did you mean Model? {KEYS}"),
        ("## a\n\nNote: hi", f"3: Note: there is no such key; {KEYS}"),
        ("## a\nYou are kind.", "2: 'You are kind.': write Key: value here, and free text after a line Prompt:"),
        ("## a\nModel a/b", "2: 'Model a/b': write Key: value here, and free text after a line Prompt:"),
        ("## a\n- Model: a/b", "2: '- Model: a/b': write Key: value here, and free text after a line Prompt:"),
        ("## a\nModel:a/b", "2: 'Model:a/b': write Key: value here, and free text after a line Prompt:"),
        ("## a\nModel:", "2: Model: it has no value; give it one or take the line out"),
        ("## a\nRole: x\nrole: y", "3: role: it stands in line 2 already; keep one of them"),
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
            "2: Model: invalid model reference 'a/b c/d': it contains a space; put a comma between two models",
        ),
        (
            "## a\nModel: a/b,",
            "2: Model: there is nothing between two commas, or after the last; take the comma out",
        ),
        ("## a\nModel: a/b, a/b", "2: Model: 'a/b' is named twice; keep one of them"),
        ("## a\nMode: dance", "2: Mode: there is no mode 'dance'; write tools or react or plan"),
        ("## a\nRole: user:ana", "2: Role: 'user:ana' is no role; write 1 to 64 letters, digits, _ or -"),
        ("## a\nTools: *, bash", "2: Tools: * is all tools; name no others beside it"),
        (
            "## a\nTools: my tool",
            "2: Tools: 'my tool' is no name of a tool; write names with commas, * for all, or none",
        ),
        ("## a\nTemperature: 2.5", "2: Temperature: '2.5' is no temperature; write a number from 0 to 2, like 0.3"),
        ("## a\nTemperature: nan", "2: Temperature: 'nan' is no temperature; write a number from 0 to 2, like 0.3"),
        ("## a\nTemperature: -1", "2: Temperature: '-1' is no temperature; write a number from 0 to 2, like 0.3"),
        ("## a\nMax tokens: 0", "2: Max tokens: '0' is no count; write a whole number of at least 1"),
        ("## a\nMax tokens: 1.5", "2: Max tokens: '1.5' is no count; write a whole number of at least 1"),
        ("## a\nMax rounds: ten", "2: Max rounds: 'ten' is no count; write a whole number of at least 1"),
        (
            f"## a\nMax rounds: {'9' * 5000}",
            f"2: Max rounds: '{'9' * 80}' is no count; write a whole number of at least 1",
        ),
        ("## a\nRecall: maybe", "2: Recall: 'maybe' is neither; write on or off"),
        ("## a\nMax rounds: \u0663", "2: Max rounds: '\u0663' is no count; write a whole number of at least 1"),
        (
            "## a\nPrompt: x\n```\n## b\nRole: c",
            "3: ```: this block of code has no end; close it with the same line",
        ),
    ],
)
def test_a_mistake_is_told_with_its_file_its_line_and_its_key(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_agents(text)
    assert str(caught.value) == f"AGENTS.md:{error}"
    assert isinstance(caught.value, BadModelRef) == ("invalid model reference" in error)


def test_a_mistake_names_the_whole_path_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("## a\nModel: gpt\n")
    with pytest.raises(ConfigError) as caught:
        Workspace(tmp_path).load()
    assert str(caught.value).startswith(f"{tmp_path}/AGENTS.md:2: Model: ")


# Agents of it


@tool
async def bash(command: str) -> str:
    """Run a command."""
    return command


async def search(text: str) -> str:
    return text


TOOLS = [bash, Tool("shop/search", search), Tool("clock", search)]


def test_an_agent_is_what_its_section_says() -> None:
    agent = build_agent(parse_agents(FULL)[0], TOOLS, prompt="The workspace.")
    assert (agent.id, agent.name, agent.description) == ("writer", "The Writer", "Writes: long and short.")
    assert agent.models == ("anthropic/claude-opus-4-6", "openai/org/gpt-5.2")
    assert agent.settings.retry.order == "given"
    assert (agent.role, agent.mode, agent.temperature) == ("publisher", "tools", 0.3)
    assert (agent.max_tokens, agent.max_rounds) == (2000, 4)
    assert [tool.name for tool in agent.tools] == ["bash", "shop/search"]
    assert agent.system_prompt.startswith("The workspace.\n\nWrite well.\n\n### Style\n")


def test_an_agent_has_all_tools_unless_its_section_names_some_or_none() -> None:
    _, quiet, plain = parse_agents(FULL)
    assert build_agent(quiet, TOOLS).tools == ()
    assert [tool.name for tool in build_agent(plain, TOOLS).tools] == ["bash", "shop/search", "clock"]
    assert (build_agent(plain).models, build_agent(plain).system_prompt) == ((), "")


def test_a_tool_that_there_is_not_is_named_with_those_there_are() -> None:
    spec = parse_agents("## a\nTools: bsh\n")[0]
    with pytest.raises(ConfigError) as caught:
        build_agent(spec, TOOLS)
    assert str(caught.value) == (
        "AGENTS.md:1: Tools: there is no tool 'bsh'; did you mean bash? There are: bash, clock, shop/search"
    )
