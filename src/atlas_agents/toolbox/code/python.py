"""Which Python code runs on, and what of the disk that needs."""

import asyncio
import json
import os
import sys
from pathlib import Path

import msgspec

from atlas_agents.core.calling import in_thread
from atlas_agents.core.errors import SandboxUnavailable
from atlas_agents.toolbox.sandbox.ports import PATH

_ASK = """
import json, os, sys
from importlib.util import find_spec
found = find_spec("numpy")
compiled = not (found and found.origin) or os.path.isdir(os.path.join(os.path.dirname(found.origin), "__pycache__"))
print(json.dumps([sys.prefix, sys.base_prefix, os.path.realpath(sys.executable), compiled]))
"""
_PATIENCE = 10.0


class Python(msgspec.Struct, frozen=True):
    """An interpreter, and the folders that it and its packages lie in.

    `compiled` is False where its packages come as source only; each import would compile them anew.
    """

    executable: str
    folders: tuple[Path, ...]
    compiled: bool = True


async def found(path: Path | None) -> Python:
    """The one that runs us, or another, by the path of its executable or of its virtual environment: it is asked where
    it lives."""
    executable = sys.executable if path is None else str(path)
    if await in_thread(os.path.isdir, executable):
        executable = os.path.join(executable, "bin", "python")
    try:
        process = await asyncio.create_subprocess_exec(
            *(executable, "-I", "-c", _ASK),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": PATH},
        )
        async with asyncio.timeout(_PATIENCE):
            said, _ = await process.communicate()
        prefix, base, real, compiled = json.loads(said)
    except (OSError, TimeoutError, ValueError) as error:
        reason = f"{executable} is no Python that runs ({type(error).__name__})"
        raise SandboxUnavailable(reason, "set code_python to one, or leave it out") from None
    return Python(executable, _folders(prefix, base, real), compiled)


def _folders(prefix: str, base: str, real: str) -> tuple[Path, ...]:
    """Those that a sandbox does not show anyway."""
    named = {Path(prefix), Path(base), Path(prefix).resolve(), Path(base).resolve(), Path(real).parent}
    return tuple(sorted(path for path in named if path != Path("/") and not path.is_relative_to("/usr")))
