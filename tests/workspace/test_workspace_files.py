"""A workspace on the disk: its prompt, its default files, and what is refused in the place of a file."""

import hashlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from atlas_agents import ConfigError
from atlas_agents.core.paths import is_protected
from atlas_agents.workspace import AgentSpec, Workspace
from checks import as_nobody

DEFAULTS = {
    "AGENTS.md": "c57e998c2809387f",
    "SOUL.md": "5beb77961c3c6aed",
    "TOOLS.md": "fece2083c3acdae3",
}


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in sorted(folder.iterdir())}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# The prompt


@pytest.mark.parametrize(
    ("files", "prompt"),
    [
        ({"AGENTS.md": "# A\n", "SOUL.md": "S\n", "TOOLS.md": "T\n"}, "# A\n\n\n---\n\nS\n\n\n---\n\nT\n"),
        ({"TOOLS.md": "T", "SOUL.md": "S"}, "S\n\n---\n\nT"),
        ({"TOOLS.md": "T\r\n"}, "T\r\n"),
        ({"SOUL.md": "", "TOOLS.md": "T"}, "\n\n---\n\nT"),
        ({}, ""),
        ({"OTHER.md": "no"}, ""),
    ],
)
def test_the_prompt_is_the_files_that_exist_joined_by_a_line(
    files: dict[str, str], prompt: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode())
    assert Workspace(tmp_path).system_prompt() == prompt


def test_a_byte_order_mark_is_no_part_of_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes(b"\xef\xbb\xbf## a\nDescription: d\n")
    state = Workspace(tmp_path).load()
    assert (state.prompt, state.findings, state.agents[0].id) == ("## a\nDescription: d\n", (), "a")


def test_a_workspace_that_names_nobody_has_an_assistant(tmp_path: Path) -> None:
    assert Workspace(tmp_path).state.agents == (AgentSpec("assistant"),)


# Default files


def test_a_first_run_writes_the_default_files(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "deep" / "workspace")
    assert workspace.prepare() is True
    assert digests(workspace.path) == DEFAULTS
    assert {mode(path) for path in workspace.path.iterdir()} == {0o644}
    assert mode(workspace.path) == 0o755
    assert workspace.prepare() is False


def test_the_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    code = f"from atlas_agents.workspace import Workspace\nWorkspace({str(tmp_path / 'w')!r}).prepare()"
    subprocess.run([sys.executable, "-c", code], check=True, umask=0o077, timeout=30)
    assert mode(tmp_path / "w") == 0o755
    assert mode(tmp_path / "w" / "AGENTS.md") == 0o644


def test_the_default_agent_is_the_assistant_of_the_default_file(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.prepare()
    assert workspace.state.agents == (
        AgentSpec(
            "assistant",
            description="A helpful, accurate, and concise general-purpose assistant.",
            models=("anthropic/claude-opus-4-6",),
            where=f"{tmp_path}/AGENTS.md:3",
        ),
    )
    assert workspace.state.findings == ()
    assert workspace.system_prompt().count("\n\n---\n\n") == 2


@pytest.mark.parametrize("name", ["AGENTS.md", "SOUL.md", "TOOLS.md"])
def test_a_folder_that_has_one_of_them_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    assert Workspace(tmp_path).prepare() is False
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def is_nowhere(path: Path) -> bool:
    return False


def test_a_file_that_appears_at_the_last_moment_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "AGENTS.md").write_text("mine")
    monkeypatch.setattr(os.path, "lexists", is_nowhere)
    assert Workspace(tmp_path).prepare() is False
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("AGENTS.md", "mine")]


def test_a_link_to_nothing_is_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "SOUL.md").symlink_to(outside)
    assert Workspace(tmp_path / "w").prepare() is False
    assert not outside.exists()


def test_other_files_of_a_folder_are_no_reason_not_to_write(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    tmp_path.chmod(0o700)
    assert Workspace(tmp_path).prepare() is True
    assert mode(tmp_path) == 0o700


def test_a_place_where_no_folder_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("a file")
    with pytest.raises(ConfigError, match=r"w: the workspace cannot be made there: Not a directory"):
        Workspace(tmp_path / "w").prepare()


@pytest.mark.parametrize("name", [*DEFAULTS, "atlas.toml", ".env", "agents.MD", ".ENV"])
def test_the_files_that_agents_are_made_of_are_known_by_name(name: str, tmp_path: Path) -> None:
    assert is_protected(tmp_path / name)
    assert not is_protected(tmp_path / name / "notes.md")
    assert not is_protected(tmp_path / f"my-{name}")


# What is refused


def put_large(path: Path) -> None:
    path.write_bytes(b"x" * (256 * 1024 + 1))


def put_link_out(path: Path) -> None:
    (path.parent.parent / "secret").write_text("the password")
    path.symlink_to("../secret")


def put_link_through_a_folder(path: Path) -> None:
    (path.parent.parent / "away").mkdir()
    (path.parent.parent / "away" / "x.md").write_text("the password")
    (path.parent / "in").symlink_to("../away")
    path.symlink_to("in/x.md")


def put_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/null")


def put_link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


def put_circle(path: Path) -> None:
    path.symlink_to(path.name)


def put_bytes(path: Path) -> None:
    path.write_bytes(b"one\ntwo\nthr\xffee\n")


@pytest.mark.parametrize("name", ["AGENTS.md", "SOUL.md", "TOOLS.md"])
@pytest.mark.parametrize(
    ("put", "words"),
    [
        (put_large, ": it is larger than 256 KiB; every model reads all of it, so shorten it"),
        (put_link_out, ": it is a link out of the workspace; put the file itself there"),
        (put_link_through_a_folder, ": it is a link out of the workspace; put the file itself there"),
        (put_link_to_a_device, ": it is a link out of the workspace; put the file itself there"),
        (put_link_to_nothing, ": it is a link to nothing; put the file itself there"),
        (put_circle, ": it cannot be read: Too many levels of symbolic links"),
        (Path.mkdir, ": it is not a regular file; put a text file there"),
        (os.mkfifo, ": it is not a regular file; put a text file there"),
        (put_bytes, ":3: it is not UTF-8; save it as UTF-8"),
    ],
)
def test_what_is_no_file_of_the_workspace_is_refused(
    name: str, put: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    put(folder / name)
    with pytest.raises(ConfigError) as caught:
        Workspace(folder).load()
    assert str(caught.value) == f"{folder / name}{words}"


def test_the_largest_file_and_a_link_inside_are_read(tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").write_bytes(b"x" * (256 * 1024))
    (tmp_path / "real.md").write_text("T")
    (tmp_path / "TOOLS.md").symlink_to("real.md")
    assert Workspace(tmp_path).system_prompt() == "x" * (256 * 1024) + "\n\n---\n\nT"


def test_a_workspace_behind_a_link_is_read(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "SOUL.md").write_text("S")
    (tmp_path / "w").symlink_to("real")
    assert Workspace(tmp_path / "w").system_prompt() == "S"


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").write_text("S")
    (tmp_path / "SOUL.md").chmod(0)
    with as_nobody(tmp_path), pytest.raises(ConfigError, match=r"SOUL\.md: it cannot be read: Permission denied"):
        Workspace(tmp_path).load()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: there is no such folder; make it, or set ATLAS_WORKSPACE"):
        Workspace(tmp_path / "nowhere").load()
