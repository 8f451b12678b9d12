"""Folder trust: the file versions that a person agreed to, by path and digest, and the version in use of each file.

A folder that is not trusted cannot change settings. If an agent changes a prompt, skill, policy or server file, the
agreed version stays in use until a person agrees to the difference. Records are private files in the home folder.
"""

import logging
import os
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from itertools import islice
from pathlib import Path
from typing import IO

import msgspec

from atlas_agents.core import paths
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Environment, HeldFile, TrustedFolder, TrustRecords, digest, trust_key

logger = logging.getLogger(__name__)
WORKSPACE_FILES = ("AGENTS.md", "SOUL.md", "TOOLS.md")
"""Files at the top of a workspace that define agents and prompts. Servers in `mcp.json` have their own approvals."""
WORKSPACE_FOLDERS = ("skills", ".agents", "prompts")
CODE_SUFFIXES = (".py", ".txt")
"""Files of a plugin: its modules and `entry_points.txt`."""
_MAX_BYTES = 4 * 1024 * 1024
_MAX_FILES = 2000
_MAX_DIFF_LINES = 400


class Baseline(msgspec.Struct, frozen=True):
    """State of the files before a tool call. Changes during the call count as made by the agent."""

    files: dict[str, str]
    folders: tuple[str, ...]
    reason: str = ""

    def expected(self, path: str) -> str | None:
        """Return the digest of a file before the call, empty if it did not exist; None if it is not watched."""
        if path in self.files:
            return self.files[path]
        return "" if any(_is_below(path, folder) for folder in self.folders) else None


class PendingChange(msgspec.Struct, frozen=True):
    """A change that waits for a person: the version in use and the version found, None where there is none."""

    path: Path
    reason: str
    agreed: bytes | None
    found: bytes | None
    by_agent: bool = True

    @property
    def kind(self) -> str:
        return "created" if self.agreed is None else "deleted" if self.found is None else "changed"

    @property
    def summary(self) -> str:
        """`/home/ana/workspace/SOUL.md was created while …`."""
        return f"{self.path} was {self.kind} {self.reason}"

    def diff(self) -> str:
        """Return a unified diff from the version in use to the version found."""
        if paths.is_secret(self.path):
            return "(not shown: the file may contain keys)"
        import difflib

        before, after = (_lines(each) for each in (self.agreed, self.found))
        lines = list(difflib.unified_diff(before, after, "in use", str(self.path), lineterm=""))
        more = [f"… {len(lines) - _MAX_DIFF_LINES} more lines"] if len(lines) > _MAX_DIFF_LINES else []
        return "\n".join(lines[:_MAX_DIFF_LINES] + more)


