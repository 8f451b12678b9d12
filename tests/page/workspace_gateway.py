"""A gateway from settings with a workspace of its own: `workspace_gateway.py HOME [PORT]`. It prints its port first."""

import asyncio
import json
import sys
from pathlib import Path

from atlas_agents.app.serve import serve
from atlas_agents.config.load import load
from atlas_agents.core.paths import Environment

AGENTS = """# Agents

Ours, since 2024.

## archy

Name: Archy
Model: anthropic/claude-opus-4-6
Description: Reads the archive.
Temperature: 0.3
Tools: current_time, bash, file_write
Hands off to: binky

## binky

Model: demo
Description: Answers questions about refunds.
Role: finance
Tools: current_time, bash
"""
MARA = "mara-0123456789abcdefghijklmnopqrstuvwxyz"


def main(home: Path, port: int) -> None:
    (home / "workspace").mkdir(exist_ok=True)
    file = home / "workspace" / "AGENTS.md"
    if not file.exists():
        file.write_text(AGENTS)
    scopes = ["read", "write", "approve", "admin"]
    (home / "tokens.json").write_text(json.dumps({"mara": {"token": MARA, "scopes": scopes, "sessions": "all"}}))
    environment = Environment({"ATLAS_HOME": str(home), "HOME": str(home), "ATLAS_MODEL": "demo"}, dotenv=None)
    settings = load({"port": port}, environment, home)
    asyncio.run(
        serve(settings, environment=environment, on_ready=lambda served: print(served.gateway.port, flush=True))
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0)
