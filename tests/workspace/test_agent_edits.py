"""Edits of AGENTS.md: one agent changes, and everything else stays byte for byte."""

import msgspec
import pytest

from atlas_agents.core.errors import ConfigError
from atlas_agents.workspace.workspace import AgentSpec, AgentsText

FILE = b"""# Agents

Text before the first agent, with <!-- a comment -->.

## archy

MODEL:   openai/gpt-5.6 ,  anthropic/claude-opus-4-6
Description: Reads.
Temperature: 0.3
hands off to: binky
Prompt: You are Archy.

```
## not an agent
```


## binky
Tools: none
Budget: agent dollars=5 per=day
"""


def replaced(id: str, **values: object) -> bytes:
    text = AgentsText(FILE)
    spec = text.spec(id)
    assert spec is not None
    return text.put(msgspec.structs.replace(spec, **values))


def test_agent_that_is_put_unchanged_changes_nothing() -> None:
    for content in (FILE, FILE.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + FILE, FILE.rstrip()):
        text = AgentsText(content)
        for spec in text.specs:
            assert text.put(spec) == content


def test_only_the_lines_that_differ_are_written() -> None:
    changed = replaced("archy", description="Writes.", effort="high", hands_off_to=())
    expected = FILE.replace(b"Description: Reads.", b"Description: Writes.")
    expected = expected.replace(b"hands off to: binky\n", b"Effort: high\n")
    assert changed == expected
    changed = replaced("archy", models=("openai/gpt-5.6",), tools=("bash", "remember"))
    expected = FILE.replace(b"MODEL:   openai/gpt-5.6 ,  anthropic/claude-opus-4-6", b"MODEL: openai/gpt-5.6")
    assert changed == expected.replace(b"hands off to: binky\n", b"hands off to: binky\nTools: bash, remember\n")


def test_prompt_is_replaced_added_and_removed() -> None:
    changed = replaced("archy", prompt="One.\n\nTwo.")
    start, end = FILE.index(b"Prompt:"), FILE.index(b"\n\n\n## binky")
    assert changed == FILE[:start] + b"Prompt:\nOne.\n\nTwo." + FILE[end:]
    assert replaced("archy", prompt="") == FILE[:start].rstrip(b"\n") + FILE[end:]
    assert replaced("binky", prompt="You are Binky.") == FILE + b"\nPrompt:\nYou are Binky.\n"


def test_new_agent_is_appended_and_removed_again() -> None:
    spec = AgentSpec("cleo", name="Cleo", models=("openai/gpt-5.6",), tools=(), prompt="Help.")
    written = b"## cleo\n\nName: Cleo\nModel: openai/gpt-5.6\nTools: none\nPrompt:\nHelp.\n"
    assert AgentsText(FILE).put(spec) == FILE + b"\n" + written
    assert AgentsText(FILE.rstrip()).put(spec) == FILE + b"\n" + written
    assert AgentsText(b"").put(spec) == written
    windows = AgentsText(FILE.replace(b"\n", b"\r\n")).put(spec)
    assert windows == (FILE + b"\n" + written).replace(b"\n", b"\r\n")
    section = AgentsText(FILE).section("binky")
    assert AgentsText(AgentsText(FILE).put(spec)).section("binky") == section
    assert AgentsText(b"# Agents\n").put(AgentSpec("plain")) == b"# Agents\n\n## plain\n\nTools: *\n"
    assert AgentsText(AgentsText(FILE).put(spec)).remove("cleo") == FILE
    assert AgentsText(FILE).remove("archy") == FILE[: FILE.index(b"## archy")] + FILE[FILE.index(b"## binky") :]
    removed = AgentsText(FILE).remove("binky")
    assert removed == FILE[: FILE.index(b"\n\n## binky")].replace(b"hands off to: binky\n", b"")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt": "Text.\n## another"}, "use ### for a heading"),
        ({"prompt": "Text.\n## another\nTools: none"}, "begins another agent"),
        ({"prompt": "```\nopen"}, "unclosed code block"),
        ({"description": "two\nlines"}, "expected a single line"),
        ({"name": "two\u2028lines"}, "expected a single line"),
        ({"tools": ("no such, name",)}, "Tools"),
        ({"models": ("gpt",)}, "invalid model reference"),
        ({"role": "a role"}, "invalid role"),
    ],
)
def test_value_that_the_file_cannot_hold_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replaced("archy", **values)


def test_invalid_id_is_refused() -> None:
    with pytest.raises(ConfigError, match="invalid agent id 'a b'"):
        AgentsText(FILE).put(AgentSpec("a b"))
