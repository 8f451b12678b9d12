"""Which sandbox holds here: the strongest that really ran something, or why there is none."""

import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, TypeAlias

from atlas_agents.builtin_tools.sandbox import bubblewrap, landlock
from atlas_agents.builtin_tools.sandbox.base import PATH, OnOutput, RunMixin, Sandbox, SandboxCommand, SandboxProcess
from atlas_agents.builtin_tools.sandbox.process import Confined
from atlas_agents.core.errors import SandboxUnavailable


class Unconfined(RunMixin):
    """Runs commands as they are. Only who was asked for it by name may use it."""

    name = "none"
    confines = False

    async def start(
        self,
        job: SandboxCommand,
        *,
        stdin: bytes | socket.socket | None = None,
        on_output: OnOutput | None = None,
        spill: Path | None = None,
        merge: bool = False,
    ) -> SandboxProcess:
        prlimit = shutil.which("prlimit")
        limits = job.limits
        ceilings = [f"--cpu={limits.cpu}", f"--data={limits.memory}", f"--fsize={limits.file_size}", "--core=0", "--"]
        process = Confined(job, on_output=on_output, spill=spill)
        env = {"PATH": os.environ.get("PATH", PATH), "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8", **job.env}
        argv = [prlimit, *ceilings, *job.argv] if prlimit else list(job.argv)
        await process.open(argv, env=env, stdin=stdin, merge=merge, cwd=str(job.cwd))
        return process


Kind: TypeAlias = Literal["auto", "bubblewrap", "landlock", "wasm", "none"]
_PROBES: dict[str, Callable[[], Awaitable[Sandbox]]] = {"bubblewrap": bubblewrap.probe, "landlock": landlock.probe}
_found: dict[str, Sandbox] = {}


async def choose(kind: Kind = "auto") -> Sandbox:
    """The sandbox of this kind; `auto` is the strongest that works. Never less than was asked for, and never none
    unless it was asked for by name. `wasm` holds code only; for commands it is `auto`. What works is remembered, what
    does not is tried again each time."""
    if kind == "none":
        return Unconfined()
    wanted = tuple(_PROBES) if kind in ("auto", "wasm") else (kind,)
    tried: list[SandboxUnavailable] = []
    for name in wanted:
        try:
            if name not in _found:
                _found[name] = await _PROBES[name]()
            return _found[name]
        except SandboxUnavailable as missing:
            tried.append(missing)
        except TimeoutError:
            tried.append(SandboxUnavailable(f"{name} did not answer", "look at what holds it up"))
    raise SandboxUnavailable("; ".join(each.reason for each in tried), ", or ".join(each.remedy for each in tried))