class Trust:
    """Trust records of a home folder. Folders in `exempt` are trusted for this process whatever they contain."""

    def __init__(self, home: Path, exempt: Iterable[str] = ()) -> None:
        self.home = home
        self.folder = home / paths.TRUST_FILE.parent
        self._exempt = {os.path.realpath(each) for each in exempt}
        self._lock = threading.Lock()
        self._running = 0
        self._baseline: Baseline | None = None
        self._marker: IO[bytes] | None = None
        self._marker_path = self.folder / f"running-{os.getpid()}-{id(self):x}.json"

    @classmethod
    def of(cls, environment: Environment) -> "Trust":
        """Return the records that belong to the user of this process."""
        return cls(environment.trust_home, environment.trusted_folders())

    def records(self) -> TrustRecords:
        return paths.read_trust(self.home)

    def stamp(self) -> tuple[int, ...]:
        """Return a value that changes with the records, cheap enough to poll."""
        try:
            seen = (self.home / paths.TRUST_FILE).stat()
        except OSError:
            return ()
        return seen.st_ino, seen.st_size, seen.st_mtime_ns

    # Folders

    def trust_folder(self, folder: Path, files: Mapping[str, bytes], workspace: Path | None = None) -> None:
        """Trust a folder with this content of its files."""
        for path, content in files.items():
            self._keep(path, content)
        entry = TrustedFolder(
            {path: digest(content) for path, content in files.items()},
            os.path.realpath(workspace) if workspace is not None else "",
            int(time.time()),
        )
        with self._edit() as records:
            records.folders[os.path.realpath(folder)] = entry
            records.declined.pop(os.path.realpath(folder), None)
            for path in files:
                records.held.pop(path, None)

    def revoke(self, folder: Path) -> bool:
        """Stop trusting a folder. Return whether it was trusted."""
        with self._edit() as records:
            return records.folders.pop(os.path.realpath(folder), None) is not None

    def decline(self, folder: Path, request: str) -> None:
        """Remember that a person does not trust a folder as it is, so that the question is not repeated."""
        with self._edit() as records:
            records.declined[os.path.realpath(folder)] = request

    # Files

    def read(self, path: Path, content: bytes | None, *, folders: bool = True) -> bytes | None:
        """Return the version of a file that is in use, given its content on disk; None if it does not count.

        With `folders`, files of a trusted folder count only as they were trusted.
        """
        baselines = self._baselines()  # before the records: a call that ends meanwhile is in one of both
        expected = self._expected(trust_key(path), self.records(), baselines, folders=folders)
        if expected is None or expected == (digest(content) if content is not None else ""):
            return content
        return self._agreed(path, expected) if expected else None

    def pending(self) -> list[PendingChange]:
        """Return the changes that wait for a person, in files that an agent or another program changed."""
        baselines, records = self._baselines(), self.records()
        reasons = {path: held.reason for path, held in records.held.items()}
        for entry in records.folders.values():
            below = workspace_files(Path(entry.workspace)) if entry.workspace else []
            known = [*entry.files, *map(trust_key, below)]
            reasons |= {path: "since you trusted its folder" for path in known if path not in reasons}
        found: list[PendingChange] = []
        for path, reason in sorted(reasons.items()):
            content = b"(more files than can be checked)" if os.path.isdir(path) else _read(Path(path))
            expected = self._expected(path, records, baselines)
            if expected is not None and expected != (digest(content) if content is not None else ""):
                agreed = self._find_agreed(expected) if expected else None
                found.append(PendingChange(Path(path), reason, agreed, content, path in records.held))
        return found

    def changed_code(self, folder: Path) -> list[Path]:
        """Return the Python files and package descriptions below a folder that an agent changed."""
        self.recover()
        top = os.path.realpath(folder)
        held = [(Path(path), entry.agreed) for path, entry in self.records().held.items() if _is_below(path, top)]
        code = [(path, agreed) for path, agreed in held if path.suffix in CODE_SUFFIXES]
        return [path for path, agreed in code if (content := _read(path)) is not None and digest(content) != agreed]

    def agree(self, path: Path, content: bytes | None) -> None:
        """Agree to this content of a file, or with None to its removal. A later change of the file stays pending."""
        key, is_present = trust_key(path), os.path.isdir(path) or _read(path) == content
        agreed = digest(content) if content is not None else ""
        if content is not None:
            self._keep(key, content)
        with self._edit() as records:
            if (held := records.held.pop(key, None)) is not None and is_present:
                records.agreed[key] = agreed
            elif held is not None:
                records.held[key] = msgspec.structs.replace(held, agreed=agreed)
            for folder, entry in self._entries_of(key, records):
                files = {name: value for name, value in entry.files.items() if name != key}
                files |= {key: agreed} if agreed else {}
                records.folders[folder] = msgspec.structs.replace(entry, files=files)

    def agree_to_edit(self, path: Path, content: bytes) -> None:
        """Agree to an edit that a person made through Atlas. It takes effect at once, even during a tool call."""
        self.agree(path, content)
        with self._edit() as records:
            records.agreed[trust_key(path)] = digest(content)

    def waiting(self, workspace: Path) -> frozenset[str]:
        """Return the files of a workspace that differ from the agreed versions."""
        records = self.records()
        known = {*map(trust_key, workspace_files(workspace)), *_files_below(records, os.path.realpath(workspace))}
        found: set[str] = set()
        for path in known:
            expected = self._expected(path, records)
            content = _read(Path(path)) if expected is not None else None
            if expected is not None and expected != (digest(content) if content is not None else ""):
                found.add(path)
        return frozenset(found)

    def accept_edits(self, workspace: Path, before: frozenset[str]) -> frozenset[str]:
        """Agree to edits that no running tool call can have made, because a person made them.

        Files that already waited `before` the edit keep waiting; they are returned.
        """
        waiting, held, baselines = self.waiting(workspace), self.records().held, self._baselines()
        for path in waiting - before - held.keys():
            content = _read(Path(path))
            now = digest(content) if content is not None else ""
            if all(each.expected(path) in (None, now) for each in baselines):  # else a running call may have made it
                self.agree(Path(path), content)
        return waiting & before

    # Tool calls

    def begin(self, files: Iterable[Path], folders: Iterable[Path], reason: str) -> None:
        """Record these files before a tool call that may change them, or files of workspaces in these folders.

        The record is also a file, so that a change counts as the agent's even if this process is killed.
        """
        with self._lock:
            if self._baseline is None:
                self._baseline = self._record_baseline(files, folders, reason)
            self._running += 1

    def _record_baseline(self, files: Iterable[Path], folders: Iterable[Path], reason: str) -> Baseline:
        found: dict[str, str] = {}
        for path in files:
            if (content := _read(path)) is not None:
                self._keep(trust_key(path), content)
            found[trust_key(path)] = digest(content) if content is not None else ""
        self._forget_agreed(found)
        baseline = Baseline(found, tuple(os.path.realpath(each) for each in folders), reason)
        paths.make_private_folder(self.home)
        paths.make_private_folder(self.folder)
        unlocked = self._marker_path.with_name(f".{self._marker_path.name}")
        self._marker = unlocked.open("wb")
        flock(self._marker, LOCK_EX)
        self._marker.write(msgspec.json.encode(baseline))
        self._marker.flush()
        unlocked.rename(self._marker_path)  # now it is locked, so that no other process takes it for a dead one's
        return baseline

    def end(self, files: Iterable[Path]) -> list[Path]:
        """Hold the changes since `begin` until a person agrees to them, and return them. `files` may name new files."""
        with self._lock:
            self._running -= 1
            baseline, marker = self._baseline, self._marker
            if baseline is None or marker is None:
                return []
            changed = self._hold_changes(baseline, files)
            if not self._running:
                self._baseline = self._marker = None
                self._marker_path.unlink(missing_ok=True)
                marker.close()
            return changed

    def recover(self) -> None:
        """Hold changes that were made during the tool calls of killed processes."""
        for marker in self._markers():
            with suppress(OSError), marker.open("rb") as file:
                try:
                    flock(file, LOCK_EX | LOCK_NB)
                except BlockingIOError:
                    continue
                with suppress(msgspec.DecodeError):
                    self._hold_changes(msgspec.json.decode(file.read(), type=Baseline), ())
                marker.unlink(missing_ok=True)

    def _hold_changes(self, baseline: Baseline, files: Iterable[Path]) -> list[Path]:
        below = (path for folder in baseline.folders for path in workspace_files(Path(folder)))
        known = {*baseline.files, *map(trust_key, (*files, *below))}
        now = {path: digest(content) for path in known if (content := _read(Path(path))) is not None}
        overfull = [str(path) for folder in baseline.folders for path in _overfull_folders(Path(folder))]
        records = self.records()
        accepted = {path: (baseline.expected(path) or "", records.agreed.get(path)) for path in known}
        changed = [path for path in known if now.get(path, "") not in accepted[path]]
        changed += [path for path in overfull if path not in records.held]
        restored = [path for path, held in records.held.items() if path in known and now.get(path, "") == held.agreed]
        if not changed and not restored:
            return []
        with self._edit() as records:
            for path in changed:
                before = self._expected(path, records)
                agreed = before if before is not None else baseline.expected(path) or ""
                records.held[path] = HeldFile(agreed, baseline.reason, int(time.time()))
                records.agreed.pop(path, None)
            for path in restored:
                records.held.pop(path, None)
        for path in changed:
            logger.warning("%s changed %s; it is not used until you agree; run: atlas trust", path, baseline.reason)
        return [Path(path) for path in changed]

    def _forget_agreed(self, found: Mapping[str, str]) -> None:
        """Forget agreed changes that were edited since: from now on, only the current content counts."""
        if any(path in found and found[path] != agreed for path, agreed in self.records().agreed.items()):
            with self._edit() as records:
                for path in [path for path, agreed in records.agreed.items() if found.get(path, agreed) != agreed]:
                    del records.agreed[path]

    def _baselines(self) -> list[Baseline]:
        own = [self._baseline] if self._baseline is not None else []
        others = [marker for marker in self._markers() if marker != self._marker_path]
        return [*own, *(found for marker in others if (found := _decode(marker)) is not None)]

    def _markers(self) -> list[Path]:
        try:
            return sorted(path for path in self.folder.iterdir() if path.name.startswith("running-"))
        except OSError:
            return []

    # Records and agreed versions

    def _expected(
        self, path: str, records: TrustRecords, baselines: Sequence[Baseline] = (), *, folders: bool = True
    ) -> str | None:
        """Return the digest that a file must have to be used; None if any content is."""
        if (held := records.held.get(path)) is not None:
            return held.agreed
        if any(str(parent) in records.held for parent in Path(path).parents):
            return ""  # a folder with too many files to check
        for baseline in baselines:
            if (expected := baseline.expected(path)) is not None:
                return records.agreed.get(path, expected)
        entries = self._entries_of(path, records) if folders else []
        return entries[0][1].files.get(path, "") if entries else None

    def _entries_of(self, path: str, records: TrustRecords) -> list[tuple[str, TrustedFolder]]:
        return [
            (folder, entry)
            for folder, entry in records.folders.items()
            if folder not in self._exempt
            and (path in entry.files or (entry.workspace and _is_control_file(path, entry.workspace)))
        ]

    def _keep(self, path: str, content: bytes) -> None:
        """Store a version of a file, unless it may contain keys."""
        kept = self.folder / digest(content)
        if not paths.is_secret(Path(path)) and not kept.exists():
            paths.make_private_folder(self.home)
            paths.make_private_folder(self.folder)
            paths.write_file(kept, content)

    def _find_agreed(self, expected: str) -> bytes | None:
        content = _read(self.folder / expected)
        return content if content is not None and digest(content) == expected else None

    def _agreed(self, path: Path, expected: str) -> bytes:
        content = self._find_agreed(expected)
        if content is None:
            raise ConfigError(f"{path} changed, and the version that you agreed to is not stored; run: atlas trust")
        return content

    @contextmanager
    def _edit(self) -> Generator[TrustRecords]:
        """Change the trust records under a file lock; concurrent processes wait."""
        paths.make_private_folder(self.home)
        paths.make_private_folder(self.folder)
        with paths.lock_file(self.home / paths.TRUST_FILE):
            records = self.records()
            copies = (dict(records.folders), dict(records.held), dict(records.agreed), dict(records.declined))
            editable = TrustRecords(*copies)
            yield editable
            if editable != records:
                paths.write_json(self.home / paths.TRUST_FILE, editable)


