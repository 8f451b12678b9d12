"""CPU seconds of eleven commands, ten of them against a running gateway with the scripted demo.

python bench/commands.py            measure this installation and print a Markdown table
python bench/commands.py OTHER_SRC  measure another checkout's `src` as well, taking turns, with the same packages
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

COMMANDS = (
    "--version",
    "sessions list",
    "agents",
    "tools",
    "usage",
    "users list",
    "mcp list",
    "config show",
    "token list",
    "models list",
    "ask hello",
)
RUNS = 8
SOURCE = str(Path(__file__).parent.parent / "src")


def start(source: str, arguments: list[str], folder: str) -> "subprocess.Popen[str]":
    own = {"ATLAS_HOME": f"{folder}/home", "ATLAS_PORT": "0", "ATLAS_MODEL": "demo", "HOME": folder}
    return subprocess.Popen(
        [sys.executable, "-m", "atlas_agents", *arguments],
        cwd=folder,
        env={**os.environ, **own, "PYTHONPATH": source},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def cpu_seconds(source: str, command: str, folder: str) -> float:
    """Return user and system time of one command; the gateway is not waited for, so it is not counted."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = start(source, command.split(), folder)
    output, _ = process.communicate(timeout=120)
    if process.returncode:
        raise SystemExit(f"atlas {command} failed:\n{output}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    sources = [*map(os.path.abspath, sys.argv[1:2]), SOURCE]
    with tempfile.TemporaryDirectory() as folder:
        gateway = start(SOURCE, ["serve", "--no-open"], folder)
        try:
            assert gateway.stdout is not None
            while "Press Ctrl-C" not in (line := gateway.stdout.readline()):
                if not line:
                    raise SystemExit("the gateway did not start")
            print(f"| command |{' before |' if len(sources) > 1 else ''} CPU seconds |\n|---|{'---|' * len(sources)}")
            for command in COMMANDS:
                taken = [[cpu_seconds(source, command, folder) for source in sources] for _ in range(RUNS)]
                best = " | ".join(f"{min(column):.2f}" for column in zip(*taken, strict=True))
                print(f"| `atlas {command}` | {best} |", flush=True)
        finally:
            gateway.terminate()
            gateway.wait()


if __name__ == "__main__":
    main()
