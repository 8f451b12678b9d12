"""Help, version and start-up cost of the `atlas` command."""

import json
import os
import pty
import re
import resource
import select
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from atlas_command import ATLAS, TIMEOUT, Home

from atlas_agents.cli.app import COMMANDS, app
from help_texts import PAGE, commands, filled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
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
    "typer",
    "uvicorn",
}
LOADED = """
import json, sys
before = set(sys.modules)
from atlas_agents.cli import main
sys.argv = ["atlas", *sys.argv[1:]]
try:
    main()
finally:
    print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)
"""


def loaded_by(folder: Path, *arguments: str, **env: str) -> set[str]:
    """Return the modules that a command has imported at its end."""
    command = [sys.executable, "-c", LOADED, *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **env}, capture_output=True, encoding="utf-8", timeout=TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


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
    assert group.returncode == 2 and "usage: atlas sessions" in group.stderr


def test_docs_show_the_help_of_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r'title="(atlas.*?) --help"', page)) == set(commands())
    assert filled(page) == page, "run: make texts"


def test_command_list_shows_the_first_help_line_of_each_command() -> None:
    for name, entry in COMMANDS.items():
        assert app.find(name).help.splitlines()[0] == entry.help, name


SERVER_PACKAGES = ("agents", "providers", "storage", "tools", "gateway.", "app.app", "config")
SERVER = tuple(f"atlas_agents.{name}" for name in SERVER_PACKAGES)
CLIENT_COMMANDS = [
    "sessions list",
    "agents",
    "tools",
    "usage",
    "approvals list",
    "jobs list",
    "schedule list",
    "audit list",
    "mcp list",
]


def test_commands_without_a_gateway_import_little(home: Home) -> None:
    for arguments, limit in (["--version"], 45), (["--help"], 90), (["sessions", "--help"], 90):
        modules = loaded_by(home.folder, *arguments, **home.environment())
        assert not modules & HEAVY, arguments
        assert len(modules) <= limit, (arguments, len(modules))


SETTINGS_COMMANDS = ["config show", "token list"]
"""Commands that read files of the home folder, and so the settings."""
UNUSED = tuple(
    f"atlas_agents.{name}" for name in ("app.app", "builtin_tools.bash", "providers.registry", "tools.pipeline")
)


def test_client_commands_import_neither_the_server_nor_an_http_client(home: Home) -> None:
    """Modules are counted because CPU time depends on the machine: 170 of them take about 0.15 s, 290 about 0.25 s."""
    with home.gateway():
        loaded = {
            name: loaded_by(home.folder, *name.split(), **home.environment())
            for name in (*CLIENT_COMMANDS, *SETTINGS_COMMANDS, "models list", "ask hello")
        }
    for name in CLIENT_COMMANDS:
        assert not loaded[name] & (HEAVY - {"msgspec"}), name
        assert _of_server(loaded[name], SERVER) == [], name
        assert len(loaded[name]) <= 190, (name, len(loaded[name]))
    for name, limit in [*((name, 260) for name in SETTINGS_COMMANDS), ("models list", 180), ("ask hello", 300)]:
        assert not loaded[name] & (HEAVY - {"asyncio", "msgspec"}), name
        assert _of_server(loaded[name], UNUSED) == [], name
        assert len(loaded[name]) <= limit, (name, len(loaded[name]))
    assert _of_server(loaded["ask hello"], (*UNUSED, "atlas_agents.config", "atlas_agents.agents")) == []
    assert not loaded["ask hello"] & {f"atlas_agents.gateway.protocol.{name}" for name in ("admin", "methods")}


def _of_server(modules: set[str], packages: tuple[str, ...]) -> list[str]:
    return [name for name in modules if name.startswith(packages) and "gateway.protocol" not in name]


def test_help_costs_less_than_importing_typer(bare: Home) -> None:
    help = min(cpu_seconds(bare, ATLAS, "--help") for _ in range(3))
    typer = min(cpu_seconds(bare, sys.executable, "-c", "import typer.core, typer.main") for _ in range(3))
    assert help < typer, (help, typer)


def test_shell_completion_knows_commands_and_options(bare: Home) -> None:
    def candidates(*words: str) -> list[str]:
        return bare.run("__complete", *words).stdout.splitlines()

    assert candidates("doc") == ["doctor\tDiagnose problems with this installation."]
    assert candidates("sessions", "expo") == ["export\tWrite a session to standard output as JSON lines."]
    assert candidates("sessions", "list", "--a") == ["--archived\tList archived sessions."]
    assert [line.partition("\t")[0] for line in candidates("--")] == [
        "--version",
        "--install-completion",
        "--show-completion",
        "--help",
    ]
    assert len(candidates()) == len(candidates("")) == len(COMMANDS)
    assert candidates("sessions", "show", "") == []


