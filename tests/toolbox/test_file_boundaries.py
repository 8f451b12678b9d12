"""File tools cannot leave the folder: paths, links, races and special files (S40, S41, S44, S49)."""

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from calling_tools import Person, call

from atlas_agents import Policy, ToolResult
from atlas_agents.builtin_tools.files import FileQuery, file_tools, search_files
from atlas_agents.builtin_tools.files import root as root_module
from atlas_agents.builtin_tools.files.root import Root, open_beneath, walk_beneath
from atlas_agents.core.errors import ToolFault
from checks import TIMEOUT

YES = Policy(tools={"file_write": {"*": "yes"}, "file_edit": {"*": "yes"}})


@pytest.fixture(params=["kernel", "walk"])
def resolver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with `openat2` and without it."""
    if request.param == "walk":
        monkeypatch.setattr(root_module, "has_openat2", lambda: False)
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """`w` is the folder; the files beside it must not be reached."""
    (tmp_path / "w").mkdir()
    (tmp_path / "w-evil").mkdir()
    (tmp_path / "w-evil/x").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    return tmp_path / "w"


async def call_all_tools(root: Path, path: str) -> list[ToolResult]:
    tools = file_tools(root)
    person = Person()
    return [
        await call(tools, "file_read", path=path),
        await call(tools, "file_list", path=path),
        search(root, path, "secret"),
        await call(tools, "file_write", person, YES, path=path, content="x"),
        await call(tools, "file_edit", person, YES, path=path, old="secret", new="x"),
    ]


def search(root: Path, path: str, query: str) -> ToolResult:
    """Call the function of the worker in this process."""
    try:
        return ToolResult("", "ok", search_files(Root(str(root)), FileQuery(query, path)))
    except ToolFault as fault:
        return ToolResult("", "error", str(fault), fault.kind)


def is_untouched(root: Path) -> bool:
    beside = sorted(each.name for each in root.parent.iterdir())
    return beside == ["secret.txt", "w", "w-evil"] and (root.parent / "secret.txt").read_text() == "secret"


OUTSIDE = [
    *("../secret.txt", "../w-evil/x", "a/../../secret.txt", "./../secret.txt", "..", "../", "..//secret.txt"),
    *("{parent}/secret.txt", "{parent}/w-evil/x", "{parent}/w/../secret.txt", "/etc/passwd", "//etc/passwd"),
    *("/proc/self/environ", "/dev/zero", "/", "/proc/self/root/etc/passwd", "/proc/1/environ", "/dev/fd/0"),
]
NOT_DECODED = [
    "%2e%2e/secret.txt",
    "..%2fsecret.txt",
    "secret.txt ",
    "~/x",
    "..\\secret.txt",
    "file:///etc/passwd",
    "a\tb",
]


@pytest.mark.parametrize("path", OUTSIDE)
async def test_path_outside_the_folder_is_denied(path: str, root: Path, resolver: str) -> None:
    (root / "a").mkdir()
    for result in await call_all_tools(root, path.format(parent=root.parent)):
        assert result.status == "error" and result.error in ("not_permitted", "bad_arguments"), result
        assert "secret\n" not in str(result.result)
    assert is_untouched(root)


@pytest.mark.parametrize("path", NOT_DECODED)
async def test_path_is_used_literally(path: str, root: Path) -> None:
    for name in ("file_read", "file_list"):
        assert (await call(file_tools(root), name, path=path)).error == "failed"
    await call(file_tools(root), "file_write", None, YES, path=path, content="x")
    assert is_untouched(root)


async def test_invalid_characters_in_a_path_are_rejected(root: Path) -> None:
    for path in ("a\0b", "\0", "x" * 5000, "\ud800"):
        for result in await call_all_tools(root, path):
            assert result.error == "bad_arguments", result


@pytest.mark.parametrize(
    "target", ["../secret.txt", "/etc/passwd", "../w-evil", "{parent}/secret.txt", "../nothing-yet"]
)
async def test_link_out_of_the_folder_is_denied(target: str, root: Path, resolver: str) -> None:
    (root / "link").symlink_to(target.format(parent=root.parent))
    for path in ("link", "link/x"):
        for result in await call_all_tools(root, path):
            assert result.status == "error", result
            assert "secret" not in str(result.result).replace("secret.txt", "").replace("may contain secrets", "")
    assert is_untouched(root) and (root / "link").is_symlink()


async def test_link_inside_the_folder_is_followed(root: Path) -> None:
    (root / "docs").mkdir()
    (root / "docs/a.txt").write_text("hello")
    (root / "here").symlink_to("docs")
    (root / "file").symlink_to("docs/a.txt")
    if not root_module.has_openat2():
        pytest.skip("this kernel has no openat2")
    for path in ("here/a.txt", "file"):
        assert "hello" in str((await call(file_tools(root), "file_read", path=path)).result)
    assert (await call(file_tools(root), "file_write", None, YES, path="here/b", content="x")).status == "ok"
    assert (root / "docs/b").read_text() == "x"


async def test_absolute_path_into_the_folder_is_accepted(root: Path, resolver: str) -> None:
    (root / "f").write_text("hello")
    assert "hello" in str((await call(file_tools(root), "file_read", path=str(root / "f"))).result)


@pytest.mark.parametrize(
    ("path", "number"), [("..", errno.EXDEV), ("a/../..", errno.EXDEV), ("a/../f", 0), ("a/..", 0)]
)
def test_both_resolvers_handle_dots_the_same_way(path: str, number: int, root: Path) -> None:
    (root / "a").mkdir()
    (root / "f").touch()
    top = os.open(root, os.O_RDONLY)
    try:
        for opener in (open_beneath, walk_beneath):
            try:
                os.close(opener(top, path, os.O_RDONLY))
                found = 0
            except OSError as error:
                found = error.errno or -1
            assert found == number
    finally:
        os.close(top)


@pytest.mark.parametrize("path", ["link", "folder/x", "out/etc/passwd", "folder"])
def test_walk_follows_no_links(path: str, root: Path) -> None:
    (root / "docs").mkdir()
    (root / "docs/x").touch()
    for name, linked in (("link", "docs/x"), ("folder", "docs"), ("out", "/")):
        (root / name).symlink_to(linked)
    top = os.open(root, os.O_RDONLY)
    try:
        with pytest.raises(OSError) as refusal:
            walk_beneath(top, path, os.O_RDONLY)
        assert refusal.value.errno == errno.ELOOP
    finally:
        os.close(top)


def test_no_descriptor_leaks(root: Path) -> None:
    (root / "a/b").mkdir(parents=True)
    top = os.open(root, os.O_RDONLY)
    before = set(os.listdir("/dev/fd"))
    for path in ("a/b", "a/b/c", "../x", "a/../b", "a/b/..", "."):
        for opener in (open_beneath, walk_beneath):
            with suppress(OSError):
                os.close(opener(top, path, os.O_RDONLY))
    assert set(os.listdir("/dev/fd")) == before
    os.close(top)


# Races

_SWAP = """
import os, sys
inside, outside = sys.argv[1:]
print("swapping", flush=True)
while True:
    for target in (inside, outside):
        os.symlink(target, "link.new")
        os.rename("link.new", "link")
