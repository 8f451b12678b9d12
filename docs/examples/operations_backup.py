"""Back up the database, lose it, and restore it with the `atlas` command."""

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ["ATLAS_HOME"] = str(Path("home").absolute())


def atlas(*words: str) -> str:
    command = [sys.executable, "-m", "atlas_agents", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


atlas("ask", "Hello!", "--session", "first")
copy = json.loads(atlas("store", "backup", "monday.db", "--json"))
print(f"{copy['sessions']} session, {copy['messages']} messages, {copy['openTurns']} open turns")

Path("home/atlas.db").write_bytes(b"not a database")
atlas("store", "restore", "monday.db", "--replace")
print(json.loads(atlas("sessions", "show", "first", "--json"))["messages"][-1]["parts"][0]["text"])
print(atlas("audit", "verify"), end="")
print(atlas("store", "prune", "--dry-run"), end="")