def test_bash_completes_with_the_script_of_the_command(bare: Home) -> None:
    lines = [
        f'COMP_WORDS=({words}); COMP_CWORD=2; _atlas_completion atlas; echo "${{COMPREPLY[@]}}"'
        for words in ("atlas sessions ren", 'atlas test ""')
    ]
    done = subprocess.run(
        ["bash", "-c", "; ".join([f"source <({ATLAS} completion bash)", *lines])],
        env=bare.environment(PATH=f"{Path(ATLAS).parent}{os.pathsep}{os.environ['PATH']}"),
        capture_output=True,
        encoding="utf-8",
    )
    assert (done.stdout, done.stderr) == ("rename\ncrash\n", "")
    assert bare.run("--show-completion", SHELL="/bin/zsh").stdout.startswith("#compdef atlas")
    assert bare.run("completion", "tcsh").returncode == 2
    assert bare.run("--install-completion", SHELL="/bin/bash").returncode == 0
    assert (bare.folder / ".bashrc").read_text() == "source ~/.bash_completions/atlas.sh\n"
    assert "_atlas_completion" in (bare.folder / ".bash_completions/atlas.sh").read_text()


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_with_the_script_of_the_command(bare: Home) -> None:
    lines = ("atlas sessions ren", "atlas models list --a", "atlas ask --file atlas.t", "atlas test ")
    (bare.folder / "atlas.toml").touch()
    script = "; ".join(["atlas completion fish | source", *(f'complete -C "{line}"' for line in lines)])
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        cwd=bare.folder,
        env=bare.environment(PATH=f"{Path(ATLAS).parent}{os.pathsep}{os.environ['PATH']}"),
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT,
    )
    found = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert (found[:3], done.stderr) == (["rename", "--all", "atlas.toml"], "")
    assert "crash" in found[3:]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_with_the_installed_script(bare: Home) -> None:
    """zsh reports that it reads keys, and Ctrl-G prints the line as completed."""
    assert bare.run("--install-completion", SHELL="/bin/zsh").returncode == 0
    with (bare.folder / ".zshrc").open("a") as file:
        file.write('PS1=; show() { print -r -- "<$BUFFER>" }; zle -N show; zle -N zle-line-init show\n')
        file.write("bindkey '^G' show\n")
    (bare.folder / "atlas.toml").touch()
    ours, theirs = pty.openpty()
    env = bare.environment(PATH=f"{Path(ATLAS).parent}{os.pathsep}{os.environ['PATH']}", TERM="dumb")
    zsh = subprocess.Popen(["zsh", "-d", "-i"], cwd=bare.folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        shown = b""
        for line in ("", "atlas sessions ren", "atlas models list --a", "atlas ask --file atlas.t"):
            before = shown.count(b">")
            os.write(ours, f"{line}\t\x07\x15".encode() if line else b"")
            while shown.count(b">") == before and select.select([ours], [], [], TIMEOUT)[0]:
                shown += os.read(ours, 65536)
    finally:
        zsh.kill()
        zsh.wait(TIMEOUT)
        os.close(ours)
    found = re.findall("<(.*?) ?>", shown.decode())
    assert found == ["", "atlas sessions rename", "atlas models list --all", "atlas ask --file atlas.toml"], shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chat", "--modle", "x"], "no such option: --modle; did you mean --model?"),
        (["sessions", "list", "--limit", "many"], "argument --limit: expected an integer with 1<=x<=500, got 'many'"),
        (["sessions", "list", "--limit", "501"], "argument --limit: expected an integer with 1<=x<=500, got '501'"),
        (["sessions", "list", "--limit"], "argument --limit: expected one argument"),
        (["sessions", "show"], "missing KEY"),
        (["sessions", "show", "a", "b"], "unexpected argument: b"),
        (["eval", "add", "run"], "missing --to FILE"),
        (["sesions"], "no such command: sesions; did you mean sessions?"),
        (["nonsense"], "no such command: nonsense"),
        (["--nonsense"], "no such option: --nonsense"),
        (["--versoin"], "no such option: --versoin; did you mean --version?"),
        (["--version", "chat"], "unexpected argument: chat"),
    ],
    ids=str,
)
def test_usage_error_exits_with_code_2(bare: Home, arguments: list[str], message: str) -> None:
    done = bare.run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_words_of_a_server_command_are_arguments_unless_they_are_options_of_ours() -> None:
    words = ["db", "npx", "-y", "pkg", "--env", "A=1", "--network", "--verbose", "--", "run", "--", "--env"]
    assert app.find("mcp").find("add").parse(words, "atlas mcp add") == {
        "server": "db",
        "command": ["npx", "-y", "pkg", "--verbose", "run", "--", "--env"],
        "env": ["A=1"],
        "network": True,
    }


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
    assert errors == "atlas: uvicorn is not installed; run: pip install 'atlas-agents[all]'\n"
