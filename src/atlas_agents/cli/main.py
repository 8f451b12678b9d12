"""Entry point of the `atlas` command."""

import sys

from atlas_agents.cli import version_text


def main() -> None:
    """Run the command and exit with its code."""
    if sys.argv[1:] == ["--version"]:  # answered without loading the command-line parser
        print(version_text())
        return
    from atlas_agents.cli.app import app

    try:
        app(prog_name="atlas")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("atlas_agents"):
            raise
        print(f"atlas: {error.name} is not installed; run: pip install 'atlas-agents[gateway]'", file=sys.stderr)
        raise SystemExit(2) from None
