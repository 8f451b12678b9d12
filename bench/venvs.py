"""Adapters and their virtual environments: one each, because their dependencies conflict."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BENCH_FOLDER = Path(__file__).resolve().parent
FIRST = ("baseline", "bare", "ours")  # first in every table, in this order; all others are peers

_LIST_CONTENTS = """
import json, os, sysconfig
from importlib.metadata import distributions
root = sysconfig.get_path("purelib")
size = 0
for folder, children, files in os.walk(root):
    children[:] = [c for c in children if c != "__pycache__" and not (folder == root and c.startswith("pip"))]
    size += sum(os.lstat(os.path.join(folder, file)).st_size for file in files)
versions = {d.metadata["Name"]: d.version for d in distributions() if d.metadata["Name"] != "pip"}
print(json.dumps({"mb": size / 1e6, "versions": versions}))
"""


def adapter_names() -> list[str]:
    """Return all adapters in the order of the tables."""
    found = {path.stem for path in (BENCH_FOLDER / "adapters").glob("[!_]*.py")}
    return [*(name for name in FIRST if name in found), *sorted(found.difference(FIRST))]


def constant(adapter: str, name: str, default: Any = None) -> Any:
    """Return a constant of an adapter without importing it, since its packages are in another environment."""
    for node in ast.parse((BENCH_FOLDER / "adapters" / f"{adapter}.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    return default


def default_folder() -> Path:
    """Return a folder per Python version, so that all figures of a run come from one Python."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "atlas-agents-bench" / f"python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Venvs:
    """Folder of the virtual environments; they use the Python that runs this."""

    folder: Path

    def python(self, adapter: str) -> str:
        return str(self.folder / adapter / "bin" / "python")

    def install(self, adapter: str) -> None:
        """Create the environment if it is missing, and update its packages."""
        ready = self._ready(adapter)
        ready.unlink(missing_ok=True)
        packages = [os.path.expandvars(package) for package in constant(adapter, "PIP")]
        print(f"installing {adapter}", file=sys.stderr)
        try:
            if not Path(self.python(adapter)).exists():
                subprocess.run([sys.executable, "-m", "venv", self.folder / adapter], check=True)
            subprocess.run([self.python(adapter), "-m", "pip", "install", "-q", "-U", *packages], check=True)
        except subprocess.CalledProcessError as error:
            raise SystemExit(f"cannot install {adapter} (exclude it with --only): {error}") from error
        ready.touch()

    def install_missing(self, adapter: str) -> None:
        """Install missing environments, and reinstall packages from a checkout, which may have changed."""
        from_checkout = any("$" in package for package in constant(adapter, "PIP"))
        if from_checkout or not self._ready(adapter).exists():
            self.install(adapter)

    def contents(self, adapter: str) -> dict[str, Any]:
        """Return the installed megabytes and the version of each package."""
        return json.loads(subprocess.check_output([self.python(adapter), "-c", _LIST_CONTENTS]))

    def _ready(self, adapter: str) -> Path:
        return self.folder / adapter / "bench-ready"
