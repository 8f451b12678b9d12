"""Sandbox selection: the strongest one that works on this machine, or the reasons why none does."""

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, TypeAlias

from atlas_agents.builtin_tools.sandbox import bubblewrap, landlock
from atlas_agents.builtin_tools.sandbox.process import PATH, ProcessIO, Sandbox, SandboxCommand, SandboxProcess
from atlas_agents.core.errors import SandboxUnavailable


class Unconfined(Sandbox):
    """Runs commands without a sandbox, with resource limits where `prlimit` is installed."""

    name = "none"
    confines = False

    async def start(self, command: SandboxCommand, io: ProcessIO) -> SandboxProcess:
        limits = command.limits
        rlimits = [f"--cpu={limits.cpu}", f"--data={limits.memory}", f"--fsize={limits.file_size}", "--core=0", "--"]
        env = {"PATH": os.environ.get("PATH", PATH), "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}
        prlimit = shutil.which("prlimit")
        argv = [prlimit, *rlimits, *command.argv] if prlimit else list(command.argv)
        process = SandboxProcess(command, io)
        await process.open(argv, env={**env, **command.env}, cwd=str(command.cwd))
        return process


SandboxKind: TypeAlias = Literal["auto", "bubblewrap", "landlock", "wasm", "none"]
_PROBES: dict[str, Callable[[], Awaitable[Sandbox]]] = {"bubblewrap": bubblewrap.probe, "landlock": landlock.probe}
_working: dict[str, Sandbox] = {}


async def choose(kind: SandboxKind = "auto") -> Sandbox:
    """Return the sandbox of this kind, or raise SandboxUnavailable; only "none" returns one that does not confine.

    "auto" is the strongest one that works. "wasm" confines only code, so for commands it is the same as "auto". A
    sandbox that worked is cached; one that failed is tried again the next time.
    """
    if kind == "none":
        return Unconfined()
    failures: list[SandboxUnavailable] = []
    for name in tuple(_PROBES) if kind in ("auto", "wasm") else (kind,):
        try:
            if name not in _working:
                _working[name] = await _PROBES[name]()
            return _working[name]
        except SandboxUnavailable as failure:
            failures.append(failure)
        except TimeoutError:
            failures.append(SandboxUnavailable(f"{name} timed out", f"run a command with {name} to see why it hangs"))
    raise SandboxUnavailable(
        "; ".join(each.reason for each in failures), ", or ".join(each.remedy for each in failures)
    )


def describe_sandbox(
    sandbox: Sandbox | None,
    subject: str,
    folder: Path | str,
    *,
    network: bool = False,
    failure: SandboxUnavailable | None = None,
) -> str:
    """Describe for an approval request how a "command" or "code" is confined. A `sandbox` of None is WebAssembly."""
    if sandbox is None or sandbox.confines:
        name = "WebAssembly" if sandbox is None else sandbox.name.capitalize()
        claims = "; ".join(
            [
                "network allowed" if network else "no network",
                f"can write only to {folder}",
                "can read only there and installed programs",
                "cannot change other processes",
            ]
        )
        visible = f"\nNot hidden: {sandbox.not_hidden}" if sandbox is not None and sandbox.not_hidden else ""
        return f"Sandbox: {name} ({claims}){visible}"
    reason = f"{failure.reason}. To fix: {failure.remedy}" if failure else "the sandbox is set to 'none'"
    return (
        f"No sandbox: this {subject} can read and write everything your user account can, and use the network.\n"
        f"Reason: {reason}."
    )
