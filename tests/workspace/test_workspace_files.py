"""Workspace files: the prompt, the default files, and rejected files."""

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
from checks import TIMEOUT, as_unprivileged_user

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
def test_prompt_joins_the_existing_files(files: dict[str, str], prompt: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode())
    assert Workspace(tmp_path).system_prompt() == prompt


def test_byte_order_mark_is_removed_from_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_bytes(b"\xef\xbb\xbf## a\nDescription: d\n")
    state = Workspace(tmp_path).load()
    assert (state.prompt, state.findings, state.agents[0].id) == ("## a\nDescription: d\n", (), "a")


def test_workspace_without_agents_has_an_assistant(tmp_path: Path) -> None:
    assert Workspace(tmp_path).state.agents == (AgentSpec("assistant"),)


# Default files


def test_first_run_writes_the_default_files(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "deep" / "workspace")
    assert workspace.prepare() is True
    assert digests(workspace.path) == DEFAULTS
    assert {mode(path) for path in workspace.path.iterdir()} == {0o644}
    assert mode(workspace.path) == 0o755
    assert workspace.prepare() is False


def test_file_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    code = f"from atlas_agents.workspace import Workspace\nWorkspace({str(tmp_path / 'w')!r}).prepare()"
    subprocess.run([sys.executable, "-c", code], check=True, umask=0o077, timeout=TIMEOUT)
    assert mode(tmp_path / "w") == 0o755
    assert mode(tmp_path / "w" / "AGENTS.md") == 0o644


def test_default_agent_matches_the_default_file(tmp_path: Path) -> None:
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
def test_folder_with_one_of_the_files_is_unchanged(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    assert Workspace(tmp_path).prepare() is False
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def is_nowhere(path: Path) -> bool:
    return False


def test_file_created_concurrently_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "AGENTS.md").write_text("mine")
    monkeypatch.setattr(os.path, "lexists", is_nowhere)
    assert Workspace(tmp_path).prepare() is False
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("AGENTS.md", "mine")]


def test_broken_link_is_not_followed_for_writing(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "SOUL.md").symlink_to(outside)
    assert Workspace(tmp_path / "w").prepare() is False
    assert not outside.exists()


def test_default_files_are_written_beside_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    tmp_path.chmod(0o700)
    assert Workspace(tmp_path).prepare() is True
    assert mode(tmp_path) == 0o700


def test_workspace_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot create the workspace .*w: Not a directory"):
        Workspace(tmp_path / "w").prepare()


@pytest.mark.parametrize("name", [*DEFAULTS, "atlas.toml", ".env", "agents.MD", ".ENV"])
def test_workspace_files_are_protected_by_name(name: str, tmp_path: Path) -> None:
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


def put_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def put_bytes(path: Path) -> None:
    path.write_bytes(b"one\ntwo\nthr\xffee\n")


@pytest.mark.parametrize("name", ["AGENTS.md", "SOUL.md", "TOOLS.md"])
@pytest.mark.parametrize(
    ("put", "message"),
    [
        (put_large, ": larger than the maximum of 256 KiB"),
        (put_link_out, ": symbolic link to outside the workspace; replace it with the file itself"),
        (put_link_through_a_folder, ": symbolic link to outside the workspace; replace it with the file itself"),
        (put_link_to_a_device, ": symbolic link to outside the workspace; replace it with the file itself"),
        (put_link_to_nothing, ": broken symbolic link; replace it with the file itself"),
        (put_link_to_itself, ": cannot read the file: Too many levels of symbolic links"),
        (Path.mkdir, ": not a regular file; replace it with a text file"),
        (os.mkfifo, ": not a regular file; replace it with a text file"),
        (put_bytes, ":3: the file is not valid UTF-8; save it as UTF-8"),
    ],
)
def test_invalid_workspace_file_is_rejected(
    name: str, put: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "w"
    folder.mkdir()
    put(folder / name)
    with pytest.raises(ConfigError) as caught:
        Workspace(folder).load()
    assert str(caught.value) == f"{folder / name}{message}"


def test_largest_file_and_internal_link_are_read(tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").write_bytes(b"x" * (256 * 1024))
    (tmp_path / "real.md").write_text("T")
    (tmp_path / "TOOLS.md").symlink_to("real.md")
    assert Workspace(tmp_path).system_prompt() == "x" * (256 * 1024) + "\n\n---\n\nT"


def test_linked_workspace_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "SOUL.md").write_text("S")
    (tmp_path / "w").symlink_to("real")
    assert Workspace(tmp_path / "w").system_prompt() == "S"


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").write_text("S")
    (tmp_path / "SOUL.md").chmod(0)
    with (
        as_unprivileged_user(tmp_path),
        pytest.raises(ConfigError, match=r"SOUL\.md: cannot read the file: Permission denied"),
    ):
        Workspace(tmp_path).load()


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"workspace folder not found: .*nowhere; create it, or set ATLAS_WORKSPACE"):
        Workspace(tmp_path / "nowhere").load()
