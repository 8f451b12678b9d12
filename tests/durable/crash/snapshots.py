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
        shutil.copytree(self.folder, folder)
        return time.time() - self.elapsed


def take_snapshots(setup: CaseSetup, child: int, target: Path) -> dict[int, Snapshot]:
    """Copy the folder whenever the child process stops, until it ends. Return the snapshots by point."""
    shutil.rmtree(target, ignore_errors=True)
    taken = dict[int, Snapshot]()
    while os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
        killed = (setup.folder / KILL_ENTRY).read_bytes()
        at = msgspec.json.decode(killed, type=LogEntry).n
        taken[at] = Snapshot(target / str(at), time.time() - setup.began)
        shutil.copytree(setup.folder, taken[at].folder, ignore=shutil.ignore_patterns(KILL_ENTRY))
        with (taken[at].folder / "evidence").open("ab") as evidence:
            evidence.write(killed)
        os.kill(child, signal.SIGCONT)
    return taken
