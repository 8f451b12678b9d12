"""Snapshots: the files of a process at many points, each as kill -9 at that point would leave them.

One process runs the script and stops at each point until its folder is copied. A killed process leaves what it has
written, so recovery finds in the copy what it would find after the kill, and the script runs once for all points.
"""

import os
import shutil
import signal
import time
from pathlib import Path

import msgspec

from crash.case_process import CaseSetup
from crash.evidence_log import LogEntry
from crash.fault_points import KILL_ENTRY


class Snapshot(msgspec.Struct, frozen=True):
    """A copy of the folder of a case, and how many seconds after the beginning of the case it was made."""

    folder: Path
    elapsed: float

    def restore(self, folder: Path) -> float:
        """Copy the files to the folder of a case, and return when it began by a clock that was stopped meanwhile."""
        shutil.rmtree(folder, ignore_errors=True)
        _copy_folder(self.folder, folder)
        return time.time() - self.elapsed


def take_snapshot(setup: CaseSetup, target: Path) -> tuple[int, Snapshot]:
    """Copy the folder of a process that has stopped; return the point and the snapshot."""
    at = msgspec.json.decode((setup.folder / KILL_ENTRY).read_bytes(), type=LogEntry).n
    elapsed = time.time() - setup.began
    _copy_folder(setup.folder, target)
    _add_kill_entry(target)
    return at, Snapshot(target, elapsed)


def compare_with_kill(setup: CaseSetup, child: int, target: Path) -> list[str]:
    """Copy the folder when the child process stops, kill the process, and return the files that are not the same."""
    if not os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
        return []  # it has ended before the point
    shutil.rmtree(target, ignore_errors=True)
    _copy_folder(setup.folder, target)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    copied, left = ({file.name: file.read_bytes() for file in each.iterdir()} for each in (target, setup.folder))
    _add_kill_entry(setup.folder)
    return [name for name in copied | left if copied.get(name) != left.get(name)]


def _copy_folder(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=shutil.copyfile)


def _add_kill_entry(folder: Path) -> None:
    """Add what a kill at this point would have recorded to the evidence."""
    entry = folder / KILL_ENTRY
    with (folder / "evidence").open("ab") as evidence:
        evidence.write(entry.read_bytes())
    entry.unlink()
