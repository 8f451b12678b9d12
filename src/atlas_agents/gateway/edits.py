"""Edits through the gateway: versions, conflicts, dry runs, atomic writes of file sections, audit rows, notifications.

Everything that people edit follows the same rules. A client sends the version that it read; if someone else was
faster, it receives a conflict with the current value instead of overwriting it.
"""

import asyncio
import difflib
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.atlas import Atlas
from atlas_agents.core.aio import finish_despite_cancel, run_in_thread
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.json import encode
from atlas_agents.core.messages import new_id
from atlas_agents.core.paths import digest, lock_file, make_private_folder, write_file
from atlas_agents.core.store import DropRecord, PutRecord, Store, StoredRecord
from atlas_agents.core.trust import Trust, read_versions
from atlas_agents.gateway.protocol.events import ResourceUpdated
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.gateway.protocol.types import CurrentValue, EditStamp, Scope
from atlas_agents.tools.audit import AuditEntry
from atlas_agents.tools.policy import Policy
from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.workspace.build import BuiltAgents
from atlas_agents.workspace.workspace import WorkspaceState

_MAX_AUDITED_DIFF = 4_000
_DEFAULT_MODE = 0o644
NotifyClients: TypeAlias = Callable[[ResourceUpdated, Scope], None]
"""Sends an event to the clients that have a scope."""


def version_of(value: Any) -> str | None:
    """Return the version of a value: a hash of bytes, or of the JSON of anything else. None stays None."""
    if value is None:
        return None
    return digest(value if isinstance(value, bytes) else encode(msgspec.to_builtins(value, order="sorted")))[:16]


def unified_diff(before: str, after: str, name: str) -> str:
    """Return the difference of two texts; empty if there is none."""
    old, new = (text.splitlines() for text in (before, after))
    return "\n".join(difflib.unified_diff(old, new, name, name, lineterm=""))


def describe_change(before: Any, after: Any, name: str) -> str:
    """Return the difference of two values with named fields, one field per line. None: it does not exist."""
    old, new = (
        "" if value is None else "\n".join(f"{key}: {each}" for key, each in msgspec.to_builtins(value).items())
        for value in (before, after)
    )
    return unified_diff(old, new, name)


class EditTarget(msgspec.Struct, frozen=True):
    """Current state of an editable resource. `version` is None if it does not exist."""

    kind: str
    id: str
    version: str | None
    value: Any = None


class FileEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one section of a file.

    `section` finds it, `change` returns the new content of the whole file, `check` validates that content and returns
    warnings, `value` describes the present section for a conflict, and `apply` makes the new content take effect.
    """

    kind: str
    id: str
    path: Path
    section: Callable[[bytes], bytes | None]
    change: Callable[[bytes], bytes]
    check: Callable[[bytes], Sequence[str]]
    value: Callable[[bytes], Any]
    apply: Callable[[], Awaitable[None]]
    trust: Trust | None = None
    expected_version: str | None = None
    dry_run: bool = False


class FileEdited(msgspec.Struct, frozen=True):
    """The outcome of a file edit. After a dry run, `stamp` is the stamp of the unchanged section."""

    stamp: EditStamp
    diff: str
    warnings: tuple[str, ...]
    content: bytes


class AgentEditor(Protocol):
    """Port for edits of the workspace's agents."""

    path: Path
    trust: Trust | None
    tools: ToolRegistry
    """Every tool that an agent could have."""

    @property
    def chosen_model(self) -> str:
        """The model that a person chose for agents that name none; empty if there is none."""
        ...

    def read(self) -> bytes:
        """Return the version of the file that is in use; empty if there is none."""
        ...

    def preview(self, content: bytes) -> tuple[WorkspaceState, BuiltAgents]:
        """Build the agents of this content of the file; ConfigError if it is invalid."""
        ...

    async def reload(self) -> None:
        """Reload the file for new turns."""
        ...

    def open_draft(self, agent: Agent) -> Atlas:
        """Return an Atlas in memory that has this agent only, until another draft is opened."""
        ...


class PolicyEditor(Protocol):
    """Port for edits of the permissions."""

    path: Path
    trust: Trust | None

    def read(self) -> bytes:
        """Return the version of the file that is in use; empty if there is none."""
        ...

    def effective(self, content: bytes) -> Policy:
        """Return the policy that applies with this content of the file; ConfigError if it is invalid."""
        ...

    async def reload(self) -> None:
        """Reload the file and apply it."""
        ...


class _LastEdit(msgspec.Struct, frozen=True):
    version: str | None
    by: str
    at: int


class _OpenEdit(msgspec.Struct, frozen=True):
    """An edit in progress. It is stored first, so that it is audited even after a crash."""

    key: str
    kind: str
    id: str
    previous: str | None
    by: str
    diff: str
    at: int
    place: str = ""
    """The host and the home folder of the gateway."""


