"""Run the `atlas` command in a home folder of its own, in this process, as a process, or in a terminal."""

import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import fork_server
from atlas_agents.cli import main
from checks import TIMEOUT
from model_server import ModelRequest, ModelServer, Reply
from terminal import Terminal

ATLAS = str(Path(sys.executable).parent / "atlas")
PROGRAM = str(Path(__file__).parent.parent / "atlas_program.py")
CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"
STORY = "Once upon a time " + " ".join(f"there was word {number}" for number in range(150))
AGENTS = """\
# Agents

## assistant

Model: http/rules-1
Description: Answers.

## poet

Model: http/rules-2
Description: Rhymes.
"""
PLUGIN = '''\
import asyncio
from pathlib import Path
from atlas_agents import tool


@tool
async def act(command: str, times: int = 1) -> str:
    """Do something."""
    with Path("acted").open("a") as file:
        file.write(f"{command!r} {times}\\n")
    return f"did {command!r}"


@tool(effect="pure")
async def fail(input: str) -> str:
    """Fail."""
    raise RuntimeError(input)


@tool(effect="pure")
async def hold() -> str:
    """Wait until a file exists."""
    while not Path("released").exists():
        await asyncio.sleep(0.02)
    return "released"


tools = [act, fail, hold]
'''
POLICY = """\
[tools."demo/act"]
ask = ["*"]
"""


