"""A gateway from settings, as `atlas serve` starts it: `setup_gateway.py HOME [PORT]`. It prints its port.

`HOME/setup.json` has the environment, and optionally a source and a checksum for the larger local model.
"""

import json
import sys
from pathlib import Path

import msgspec

from atlas_agents.app.serve import serve
from atlas_agents.config.load import load
from atlas_agents.core.paths import Environment
from atlas_agents.gateway.server import run
from atlas_agents.local.models import CATALOG, Url

BIG = "qwen2.5-coder-1.5b"


def main(home: Path, port: int) -> None:
    given = json.loads((home / "setup.json").read_text())
    if model := given.get("model"):
        sources = (Url(model["url"]),)
        CATALOG[BIG] = msgspec.structs.replace(
            CATALOG[BIG], size=model["size"], sha256=model["sha256"], sources=sources
        )
    servers = {f"{name}_BASE_URL": "http://127.0.0.1:9/v1" for name in ("OLLAMA", "LMSTUDIO", "VLLM", "LLAMACPP")}
    values = {"ATLAS_HOME": str(home), "HOME": str(home), **servers, **given.get("environment", {})}
    environment = Environment(values, dotenv=None)
    settings = load({"port": port, "host": "127.0.0.1"}, environment, home)
    run(serve(settings, environment=environment, on_ready=lambda served: print(served.gateway.port, flush=True)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
