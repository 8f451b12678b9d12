"""Help, version and start-up cost of the `atlas` command."""

import json
import os
import re
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer.main
from atlas_command import ATLAS, TIMEOUT, Home

from atlas_agents.cli.app import COMMANDS, app
from help_texts import PAGE, commands, filled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HEAVY = {
    "aiohttp",
    "asyncio",
    "griffe",
    "jsonschema_rs",
    "markdown_it",
    "mcp",
    "msgspec",
    "prompt_toolkit",
    "psycopg",
    "pydantic",
    "rich",
}
LOADED = f"""
import json, sys
from atlas_agents.cli.main import main
sys.argv = ["atlas", *sys.argv[1:]]
try:
    main()
finally:
    print(json.dumps(sorted({HEAVY!r} & set(sys.modules))), file=sys.stderr)
"""


def loaded_by(folder: Path, *arguments: str, **env: str) -> list[str]:
    """Return the heavy libraries that a command has imported at its end."""
    command = [sys.executable, "-c", LOADED, *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **env}, capture_output=True, encoding="utf-8", timeout=TIMEOUT
    )
    return json.loads(done.stderr.splitlines()[-1])


def cpu_seconds(home: Home, *command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=home.folder, env=home.environment(), check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_every_entry_point_prints_the_same_version(bare: Home) -> None:
    expected = f"atlas {version('atlas-agents')}\n"
    for command in ([ATLAS], [sys.executable, "-m", "atlas_agents"]):
        done = subprocess.run([*command, "--version"], cwd=bare.folder, capture_output=True, encoding="utf-8")
        assert (done.returncode, done.stdout) == (0, expected)
    assert bare.run("--version").stdout == expected


def test_command_without_arguments_shows_its_help(bare: Home) -> None:
    alone = bare.run()
    assert (alone.returncode, alone.stdout) == (0, bare.run("--help").stdout)
    group = bare.run("sessions")
    assert group.returncode == 2 and "Usage: atlas sessions" in group.stderr


def test_docs_show_the_help_of_every_command() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r'title="(atlas.*?) --help"', page)) == set(commands())
    assert filled(page) == page, "run: make texts"


def test_command_list_shows_the_first_help_line_of_each_command() -> None:
    root = typer.main.get_command(app)
    for name, entry in COMMANDS.items():
        command = root.get_command(None, name)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        assert str(command.help).splitlines()[0] == entry.help, name  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--version"], ()),
        (["--help"], ()),
        (["sessions", "--help"], ()),
        (["config", "show", "--json"], ("asyncio", "msgspec")),
        (["audit", "list", "--limit", "5"], ("aiohttp", "asyncio", "msgspec")),
        (["sessions", "list"], ("aiohttp", "asyncio", "griffe", "jsonschema_rs", "msgspec", "pydantic")),
    ],
    ids=" ".join,
)
def test_command_imports_only_what_it_needs(home: Home, arguments: list[str], allowed: tuple[str, ...]) -> None:
    if "--limit" in arguments:
        with home.gateway():
            assert set(loaded_by(home.folder, *arguments, **home.environment())) <= set(allowed)
    else:
        assert set(loaded_by(home.folder, *arguments, **home.environment())) <= set(allowed)


def test_help_costs_little_more_than_the_argument_parser(bare: Home) -> None:
    help: list[float] = []
    typer: list[float] = []
    for _ in range(5):  # alternating: the speed of the machine varies
        help.append(cpu_seconds(bare, ATLAS, "--help"))
        typer.append(cpu_seconds(bare, sys.executable, "-c", "import typer.core, typer.main"))
    assert min(help) < 2 * min(typer), (help, typer)


def test_version_costs_less_than_the_argument_parser(bare: Home) -> None:
    cost = min(cpu_seconds(bare, ATLAS, "--version") for _ in range(5))
    typer = min(cpu_seconds(bare, sys.executable, "-c", "import typer.core, typer.main") for _ in range(5))
    assert cost < typer * 1.2, (cost, typer)


def test_shell_completion_knows_the_commands(bare: Home) -> None:
    shown = bare.run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1", SHELL="/bin/bash")
    assert "complete" in shown.stdout + bare.run("--show-completion", SHELL="/bin/bash").stdout
    done = bare.run(_ATLAS_COMPLETE="complete_bash", COMP_WORDS="atlas ses", COMP_CWORD="1")
    assert "sessions" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chat", "--modle", "x"], "--model"),
        (["sessions", "list", "--limit", "many"], "Invalid value for '--limit'"),
        (["sessions", "list", "--limit", "501"], "Invalid value for '--limit'"),
        (["sessions", "show"], "Missing argument 'KEY'"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
    ids=str,
)
def test_usage_error_exits_with_code_2(bare: Home, arguments: list[str], message: str) -> None:
    done = bare.run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_version_works_in_a_deleted_folder(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && {ATLAS} --version"
    done = subprocess.run(["sh", "-c", command], capture_output=True, encoding="utf-8", timeout=TIMEOUT)
    assert done.returncode == 0


def test_missing_package_is_reported_in_one_line_with_code_2(bare: Home) -> None:
    stand_in = bare.folder / "plugins" / "uvicorn.py"
    stand_in.parent.mkdir()
    stand_in.write_text("raise ModuleNotFoundError(\"No module named 'uvicorn'\", name='uvicorn')\n")
    with bare.start("ask", "Hello") as process:  # a process: uvicorn is already imported here
        _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 2
    assert errors == "atlas: uvicorn is not installed; run: pip install 'atlas-agents[gateway]'\n"
