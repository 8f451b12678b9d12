"""The `atlas` command in a home of its own: as a person or a script runs it, with a model that answers by rule."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from model_server import Asked, ModelServer, Reply
from terminal import Terminal

ATLAS = str(Path(sys.executable).parent / "atlas")
PATIENCE = 40
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


tools = [act, fail]
'''
POLICY = """\
[tools."demo/act"]
ask = ["*"]
"""


@dataclass
class Home:
    """A folder to start the command in, its settings, and a home folder."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict[str, str])
    patience: float = PATIENCE

    @property
    def path(self) -> Path:
        return self.folder / "home"

    def environment(self, **env: str) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ATLAS_", "OPENAI_", "ANTHROPIC_"))
        }
        own = {
            "ATLAS_HOME": str(self.path),
            "ATLAS_PORT": "0",
            "HOME": str(self.folder),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "/nowhere",
            "COLUMNS": "80",
            "PYTHONIOENCODING": "utf-8",
            "PYTHONPATH": os.pathsep.join([str(self.folder / "plugins"), os.environ.get("PYTHONPATH", "")]),
        }
        return {**kept, **own, **self.env, **env}

    def run(self, *arguments: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run the command where there is no terminal."""
        return subprocess.run(
            [ATLAS, *arguments],
            cwd=self.folder,
            env=self.environment(**env),
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=self.patience,
        )

    def terminal(self, *arguments: str, rows: int = 40, columns: int = 100, **env: str) -> Terminal:
        return Terminal([ATLAS, *arguments], self.environment(**env), self.folder, rows=rows, columns=columns)

    @contextmanager
    def gateway(self, *arguments: str, **env: str) -> Generator["Served"]:
        """`atlas serve` as a process of its own, from the moment it is ready."""
        served = Served(self, arguments, env)
        served.start()
        try:
            yield served
        finally:
            served.kill()


class Served:
    """A gateway that can be killed, and started again at the same place."""

    def __init__(self, home: Home, arguments: tuple[str, ...], env: dict[str, str]) -> None:
        self._home = home
        self._arguments = arguments
        self._env = env
        self.process: subprocess.Popen[str] | None = None
        self.said = ""

    def start(self) -> None:
        self.said = ""
        self.process = subprocess.Popen(
            [ATLAS, "serve", *self._arguments],
            cwd=self._home.folder,
            env=self._home.environment(**self._env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        assert self.process.stderr is not None
        end = time.monotonic() + PATIENCE
        while "Ctrl-C ends it." not in self.said:
            assert time.monotonic() < end, self.said
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line

    @property
    def url(self) -> str:
        found = re.search(r"listens on (http://\S+)\.", self.said)
        assert found, self.said
        return found[1]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def kill(self, how: signal.Signals = signal.SIGKILL) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(PATIENCE)
        if self.process.stderr is not None and not self.process.stderr.closed:
            self.said += self.process.stderr.read()
            self.process.stderr.close()
        return code


def furnished(folder: Path, server: ModelServer | None = None, *, agents: str = AGENTS) -> Home:
    """A home with two agents whose model is a server by rule, and a plugin whose tool needs a yes."""
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


def install_plugin(place: Path, code: str, points: str = "[atlas_agents.tools]\ndemo = demo_plugin:tools\n") -> None:
    """A package as pip would have put it there."""
    package = place / "demo_plugin-1.0.dist-info"
    package.mkdir(parents=True)
    (place / "demo_plugin.py").write_text(code)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: demo-plugin\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(points)


def mind(asked: Asked) -> Reply:
    """A model that rolls dice, acts, tells a long story, fails, and otherwise repeats what it heard."""
    if asked.results:
        return Reply(f"It came out: {asked.results[0]}")
    if "story" in asked.text:
        return Reply(STORY, pause=0.01)
    if sides := re.search(r"die with (\d+) sides", asked.text):
        return Reply("Let me see.", (("roll_dice", {"sides": int(sides[1])}),))
    if act := re.search(r"(?s)act (.*)", asked.text):
        return Reply("I will.", (("demo__act", {"command": act[1]}),))
    if "order" in asked.text:
        return Reply(calls=(("shop__order", {}),))
    if "time" in asked.text:
        return Reply(calls=(("current_time", {}),))
    if status := re.search(r"HTTP (\d+)", asked.text):
        return Reply("no luck", status=int(status[1]))
    return Reply(f"You said: {asked.text}")
