"""The `atlas` command: its entry points; one module per group of commands."""

import sys

from atlas_agents.core import install_command, package_version


def main() -> None:
    """Run the command and exit with its code."""
    if sys.argv[1:] == ["--version"]:  # answered without loading the command-line parser
        print(f"atlas {package_version()}")
        return
    from atlas_agents.cli.app import app

    try:
        code = app.run(sys.argv[1:], "atlas")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("atlas_agents"):
            raise
        print(f"atlas: {error.name} is not installed; run: {install_command('all')}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(code)


def main_or_serve() -> None:
    """Start the gateway if there are no arguments: `uvx atlas-agents` names the package, not a command."""
    if not sys.argv[1:]:
        sys.argv.append("serve")
    main()
