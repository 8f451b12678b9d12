"""Help, version and start of the `atlas` command."""

import json
import os
import re
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from atlas_command import ATLAS, PATIENCE, Home

from help_texts import PAGE, commands, filled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each starts processes of its own

LOOK = """
import json, sys
from atlas_agents.cli.main import main
sys.argv = ["atlas", "--help"]
try:
    main()
finally:
    heavy = {"aiohttp", "asyncio", "griffe", "jsonschema_rs", "markdown_it", "msgspec", "prompt_toolkit", "pydantic"}
    heavy.add("rich")
    print(json.dumps(sorted(heavy & set(sys.modules))), file=sys.stderr)
"""


def test_both_ways_of_starting_it_tell_the_same_version(bare: Home) -> None:
    as_module = [sys.executable, "-m", "atlas_agents", "--version"]
    done = subprocess.run(as_module, cwd=bare.folder, capture_output=True, encoding="utf-8", timeout=PATIENCE)
    assert bare.run("--version").stdout == done.stdout == f"atlas {version('atlas-agents')}\n"


def test_without_a_command_it_shows_its_help(bare: Home) -> None:
    alone = bare.run()
    assert (alone.returncode, alone.stdout) == (0, bare.run("--help").stdout)


def test_the_docs_show_the_help_texts_of_every_command_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r'title="(atlas.*?) --help"', page)) == set(commands())
    assert filled(page) == page, "say: make texts"


def test_the_help_loads_nothing_heavy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
    )
    assert json.loads(done.stderr) == []


def test_the_help_costs_little_more_than_what_reads_its_options(bare: Home) -> None:
    def spent(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=bare.folder, env=bare.environment(), check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    help: list[float] = []
    typer: list[float] = []
    for _ in range(5):  # in turns: a machine is not as fast at all times
        help.append(spent(ATLAS, "--help"))
        typer.append(spent(sys.executable, "-c", "import typer.core, typer.main"))
    assert min(help) < 2 * min(typer), (help, typer)


def test_a_shell_can_complete_it(bare: Home) -> None:
    shown = bare.run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1", SHELL="/bin/bash")
    assert "complete" in shown.stdout + bare.run("--show-completion", SHELL="/bin/bash").stdout
    done = bare.run(_ATLAS_COMPLETE="complete_bash", COMP_WORDS="atlas ses", COMP_CWORD="1")
    assert "sessions" in done.stdout


def test_an_unknown_option_is_code_2(bare: Home) -> None:
    done = bare.run("chat", "--modle", "x")
    assert done.returncode == 2
    assert "--model" in done.stderr


def test_it_can_be_started_from_a_folder_that_is_gone(bare: Home, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {gone} && rmdir {gone} && {ATLAS} --version"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, encoding="utf-8", timeout=PATIENCE, env=os.environ
    )
    assert done.returncode == 0


def test_what_is_not_installed_is_one_sentence_and_code_2(bare: Home) -> None:
    stand_in = bare.folder / "plugins" / "uvicorn.py"
    stand_in.parent.mkdir()
    stand_in.write_text("raise ModuleNotFoundError(\"No module named 'uvicorn'\", name='uvicorn')\n")
    done = bare.run("ask", "Hello")
    assert done.returncode == 2
    assert done.stderr == "atlas: uvicorn is not installed: say pip install 'atlas-agents[gateway]'\n"