def read_versions(path: Path, trust: Trust | None) -> tuple[bytes | None, bytes | None]:
    """Return the content of a file on disk and the version of it that is in use; None where there is none."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        found = None
    return found, found if trust is None else trust.read(path, found)


def workspace_files(workspace: Path) -> list[Path]:
    """Return the files of a workspace that define agents, prompts and skills, whether they exist or not."""
    found = [workspace / name for name in WORKSPACE_FILES]
    for name in WORKSPACE_FOLDERS:
        found += islice(_walk(workspace / name), _MAX_FILES)
    return found


def _overfull_folders(workspace: Path) -> list[Path]:
    """Return the folders of a workspace that contain more files than can be checked."""
    folders = [Path(os.path.realpath(workspace / name)) for name in WORKSPACE_FOLDERS]
    return [folder for folder in folders if len(list(islice(_walk(folder), _MAX_FILES + 1))) > _MAX_FILES]


def read_files(files: Iterable[Path]) -> dict[str, bytes]:
    """Return the content of those files that exist, by their path in the trust records."""
    return {trust_key(path): content for path in files if (content := _read(path)) is not None}


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names))


def _files_below(records: TrustRecords, folder: str) -> list[str]:
    return [path for entry in records.folders.values() for path in entry.files if _is_below(path, folder)]


def _is_control_file(path: str, workspace: str) -> bool:
    if not _is_below(path, workspace):
        return False
    first, *rest = Path(path).relative_to(workspace).parts or ("",)
    return first in (WORKSPACE_FOLDERS if rest else WORKSPACE_FILES)


def _is_below(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _read(path: Path) -> bytes | None:
    """Return the content of a file, without blocking on a pipe; None if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        try:
            return file.read(_MAX_BYTES)
        except OSError:
            return None


def _decode(marker: Path) -> Baseline | None:
    """Return the baseline of another process; None if its calls have ended."""
    try:
        with marker.open("rb") as file:
            return msgspec.json.decode(file.read(), type=Baseline)
    except (OSError, msgspec.DecodeError):
        return None


def _lines(content: bytes | None) -> list[str]:
    return content.decode("utf-8", "replace").splitlines() if content is not None else []
