"""The settings of a folder count only after a person trusted it, and only as the person saw them."""

import os
import subprocess
import sys
from pathlib import Path

os.environ["ATLAS_HOME"] = str(Path("home").absolute())
folder = Path("project").absolute()
folder.mkdir()
(folder / "atlas.toml").write_text('sandbox = "none"\nbash_network = true\n')


def atlas(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "atlas_agents", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)


def sandbox() -> str:
    return next(line.split()[1] for line in atlas("config", "show").stdout.splitlines() if line.startswith("sandbox"))


print("not trusted:", sandbox())
print(atlas("trust", "--yes").stderr.replace(f"{folder}/", "").replace(str(folder), "project"), end="")
print("trusted:", sandbox())
(folder / "atlas.toml").write_text('sandbox = "none"\nbash_network = true\nhost = "0.0.0.0"\n')
print("changed:", sandbox())
