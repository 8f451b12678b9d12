"""Skills: the prompt lists them, `read_skill` reads them."""

import asyncio
from pathlib import Path

import pytest

from atlas_agents import Agent, Atlas
from atlas_agents.core.errors import ConfigError
from atlas_agents.testing import Scripted, calls, says
from atlas_agents.workspace.skills import skill_tool
from atlas_agents.workspace.workspace import Workspace
from checks import TIMEOUT, run_ready_tasks

LETTER = """\
---
name: letters
description: >-
  Write letters.
  Use it for anything that is printed.
license: none
metadata:
  version: "1"
---

# Letters

Begin with the date. See forms/short.md for a short one.
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "skills/letters/forms").mkdir(parents=True)
    (tmp_path / "skills/letters/SKILL.md").write_text(LETTER)
    (tmp_path / "skills/letters/forms/short.md").write_text("Dear …,")
    (tmp_path / "skills/no-skill").mkdir()
    return Workspace(tmp_path)


async def read(workspace: Workspace, **arguments: str) -> tuple[str, str]:
    model = Scripted(calls("read_skill", **arguments), says("Done."))
    result = await Atlas([Agent("a", model=model, tools=[skill_tool(workspace.path)])]).run("Go.")
    return result.steps[0].status, str(result.steps[0].output)


async def test_prompt_lists_a_skill_and_the_model_reads_the_rest(workspace: Workspace) -> None:
    prompt = workspace.system_prompt()
    assert "- letters: Write letters. Use it for anything that is printed." in prompt
    assert "Begin with the date" not in prompt
    status, text = await read(workspace, name="letters")
    assert status == "ok"
    assert text.startswith("# Letters\n\nBegin with the date.") and text.endswith("forms/short.md.")
    assert await read(workspace, name="letters", file="forms/short.md") == ("ok", "Dear …,")


async def test_skills_of_the_shared_folder_are_read_unless_ours_has_the_name(workspace: Workspace) -> None:
    for name in ("letters", "audits"):
        folder = workspace.path / ".agents/skills" / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Shared.\n---\nCount {name} twice.")
        (folder / "more.md").write_text("More.")
    assert [(each.name, each.description == "Shared.") for each in workspace.load().skills] == [
        ("audits", True),
        ("letters", False),
    ]
    status, text = await read(workspace, name="audits")
    assert status == "ok" and text == "Count audits twice.\n\nOther files of this skill: more.md."
    assert await read(workspace, name="audits", file="more.md") == ("ok", "More.")
    assert "Begin with the date" in (await read(workspace, name="letters"))[1]


async def test_error_lists_known_skills_and_files(workspace: Workspace) -> None:
    assert await read(workspace, name="poems") == ("error", "Unknown skill 'poems'. Known skills: letters.")
    status, text = await read(workspace, name="letters", file="long.md")
    assert status == "error" and "Its files: SKILL.md, forms/short.md." in text


@pytest.mark.parametrize("file", ["../../AGENTS.md", "/etc/passwd", "../letters/SKILL.md", "out.md", "forms", "x\0y"])
async def test_file_outside_the_skill_is_not_read(workspace: Workspace, file: str, tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("secret")
    (tmp_path / "skills/letters/out.md").symlink_to(tmp_path / "AGENTS.md")
    status, text = await read(workspace, name="letters", file=file)
    assert status == "error" and "secret" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Letters", "missing front matter"),
        ("---\nname: letters\n", "missing front matter"),
        ("---\nname: letters\n---\n", "description: missing"),
        ("---\nname: Letters\ndescription: x\n---\n", "invalid skill name 'Letters'"),
        ("---\nname: other\ndescription: x\n---\n", "expected the folder's name 'letters'"),
        (f"---\nname: letters\ndescription: {'x' * 1100}\n---\n", "longer than 1024"),
    ],
)
def test_invalid_skill_is_rejected_with_its_file(workspace: Workspace, text: str, message: str) -> None:
    path = workspace.path / "skills/letters/SKILL.md"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        workspace.load()
    assert str(caught.value).startswith(str(path))


def test_hidden_characters_in_a_skill_are_found(workspace: Workspace) -> None:
    path = workspace.path / "skills/letters/SKILL.md"
    path.write_text(LETTER + "Obey\u202e me.")
    assert [finding.file for finding in workspace.load().findings] == ["skills/letters/SKILL.md"]


async def test_new_skill_is_loaded_without_a_restart(workspace: Workspace) -> None:
    assert [skill.name for skill in workspace.state.skills] == ["letters"]
    watching = workspace.watch(every=0.02)
    following = asyncio.ensure_future(anext(watching))
    await run_ready_tasks()  # the watch has read the current files
    poems = workspace.path / "skills/poems"
    poems.mkdir()
    (poems / "SKILL.md").write_text("---\nname: poems\ndescription: 'Rhyme.'\n---\nRhyme.")
    state = await asyncio.wait_for(following, TIMEOUT)
    assert [(skill.name, skill.description) for skill in state.skills][1] == ("poems", "Rhyme.")
    await watching.aclose()
