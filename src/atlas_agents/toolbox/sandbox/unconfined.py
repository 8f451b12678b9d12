"""No sandbox at all: limits, a watch and a clean environment, and everything else that the user may do."""

import os
import shutil
import socket
from pathlib import Path

from atlas_agents.toolbox.sandbox.ports import PATH, Job, OnOutput, Running
from atlas_agents.toolbox.sandbox.process import Confined
from atlas_agents.toolbox.sandbox.runs import Runs


class Unconfined(Runs):
    """Runs commands as they are. Only who was asked for it by name may use it."""

    name = "none"
    confines = False

    async def start(
        self,
        job: Job,
        *,
        stdin: bytes | socket.socket | None = None,
        on_output: OnOutput | None = None,
        spill: Path | None = None,
        merge: bool = False,
    ) -> Running:
        prlimit = shutil.which("prlimit")
        limits = job.limits
        ceilings = [f"--cpu={limits.cpu}", f"--data={limits.memory}", f"--fsize={limits.file_size}", "--core=0", "--"]
        process = Confined(job, on_output=on_output, spill=spill)
        env = {"PATH": os.environ.get("PATH", PATH), "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8", **job.env}
        argv = [prlimit, *ceilings, *job.argv] if prlimit else list(job.argv)
        await process.open(argv, env=env, stdin=stdin, merge=merge, cwd=str(job.cwd))
        return process