"""


@contextmanager
def swapping(root: Path, inside: str, outside: str) -> Generator[None]:
    """Run a process that switches `link` between two targets as fast as it can."""
    process = subprocess.Popen([sys.executable, "-c", _SWAP, inside, outside], cwd=root, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


async def test_link_that_changes_concurrently_never_leads_out(root: Path) -> None:
    for folder in (root / "docs", root.parent / "w-evil"):
        (folder).mkdir(exist_ok=True)
        (folder / "f").write_text("inside" if folder == root / "docs" else "secret")
    tools, seen = {each.name: each for each in file_tools(root)}, list[str]()
    context: Any = type("Context", (), {"approved": False})
    (root / "link").symlink_to("docs")
    until = time.monotonic() + TIMEOUT
    with swapping(root, "docs", "../w-evil"):
        while (len(seen) < 3000 or len({"inside" in each for each in seen}) < 2) and time.monotonic() < until:
            for name, arguments in (
                ("file_read", {"path": "link/f"}),
                ("file_list", {"path": "link"}),
                ("file_write", {"path": "link/g", "content": "x", "context": context}),
            ):
                try:
                    seen.append(tools[name].function(**arguments))
                except Exception as error:  # noqa: BLE001 - every refusal is fine
                    seen.append(str(error))
    assert not any("secret" in each for each in seen if not each.endswith("relative path inside it."))
    assert sorted(os.listdir(root.parent / "w-evil")) == ["f", "x"]
    outcomes = ["inside" in each for each in seen]
    assert any(outcomes) and not all(outcomes)  # both targets were used


# Special files and secrets


async def test_special_files_are_rejected_at_once(root: Path) -> None:
    os.mkfifo(root / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(root / "socket"))
    with (root / "sparse").open("wb") as file:
        file.truncate(10 * 1024**3)
    try:
        os.mknod(root / "zero", 0o666 | 0o020000, os.makedev(1, 5))
    except OSError:
        (root / "zero").symlink_to("/dev/zero")
    assert "sparse  10.0 GB" in str((await call(file_tools(root), "file_list")).result)
    for path in ("pipe", "socket", "sparse", "zero"):
        reading, listing, searching, writing, editing = await call_all_tools(root, path)
        assert [each.status for each in (reading, listing, editing)] == ["error"] * 3, path
        assert searching.status == "error" or "skipped: 1 file" in str(searching.result)
        assert writing.status == ("ok" if path == "sparse" else "error")  # a regular file can be replaced
    listener.close()


@pytest.mark.parametrize("name", [".env", "id_ed25519", "server.key", ".netrc", ".ssh/config", "atlas.db", "token"])
async def test_secrets_cannot_be_read_under_any_name(name: str, root: Path) -> None:
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("hunter2")
    (root / "soft").symlink_to(name)
    os.link(root / name, root / "hard")
    tools = file_tools(root)
    for path in (name, "soft", *(["hard"] if "/" not in name else [])):
        for result in (await call(tools, "file_read", path=path), search(root, path, "hunter2")):
            assert result.error == "not_permitted" and "hunter2" not in str(result.result), (path, result)


async def test_private_folder_inside_the_folder_is_inaccessible(root: Path) -> None:
    (root / "home").mkdir()
    (root / "home/anything").write_text("hunter2")
    tools = file_tools(root, private=[root / "home"])
    assert (await call(tools, "file_read", path="home/anything")).error == "not_permitted"
    assert "home" not in str((await call(tools, "file_list")).result)
    assert "hunter2" not in str((await call(tools, "file_search", query="hunter2")).result)


async def test_temporary_file_is_private_and_removed_if_writing_fails(root: Path) -> None:
    seen: list[tuple[int, int]] = []
    real = os.rename

    def failing(source: Any, *rest: Any, **named: Any) -> None:
        info = os.stat(source, dir_fd=named["src_dir_fd"])
        seen.append((info.st_nlink, info.st_mode & 0o077))
        raise OSError(errno.ENOSPC, "No space left on device")

    (root / "f").write_text("old")
    (root / "f").chmod(0o600)
    os.rename = failing  # pyrefly: ignore[bad-assignment] - patched
    try:
        result = await call(file_tools(root), "file_write", None, YES, path="f", content="new")
    finally:
        os.rename = real
    assert "No space left on device; nothing was changed" in str(result.result)
    assert seen == [(1, 0)] and os.listdir(root) == ["f"] and (root / "f").read_text() == "old"
