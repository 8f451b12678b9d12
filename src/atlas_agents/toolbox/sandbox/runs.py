"""What all sandboxes have in common: to run something is to start it and to wait for its end."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from atlas_agents.toolbox.sandbox.ports import Job, Limits, OnOutput, Outcome, Running


class Runs:
    """`run` for whoever has `start`."""

    async def start(
        self,
        job: Job,
        *,
        stdin: bytes | socket.socket | None = None,
        on_output: OnOutput | None = None,
        spill: Path | None = None,
        merge: bool = False,
    ) -> Running:
        raise NotImplementedError

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        writable: Path | None = None,
        read_only: Sequence[Path] = (),
        masked: Sequence[Path] = (),
        programs: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        limits: Limits | None = None,
        on_output: OnOutput | None = None,
        spill: Path | None = None,
        merge: bool = False,
        network: bool = False,
    ) -> Outcome:
        """Run it to its end. `merge` writes stderr into stdout; `spill` keeps all that was written, in a file."""
        job = Job(
            argv=tuple(argv),
            cwd=cwd,
            writable=writable,
            read_only=tuple(read_only),
            masked=tuple(masked),
            programs=tuple(programs),
            env=env or {},
            limits=limits or Limits(),
            network=network,
        )
        running = await self.start(job, stdin=stdin, on_output=on_output, spill=spill, merge=merge)
        return await running.wait()
