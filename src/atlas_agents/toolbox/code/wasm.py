"""Python in WebAssembly, by `pyeryx`: no system calls but for one folder, and none of your packages either."""

import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec

from atlas_agents.core.errors import SandboxUnavailable
from atlas_agents.toolbox.code.interpreter import Interpreter
from atlas_agents.toolbox.sandbox.ports import Job, Limits
from atlas_agents.toolbox.sandbox.unconfined import Unconfined

NAME = "wasm"
REMEDY = "pip install 'atlas-agents[wasm]' on Python 3.12 or newer"
_RUNNER = Path(__file__).with_name("wasm_runner.py")
_OWN_MEMORY = 512 * 1024 * 1024  # of what runs WebAssembly, besides what the code uses


def installed() -> bool:
    return find_spec("eryx") is not None


async def start(folder: Path, limits: Limits) -> Interpreter:
    """An interpreter whose process we end as any other; what confines the code is WebAssembly, not the system."""
    package = find_spec("eryx")
    if package is None or package.origin is None:
        raise SandboxUnavailable("pyeryx is not installed", REMEDY)
    job = Job(
        argv=(sys.executable, "-I", "-B", str(_RUNNER), str(Path(package.origin).parent.parent), str(folder)),
        cwd=folder,
        writable=folder,
        limits=msgspec.structs.replace(limits, memory=limits.memory + _OWN_MEMORY),
    )
    return await Interpreter.open(Unconfined(), job)