_last_edits = msgspec.json.Decoder(_LastEdit)
_open_edits = msgspec.json.Decoder(_OpenEdit)
_OPEN = "open:"
"""Prefix of the keys of edits in progress."""
_OPEN_LOCK = ".open-edits.lock"
_NAMES = {
    "policy": "the permissions",
    "secret": "the key of {id}",
    "token": "token {id}",
    "mcp": "MCP server {id}",
    "mcp-start": "the start of MCP server {id}",
    "mcp-approval": "the approved tools of MCP server {id}",
    "mcp-login": "the sign-in to MCP server {id}",
    "knowledge": "document {id}",
    "channel-person": "the pairing of {id}",
    "tenant": "the plan of tenant {id}",
}
"""Names of edited resources in the audit log, for those that are not named by kind and id."""


def _describe_edit(edit: _OpenEdit, outcome: str, error: str) -> str:
    """Describe an edit in a sentence: the author, the resource and the outcome."""
    thing = _NAMES.get(edit.kind, f"{edit.kind} {{id}}").replace("{id}", edit.id)
    if edit.kind == "model":
        thing = {"default": "the default model", "offered": "the models of chats"}.get(edit.id, thing)
    if outcome == "failed":
        return f"{edit.by} could not change {thing}: {error}"
    if outcome == "interrupted":
        return f"{edit.by} was changing {thing} when the gateway stopped: check whether it was saved"
    return f"{edit.by} {outcome} {thing}"


def _to_stamp(row: StoredRecord | None, version: str | None) -> EditStamp:
    last = _last_edits.decode(row.body) if row is not None else None
    if last is None or last.version != version:
        return EditStamp(version=version)
    return EditStamp(version=version, changed_by=last.by, changed_at=last.at)


