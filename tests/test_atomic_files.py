"""Atomic file writes: whole or not at all, private, and safe against a second process."""

import os
import stat
import threading
from pathlib import Path

import pytest

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import lock_file, read_json, write_file, write_json


def test_write_replaces_the_content_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"one", b"two"):
        write_file(path, content)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_failed_write_keeps_the_old_content_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, object())
    with pytest.raises(TypeError):
        write_file(path, "text")  # type: ignore[arg-type]
    assert read_json(path, dict[str, int]) == {"a": 1}
    assert os.listdir(tmp_path) == ["file"]


def test_of_many_that_create_a_file_at_once_exactly_one_succeeds(tmp_path: Path) -> None:
    path, start, refused = tmp_path / "file", threading.Barrier(8), list[int]()

    def create(number: int) -> None:
        start.wait()
        try:
            write_file(path, b"%d" % number, overwrite=False)
        except FileExistsError:
            refused.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7 and int(path.read_bytes()) not in refused
    assert os.listdir(tmp_path) == ["file"]


def test_missing_json_is_none_and_unreadable_json_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read_json(path, int) is None
    path.write_text("{")
    with pytest.raises(ConfigError, match="cannot read"):
        read_json(path, int)


def test_locked_updates_of_one_file_do_not_lose_each_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_json(path, 0)

    def add() -> None:
        for _ in range(20):
            with lock_file(path):
                write_json(path, (read_json(path, int) or 0) + 1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_json(path, int) == 80
