"""`file_write` and `file_edit`: atomic changes, previews, approvals and protected files."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from calling_tools import Person, call

from atlas_agents import Policy, ToolFailed, ToolResult
from atlas_agents.builtin_tools.files import file_tools
from atlas_agents.builtin_tools.files.root import Root
from atlas_agents.builtin_tools.files.write import check_edited, check_written, open_target
from atlas_agents.tools.pipeline import Happened, NotHappened

YES = Policy(tools={"file_write": {"*": "yes"}, "file_edit": {"*": "yes"}})
ASK = Policy(tools={"file_write": {"*": "ask"}, "file_edit": {"*": "ask"}})


async def write(root: Path, path: str, content: str, person: Person | None = None, policy: Policy = YES) -> ToolResult:
    return await call(file_tools(root), "file_write", person, policy, path=path, content=content)


async def edit(
    root: Path, path: str, old: str, new: str, person: Person | None = None, policy: Policy = YES, all: bool = False
) -> ToolResult:
    return await call(file_tools(root), "file_edit", person, policy, path=path, old=old, new=new, all=all)


def list_paths(root: Path) -> list[Path]:
    return sorted(root.rglob("*"))


# Writing


async def test_new_file_in_a_new_folder_is_written(tmp_path: Path) -> None:
    result = await write(tmp_path, "a/b/tea.txt", "green\nblack\n")
    assert (result.status, result.result) == ("ok", "wrote a/b/tea.txt: 2 lines, 12 bytes")
    assert (tmp_path / "a/b/tea.txt").read_text() == "green\nblack\n"
    assert [each.name for each in (tmp_path / "a/b").iterdir()] == ["tea.txt"]


async def test_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("old")
    os.chmod(script, 0o750)
    before = script.stat().st_ino
    assert (await write(tmp_path, "run.sh", "new")).result == "wrote run.sh: 1 line, 3 bytes, replacing 3 bytes"
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    assert script.stat().st_ino != before  # a program that has the old file open still reads it


@pytest.mark.parametrize(("folder", "file"), [(0o700, 0o600), (0o755, 0o644), (0o777, 0o664)])
async def test_new_file_has_the_access_of_its_folder_but_is_never_world_writable(
    folder: int, file: int, tmp_path: Path
) -> None:
    os.chmod(tmp_path, folder)
    await write(tmp_path, "f", "x")
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == file


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("", "bad_arguments"),
        (".", "bad_arguments"),
        ("d/", "bad_arguments"),
        ("d", "failed"),
        ("x" * 300, "bad_arguments"),
    ],
)
async def test_invalid_file_path_is_not_written(path: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    assert (await write(tmp_path, path, "x")).error == error
    assert sorted(os.listdir(tmp_path)) == ["d"]


async def test_large_content_is_rejected_without_leftovers(tmp_path: Path) -> None:
    result = await write(tmp_path, "f", "tea\n" * (10 * 1024 * 1024 // 4) + "x")  # long words are searched for tokens
    assert "at most 10.0 MB" in str(result.result) and os.listdir(tmp_path) == []


# Editing


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"one two three\n", "two", "2", b"one 2 three\n"),
        (b"one\r\ntwo\r\nthree\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\nthree\r\n"),
        (b"one\r\ntwo\r\n", "two", "2\n3", b"one\r\n2\r\n3\r\n"),
        (b"\xef\xbb\xbfone\n", "one", "1", b"\xef\xbb\xbf1\n"),
        (
            b"\xff\xfe" + "eins Käse\n".encode("utf-16-le"),
            "Käse",
            "Brot",
            b"\xff\xfe" + "eins Brot\n".encode("utf-16-le"),
        ),
        ("Käse\n".encode("latin-1"), "se", "sè", "Käsè\n".encode("latin-1")),
        (b"no end", "end", "END", b"no END"),
        (b"delete me, please", " me", "", b"delete, please"),
        (b"mixed\r\nends\nhere\n", "ends\nhere", "x\ny", b"mixed\r\nx\ny\n"),
    ],
)
async def test_edit_keeps_line_endings_and_encoding(
    before: bytes, old: str, new: str, after: bytes, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(before)
    assert (await edit(tmp_path, "f", old, new)).status == "ok"
    assert (tmp_path / "f").read_bytes() == after


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("zwei", "2", "the old text is not in f; it must match the file exactly, without line numbers"),
        ("two   three", "2", "Line 2 differs only in whitespace"),
        ("one", "1", "occurs 2 times in f, in lines 1, 3; include more of the surrounding text, or set all to true"),
        ("", "1", "old must not be empty"),
        ("one", "one", "new must differ from it"),
    ],
)
async def test_impossible_edit_is_explained(old: str, new: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo three\none\n")
    result = await edit(tmp_path, "f", old, new)
    assert words in str(result.result)
    assert (tmp_path / "f").read_text() == "one\ntwo three\none\n"


async def test_all_occurrences_are_changed_on_request(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\none\n")
    assert (await edit(tmp_path, "f", "one", "1", all=True)).result == "changed 2 places in f, line 1 and later"
    assert (tmp_path / "f").read_text() == "1\ntwo\n1\n"


async def test_character_missing_in_the_encoding_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes("Käse".encode("latin-1"))
    assert "which cannot represent '→'" in str((await edit(tmp_path, "f", "se", "→")).result)
    assert (tmp_path / "f").read_bytes() == "Käse".encode("latin-1")


async def test_missing_file_cannot_be_edited(tmp_path: Path) -> None:
    assert (await edit(tmp_path, "f", "a", "b")).result == "not found: f; use file_write to create it"


# Previews and approvals


async def test_preview_of_an_edit_is_a_diff(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"line {number}\n" for number in range(1, 101)))
    person = Person()
    assert (await edit(tmp_path, "f", "line 50\n", "line fifty\n", policy=ASK, person=person)).status == "ok"
    assert person.questions[0].preview.split("\n") == [
        *("--- f", "+++ f", "@@ -47,7 +47,7 @@", " line 47", " line 48", " line 49"),
        *("-line 50", "+line fifty", " line 51", " line 52", " line 53"),
    ]


async def test_preview_of_a_new_file_is_its_content(tmp_path: Path) -> None:
    person = Person(False)
    assert (await write(tmp_path, "f", "a\nb", policy=ASK, person=person)).error == "declined"
    assert person.questions[0].preview == (
        "f: new file, 3 bytes\n--- f\n+++ f\n@@ -0,0 +1,2 @@\n+a\n+b (no newline at end of file)"
    )
    assert os.listdir(tmp_path) == []


async def test_impossible_edit_does_not_ask_for_approval(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one")
    person = Person()
    assert (await edit(tmp_path, "f", "two", "2", policy=ASK, person=person)).error == "failed"
    assert person.questions == []


@pytest.mark.parametrize("name", ["file_write", "file_edit"])
async def test_file_changed_after_approval_is_not_written(name: str, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("one two")
    person = Person(before=lambda: file.write_text("one two, and other work"))
    arguments = {"content": "1"} if name == "file_write" else {"old": "one", "new": "1"}
    result = await call(file_tools(tmp_path), name, person, ASK, path="f", **arguments)
    assert result.error == "declined"
    assert file.read_text() == "one two, and other work"


async def test_preview_does_not_show_the_content_of_a_secret_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=hunter2\n")
    person = Person()
    assert (await write(tmp_path, ".env", "KEY=new\n", person=person)).status == "ok"
    assert "hunter2" not in person.questions[0].preview and "+KEY=new" in person.questions[0].preview
    assert (await edit(tmp_path, ".env", "new", "x", person=person)).error == "not_permitted"


async def test_very_large_file_can_be_replaced_with_approval(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(1024**3)
    person = Person()
    result = await write(tmp_path, "log", "", policy=ASK, person=person)
    assert result.result == "wrote log: 0 lines, 0 bytes, replacing 1.0 GB"
    assert person.questions[0].preview == "log: current content not shown"


# Files that always need approval (S43)

PROTECTED = [
    *("AGENTS.md", "SOUL.md", "TOOLS.md", "atlas.toml", "policy.toml", ".env", ".env.local", "agents.MD", "AGENTS.md."),
    *("sub/AGENTS.md", ".git/hooks/pre-commit", ".git/config", ".GIT/config", "sub/.git", ".venv/bin/python", "venv/x"),
    *(
        "skills/x/SKILL.md",
        ".agents/notes.md",
        "x/SKILL.md",
        ".vscode/tasks.json",
        ".github/workflows/x.yml",
        ".husky/pre-commit",
    ),
    *(".bashrc", ".gitattributes", "sitecustomize.py", "x.pth", "AGENTS\u200c.md", "\uff21GENTS.md", ".ssh/config"),
    *("id_rsa", "x.pem", "./AGENTS.md", "sub/../AGENTS.md", "env311/lib/x.py", "bare.repo/hooks/update", "mine.rules"),
]


@pytest.mark.parametrize("path", PROTECTED)
@pytest.mark.parametrize("exists", [False, True])
async def test_protected_file_needs_approval_even_if_the_policy_allows_it(
    path: str, exists: bool, tmp_path: Path
) -> None:
    for folder in ("sub", "env311/lib", "bare.repo/objects", "bare.repo/refs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "env311/pyvenv.cfg").touch()
    (tmp_path / "bare.repo/HEAD").touch()
    if exists:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("as it was")
    before = list_paths(tmp_path)
    tools = file_tools(tmp_path, guarded=[tmp_path / "mine.rules"])
    person = Person(False)
    result = await call(tools, "file_write", person, YES, path=path, content="mine now")
    assert (result.error, len(person.questions)) == ("declined", 1)
    assert " is protected: such files can contain agent instructions" in person.questions[0].preview
    assert list_paths(tmp_path) == before


@pytest.mark.parametrize("path", ["notes.md", "my-AGENTS.md", "agents/notes.md", "environment.txt", "src/skill.py"])
async def test_other_files_need_no_approval(path: str, tmp_path: Path) -> None:
    assert (await write(tmp_path, path, "x")).status == "ok"


async def test_link_to_a_protected_file_needs_approval_too(tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").write_text("soul")
    (tmp_path / "real").mkdir()
    (tmp_path / ".git").mkdir()
    os.link(tmp_path / "SOUL.md", tmp_path / "hard.txt")
    (tmp_path / "soft.txt").symlink_to("SOUL.md")
    (tmp_path / "folder").symlink_to(".git")
    person = Person(False)
    assert (await write(tmp_path, "hard.txt", "x", person=person)).error == "declined"
    assert (await write(tmp_path, "folder/config", "x", person=person)).error == "declined"
    assert (await write(tmp_path, "soft.txt", "x", person=person)).error == "not_permitted"  # links are not followed
    assert len(person.questions) == 2 and (tmp_path / "SOUL.md").read_text() == "soul"


async def test_folder_that_becomes_protected_after_the_check_is_not_written(tmp_path: Path) -> None:
    """The check finds that no approval is needed; then the folder is replaced by a link."""
    (tmp_path / "plain").mkdir()
    (tmp_path / ".git").mkdir()
    writing = file_tools(tmp_path)[3]
    confirm = writing.confirm
    assert callable(confirm)

    def swapping(arguments: dict[str, Any]) -> bool:
        found = bool(confirm(arguments))
        (tmp_path / "plain").rmdir()
        (tmp_path / "plain").symlink_to(".git")
        return found

    writing.confirm = swapping
    result = await call([writing], "file_write", None, YES, path="plain/config", content="x")
    assert (result.error, os.listdir(tmp_path / ".git")) == ("not_permitted", [])


async def test_private_path_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    person = Person()
    tools = file_tools(tmp_path, private=[tmp_path / "home"])
    result = await call(tools, "file_write", person, YES, path="home/token", content="x")
    assert (result.error, person.questions) == ("not_permitted", [])


# Reconciliation after a crash


def test_interrupted_write_is_recognised_by_the_content(tmp_path: Path) -> None:
    root, arguments = Root(str(tmp_path)), {"path": "f", "content": "new"}
    assert check_written(root, arguments) == NotHappened()
    (tmp_path / "f").write_text("new")
    assert isinstance(check_written(root, arguments), Happened)


@pytest.mark.parametrize(
    ("content", "finding"),
    [("one two", NotHappened), ("one 2", Happened), ("neither", type(None)), ("two and 2", type(None))],
)
def test_interrupted_edit_is_recognised_by_the_content(content: str, finding: type, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(content)
    assert isinstance(check_edited(Root(str(tmp_path)), {"path": "f", "old": "two", "new": "2"}), finding)


@pytest.mark.parametrize("exists", [False, True])
def test_concurrently_changed_file_is_not_replaced(exists: bool, tmp_path: Path) -> None:
    if exists:
        (tmp_path / "f").write_text("old")
    with open_target(Root(str(tmp_path)), "f") as target:
        (tmp_path / "f").write_text("from another program")
        with pytest.raises(ToolFailed, match="was changed by another program"):
            target.write(b"mine")
    assert (tmp_path / "f").read_text() == "from another program" and os.listdir(tmp_path) == ["f"]