class Edits:
    """Checks and records edits. One instance per gateway; edits are made one at a time."""

    def __init__(self, atlas: Atlas, home: Path, notify: NotifyClients) -> None:
        self._atlas = atlas
        self._home = home
        self.notify = notify
        self._lock = asyncio.Lock()
        self._place = f"{socket.gethostname()}:{home.absolute()}"

    @property
    def _store(self) -> Store:
        store = self._atlas.store
        if store is None:
            raise ConfigError("edits require an Atlas with a store")
        return store

    @asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None, None]:
        """Exclude other edits of this gateway, and of other processes with the same home folder."""
        async with self._lock:
            make_private_folder(self._home)
            lock = lock_file(self._home / "edits")
            await run_in_thread(lock.__enter__)
            try:
                yield
            finally:
                lock.__exit__(None, None, None)

    async def stamp(self, kind: str, id: str, version: str | None) -> EditStamp:
        """Return the version with its author and time; both are unknown if it was not written through a gateway."""
        row = await self._store.record(self._atlas.tenant, "edit", f"{kind}:{id}")
        return _to_stamp(row, version)

    async def stamps(self, kind: str, versions: Mapping[str, str | None]) -> dict[str, EditStamp]:
        """Return the `stamp` of each resource of a kind, by id, from one query."""
        prefix = f"{kind}:"
        rows = {row.key: row for row in await self._store.records(self._atlas.tenant, "edit", prefix=prefix)}
        return {id: _to_stamp(rows.get(prefix + id), version) for id, version in versions.items()}

    async def check(self, resource: EditTarget, expected: str | msgspec.UnsetType | None) -> None:
        """Raise CONFLICT with the current value unless its version is the expected one; unset expects any version."""
        if expected is msgspec.UNSET or resource.version == expected:
            return
        stamp = await self.stamp(resource.kind, resource.id, resource.version)
        who = stamp.changed_by or "someone"
        what = f"{resource.kind} {resource.id!r}"
        if resource.version is None:
            message = f"{who} removed {what}; nothing was saved"
        elif expected is None:
            message = f"{what} exists already; nothing was saved"
        else:
            message = f"{who} changed {what} since you opened it; nothing was saved"
        current = CurrentValue(
            version=stamp.version, changed_by=stamp.changed_by, changed_at=stamp.changed_at, value=resource.value
        )
        raise ProtocolError("CONFLICT", message, current=current)

    async def apply(
        self,
        before: EditTarget,
        by: str,
        write: Callable[[], Awaitable[str | None]],
        *,
        diff: str = "",
        scope: Scope = "read",
    ) -> EditStamp:
        """Audit an edit, make it, and notify the clients that have the scope.

        `write` makes the edit and returns the new version, or None after a removal. The diff is written to the audit
        log, so it must not contain secrets.
        """
        return await finish_despite_cancel(self._apply(before, by, write, diff, scope))

    async def _apply(
        self, before: EditTarget, by: str, write: Callable[[], Awaitable[str | None]], diff: str, scope: Scope
    ) -> EditStamp:
        await self._atlas.audit.ready()
        now = int(time.time() * 1000)
        shown = self._atlas.hide(diff)[:_MAX_AUDITED_DIFF]
        edit = _OpenEdit(new_id(), before.kind, before.id, before.version, by, shown, now, self._place)
        opened = PutRecord("edit", _OPEN + edit.key, encode(edit))
        with self._editing():
            await self._store.commit(self._atlas.tenant, [opened])
            try:
                version = await write()
            except BaseException as error:
                await self._audit(edit, "failed", error=str(error))
                await self._store.commit(self._atlas.tenant, [DropRecord("edit", opened.key)])
                raise
            outcome = "removed" if version is None else "created" if before.version is None else "changed"
            await self._audit(edit, outcome, version=version)
            last = PutRecord("edit", f"{before.kind}:{before.id}", encode(_LastEdit(version, by, now)))
            await self._store.commit(self._atlas.tenant, [last, DropRecord("edit", opened.key)])
        self.notify(ResourceUpdated(before.kind, before.id, version, by), scope)
        return EditStamp(version=version, changed_by=by, changed_at=now)

    async def record_interrupted(self, has_row: Callable[[str, int], Awaitable[bool]], *, all_homes: bool) -> None:
        """Audit the edits that were in progress when a gateway stopped: with this home folder, or with any.

        `has_row` says whether the row of an edit was written since a time. Does nothing while another process with the
        same home folder makes an edit.
        """
        rows = await self._store.records(self._atlas.tenant, "edit", prefix=_OPEN)
        left = [_open_edits.decode(row.body) for row in rows]
        for edit in left if left and not self._is_editing() else ():
            if all_homes or edit.place == self._place:
                if not await has_row(edit.key, edit.at):
                    await self._audit(edit, "interrupted")
                await self._store.commit(self._atlas.tenant, [DropRecord("edit", _OPEN + edit.key)])

    @contextmanager
    def _editing(self) -> Generator[None]:
        """Mark an edit of this process as in progress, until the end of the block or of the process."""
        make_private_folder(self._home)
        with (self._home / _OPEN_LOCK).open("a") as file:
            flock(file, LOCK_SH)
            yield

    def _is_editing(self) -> bool:
        """Return whether a process with this home folder makes an edit."""
        make_private_folder(self._home)
        with (self._home / _OPEN_LOCK).open("a") as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                return True
        return False

    async def _audit(self, edit: "_OpenEdit", outcome: str, *, version: str | None = None, error: str = "") -> None:
        success = outcome in ("created", "changed", "removed")
        meta = {"user": edit.by, "outcome": outcome, "previous": edit.previous, "version": version, "diff": edit.diff}
        entry = AuditEntry(
            tenant_id=self._atlas.tenant,
            actor_external_id=edit.by,
            entity_id=edit.id,
            level="info" if success else "error",
            message=self._atlas.hide(_describe_edit(edit, outcome, error)),
            success=success,
            meta={**meta, "edit": edit.key, **({"error": self._atlas.hide(error)} if error else {})},
            timestamp=int(time.time() * 1000),
            actor_type="user",
            action="EDIT",
            entity_type=edit.kind,
        )
        await self._atlas.audit.append(entry)

    async def edit_file(self, edit: FileEdit, by: str, *, scope: Scope = "read") -> FileEdited:
        """Change a section of a file atomically; raise CONFLICT if the section has another version than expected."""
        async with self.exclusive():
            before = await run_in_thread(_read_agreed, edit)
            section = edit.section(before)
            resource = EditTarget(edit.kind, edit.id, version_of(section), edit.value(before) if section else None)
            await self.check(resource, edit.expected_version)
            content: bytes = edit.change(before)
            warnings = tuple(await run_in_thread(edit.check, content))
            diff = unified_diff(before.decode(), content.decode(), edit.path.name)
            if edit.dry_run or content == before:
                stamp = await self.stamp(edit.kind, edit.id, resource.version)
                return FileEdited(stamp, diff, warnings, content)

            async def write() -> str | None:
                await run_in_thread(_write, edit, content)
                await edit.apply()
                return version_of(edit.section(content))

            stamp = await self.apply(resource, by, write, diff=diff, scope=scope)
            return FileEdited(stamp, diff, warnings, content)


def _read_agreed(edit: FileEdit) -> bytes:
    """Return the content of the file, empty if it does not exist; ConfigError if a change of it waits for a person."""
    try:
        found, agreed = read_versions(edit.path, edit.trust)
    except OSError as error:
        raise ConfigError(f"cannot read {edit.path}: {error.strerror}") from error
    content = found or b""
    if (agreed or b"") != content:
        raise ConfigError(f"{edit.path.name} has changed and waits for your agreement; run: atlas trust")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{edit.path} is not valid UTF-8; save it as UTF-8") from error
    return content


def _write(edit: FileEdit, content: bytes) -> None:
    path = edit.path.resolve()
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else _DEFAULT_MODE
        write_file(path, content, mode=mode)
    except OSError as error:
        raise ConfigError(f"cannot write {edit.path}: {error.strerror}") from error
    if edit.trust is not None:
        edit.trust.agree_to_edit(edit.path, content)
