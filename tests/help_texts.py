"""The help texts of the command as its page shows them; run as a script (`make texts`) it writes them there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs/reference/cli.md"
_BLOCK = re.compile(r'(^```text title="(atlas.*?--help)"\n).*?(^```$)', re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every command there is: `atlas`, `atlas chat`, `atlas sessions`, `atlas sessions list` …"""
    import typer

    from atlas_agents.cli.main import app

    return list(_named("atlas", typer.main.get_command(app)))


def _named(name: str, command: Any) -> Iterator[str]:
    yield name
    for each in command.list_commands(None) if hasattr(command, "list_commands") else ():
        inner = command.get_command(None, each)
        if not inner.hidden:  # else another spelling of one that is shown
            yield from _named(f"{name} {each}", inner)


def filled(page: str) -> str:
    """The page with every block that is titled with a command holding what that command prints."""
    return _BLOCK.sub(lambda block: block[1] + _help(block[2]) + block[3], page)


def _help(command: str) -> str:
    """On a terminal of 80 columns."""
    from typer.testing import CliRunner

    from atlas_agents.cli.main import app

    told = CliRunner().invoke(app, command.split()[1:], prog_name="atlas", terminal_width=78)
    assert told.exit_code == 0, told.output
    return told.stdout


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
