"""Edits through the gateway: versions, conflicts, dry runs, atomic writes, audit rows and notifications."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gateway_client import connect_client, serve_gateway

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.store import AddAudit, DropRecord, Write
from atlas_agents.core.trust import Trust
from atlas_agents.gateway.edits import FileEdit, version_of
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, in_memory_atlas


def first_line(content: bytes) -> bytes | None:
    return content.split(b"\n")[0] or None


def edit_first_line(path: Path, line: str, expected: str | None, **options: Any) -> FileEdit:
    def change(content: bytes) -> bytes:
        return b"\n".join([line.encode(), *content.split(b"\n")[1:]])

    def check(content: bytes) -> list[str]:
        if b"invalid" in content:
            raise ConfigError("the first line is invalid")
        return ["it is short"] if len(content) < 20 else []

    return FileEdit(
        kind="line",
        id="first",
        path=path,
        section=first_line,
        change=change,
        check=check,
        apply=lambda: asyncio.sleep(0),
        value=lambda content: {"text": content.split(b"\n")[0].decode()},
        expected_version=expected,
        **options,
    )


async def test_edit_of_a_section_is_versioned_audited_and_announced(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_bytes(b"one\r\n\xc3\xa9 rest\n")
    path.chmod(0o640)
    async with serve_gateway(tmp_path / "home") as gateway, connect_client(gateway) as client:
        edits = gateway.hub.edits
        read = version_of(b"one\r")
        tried = await edits.edit_file(edit_first_line(path, "two", read, dry_run=True), "mara")
        assert (tried.stamp.version, tried.warnings) == (read, ("it is short",))
        assert "-one" in tried.diff and "+two" in tried.diff
        assert path.read_bytes().startswith(b"one")

        saved = await edits.edit_file(edit_first_line(path, "two", read), "mara")
        assert path.read_bytes() == b"two\n\xc3\xa9 rest\n"
        assert path.stat().st_mode & 0o777 == 0o640
        assert (saved.stamp.version, saved.stamp.changed_by) == (version_of(b"two"), "mara")
        event = await client.until("resource.updated")
        assert event == {"kind": "line", "id": "first", "version": saved.stamp.version, "by": "mara"}
        (row,) = (await client.get("audit.list"))["entries"]
        assert row["entry"]["action"] == "EDIT"
        assert row["entry"]["message"] == "mara changed line first"
        assert "+two" in row["entry"]["meta"]["diff"]
        assert (await client.get("usage.tools"))["rows"] == []

        with pytest.raises(ProtocolError, match="mara changed line 'first' since you opened it") as refused:
            await edits.edit_file(edit_first_line(path, "three", read), "ben")
        current = refused.value.shape().data.current
        assert refused.value.shape().code == -32005
        assert current is not None
        assert (current.version, current.changed_by, current.value) == (saved.stamp.version, "mara", {"text": "two"})
        assert path.read_bytes().startswith(b"two")


async def test_edit_keeps_a_link_and_creates_a_file_and_reports_a_failed_write(tmp_path: Path) -> None:
    link, real = tmp_path / "link.txt", tmp_path / "real.txt"
    link.symlink_to(real)
    async with serve_gateway(tmp_path / "home") as gateway, connect_client(gateway) as client:
        edits = gateway.hub.edits
        await edits.edit_file(edit_first_line(link, "one", None), "mara")
        assert link.is_symlink() and real.read_bytes() == b"one"
        with pytest.raises(ProtocolError, match="line 'first' exists already"):
            await edits.edit_file(edit_first_line(link, "two", None), "ben")
        with pytest.raises(ConfigError, match="the first line is invalid"):
            await edits.edit_file(edit_first_line(real, "invalid", version_of(b"one")), "ben")
        real.write_bytes(b"by hand\n")
        assert (await edits.stamp("line", "first", version_of(b"by hand"))).changed_by == ""
        (tmp_path / "blocked").write_text("a file where a folder should be")
        with pytest.raises(ConfigError, match="cannot"):
            await edits.edit_file(edit_first_line(tmp_path / "blocked" / "file.txt", "two", None), "ben")
        rows = [entry["entry"]["success"] for entry in (await client.get("audit.list"))["entries"]]
        assert rows[-1] is True


class Killed(BaseException):
    """Stands for a crash of the process."""


@pytest.mark.parametrize("crash", ["before the audit row", "after the audit row"])
async def test_crash_during_an_edit_leaves_one_audit_row(crash: str, tmp_path: Path) -> None:
    class Crashing(MemoryStore):
        crashes = False

        async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
            audits = any(isinstance(write, AddAudit) for write in writes)
            if self.crashes and crash.startswith("before") and audits:
                raise Killed
            if self.crashes and crash.startswith("after") and not audits and isinstance(writes[-1], DropRecord):
                raise Killed
            return await super().commit(tenant, writes)

    path, store = tmp_path / "file.txt", Crashing()
    path.write_bytes(b"one\n")
    async with serve_gateway(tmp_path / "home", in_memory_atlas(Scripted(), store=store)) as gateway:
        store.crashes = True
        with pytest.raises(Killed):
            await gateway.hub.edits.edit_file(edit_first_line(path, "two", version_of(b"one")), "mara")
        store.crashes = False
    assert path.read_bytes() == b"two\n"
    rows: list[Any] = []
    for _ in range(2):
        again = in_memory_atlas(Scripted(), store=store)
        async with serve_gateway(tmp_path / "home", again) as gateway, connect_client(gateway) as client:
            rows = (await client.get("audit.list"))["entries"]
    (row,) = rows
    expected = "mara changed line first"
    if crash.startswith("before"):
        expected = "mara was changing line first when the gateway stopped: check whether it was saved"
    assert row["entry"]["message"] == expected and "+two" in row["entry"]["meta"]["diff"]
    assert [record.key for record in await store.records("default", "edit") if record.key.startswith("open:")] == []


async def test_what_a_person_edits_counts_while_a_tool_call_is_running(tmp_path: Path) -> None:
    path, trust = tmp_path / "SOUL.md", Trust(tmp_path / "home")
    path.write_bytes(b"one\n")
    async with serve_gateway(tmp_path / "home") as gateway:
        trust.begin([path], [tmp_path], "while a tool ran")
        edit = edit_first_line(path, "two", version_of(b"one"), trust=trust)
        edited = await gateway.hub.edits.edit_file(edit, "mara")
        assert trust.read(path, path.read_bytes()) == b"two\n"
        assert trust.end([path]) == []
        trust.begin([path], [tmp_path], "while a tool ran")
        path.write_bytes(b"by an agent\n")
        os.utime(path)
        trust.end([path])
        with pytest.raises(ConfigError, match=r"SOUL\.md has changed and waits for your agreement"):
            await gateway.hub.edits.edit_file(edit_first_line(path, "three", edited.stamp.version, trust=trust), "mara")