@dataclass
class Home:
    """A working folder with a home folder, and the environment of the commands that run there."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def path(self) -> Path:
        return self.folder / "home"

    def environment(self, **env: str) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ATLAS_", "OPENAI_", "ANTHROPIC_"))
        }
        own = {
            "ATLAS_HOME": str(self.path),
            "ATLAS_PORT": "0",
            "ATLAS_TRUSTED_FOLDERS": str(self.folder),
            "HOME": str(self.folder),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "/nowhere",
            "COLUMNS": "80",
            "PYTHONIOENCODING": "utf-8",
            "PYTHONPATH": os.pathsep.join([str(self.folder / "plugins"), os.environ.get("PYTHONPATH", "")]),
        }
        return {**inherited, **own, **self.env, **env}

    def run(self, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run the command in this process, without a terminal. Much cheaper than `start`."""
        code: object = 0
        with ExitStack() as stack:
            inputs, output, errors = (
                stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", newline="")) for _ in range(3)
            )
            inputs.write(stdin)
            inputs.seek(0)
            stack.enter_context(_as_process(self.folder, self.environment(**env), [*arguments]))
            stack.enter_context(_streams(inputs, output, errors))
            try:
                main()
            except SystemExit as exit:
                code = exit.code or 0
            written = [_written(file) for file in (output, errors)]
        assert isinstance(code, int)
        return subprocess.CompletedProcess(["atlas", *arguments], code, *written)

    def start(self, *arguments: str, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
        """Start the command as a process: for signals, pipes and processes that run side by side."""
        return subprocess.Popen(
            [ATLAS, *arguments],
            cwd=self.folder,
            env=self.environment(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def terminal(self, *arguments: str, rows: int = 40, columns: int = 100, **env: str) -> Terminal:
        return Terminal([PROGRAM, *arguments], self.environment(**env), self.folder, rows=rows, columns=columns)

    @contextmanager
    def gateway(self, *arguments: str, **env: str) -> Generator["ServeProcess"]:
        """`atlas serve` as a process, once it is ready."""
        process = ServeProcess(self, arguments, env)
        process.start()
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _as_process(folder: Path, environment: Mapping[str, str], arguments: list[str]) -> Generator[None]:
    """Set what a process would start with, and undo what the command changed: variables, modules, loggers."""
    before = dict(os.environ), os.getcwd(), sys.argv, [*sys.path], set(sys.modules)
    loggers = [logging.getLogger(name) for name in ("", "uvicorn.error", "procrastinate")]
    levels, handlers = [logger.level for logger in loggers], [*loggers[0].handlers]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["atlas", *arguments]
    plugins = [path for path in environment["PYTHONPATH"].split(os.pathsep) if path and path not in sys.path]
    sys.path[:0] = plugins
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before[0])
        os.chdir(before[1])
        sys.argv, sys.path[:] = before[2], before[3]
        for name in set(sys.modules) - before[4]:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(tuple(plugins)):
                del sys.modules[name]
        loggers[0].handlers[:] = handlers
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _streams(inputs: Any, output: Any, errors: Any) -> Generator[None]:
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = inputs, output, errors
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def _written(file: IO[str]) -> str:
    file.flush()
    file.seek(0)
    return file.read()


class ServeProcess:
    """An `atlas serve` process that can be killed and started again in the same home folder."""

    def __init__(self, home: Home, arguments: tuple[str, ...], env: dict[str, str]) -> None:
        self._home = home
        self._arguments = arguments
        self._env = env
        self.process: fork_server.Program | None = None
        self.output = ""

    def start(self) -> None:
        self.output = ""
        env = self._home.environment(**self._env)
        self.process = fork_server.Program(PROGRAM, "serve", *self._arguments, cwd=self._home.folder, env=env)
        assert self.process.stderr is not None
        end = time.monotonic() + TIMEOUT
        while "Press Ctrl-C to stop." not in self.output:
            assert time.monotonic() < end, self.output
            line = self.process.stderr.readline()
            assert line, self.output
            self.output += line

    @property
    def url(self) -> str:
        found = re.search(r"listening on (http://\S+)\.", self.output)
        assert found, self.output
        return found[1]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def kill(self, how: signal.Signals = signal.SIGKILL) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(TIMEOUT)
        if self.process.stderr is not None and not self.process.stderr.closed:
            self.output += self.process.stderr.read()
            self.process.close()
        return code


def eventually(condition: Callable[[], bool], within: float = TIMEOUT) -> None:
    """Wait for another process until a condition holds."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def create_home(folder: Path, server: ModelServer | None = None, *, agents: str = AGENTS) -> Home:
    """Create a home with two agents that use a model server, and a plugin whose tool needs approval."""
    home = Home(folder)
    workspace = home.path / "workspace"
    workspace.mkdir(parents=True)
    home.path.chmod(0o700)
    (workspace / "AGENTS.md").write_text(agents)
    (folder / "policy.toml").write_text(POLICY)
    (folder / "atlas.toml").write_text('policy = "policy.toml"\n')
    install_plugin(folder / "plugins", PLUGIN)
    if server is not None:
        home.env["OPENAI_BASE_URL"] = server.url
    return home


def install_plugin(folder: Path, code: str, points: str = "[atlas_agents.tools]\ndemo = demo_plugin:tools\n") -> None:
    """Install a package as pip would."""
    package = folder / "demo_plugin-1.0.dist-info"
    package.mkdir(parents=True)
    (folder / "demo_plugin.py").write_text(code)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: demo-plugin\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(points)


def reply_by_rule(asked: ModelRequest) -> Reply:
    """A model that rolls dice, acts, tells a long story, fails, and otherwise repeats the message."""
    if asked.results:
        return Reply(f"It came out: {asked.results[0]}")
    if "story" in asked.text:
        return Reply(STORY, delay=0.01)
    if sides := re.search(r"die with (\d+) sides", asked.text):
        return Reply("Let me see.", (("roll_dice", {"sides": int(sides[1])}),))
    if act := re.search(r"(?s)act (.*)", asked.text):
        return Reply("I will.", (("demo__act", {"command": act[1]}),))
    if "hold on" in asked.text:
        return Reply("I wait.", (("demo__hold", {}),))
    if "order" in asked.text:
        return Reply(calls=(("shop__order", {}),))
    if "time" in asked.text:
        return Reply(calls=(("current_time", {}),))
    if status := re.search(r"HTTP (\d+)", asked.text):
        return Reply("no luck", status=int(status[1]))
    return Reply(f"You wrote: {asked.text}")
