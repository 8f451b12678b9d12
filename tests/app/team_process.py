"""The example team in a process: the `atlas` command with the team's settings and its own home folder."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from checks import TIMEOUT

TEAM = Path(__file__).parent.parent.parent / "examples" / "team"
ATLAS = str(Path(sys.executable).parent / "atlas")


class TeamProcess:
    """`run` runs one command; `start` starts `atlas serve`; `kill` kills it."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        own = {"ATLAS_HOME": str(self.home), "ATLAS_CONFIG": str(TEAM / "atlas.toml"), "ATLAS_PORT": "0"}
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/nowhere", "HOME": str(folder)}
        self._env = {**os.environ, **own, **offline, "PYTHONIOENCODING": "utf-8", **env}
        self._process: subprocess.Popen[str] | None = None
        self._output = ""

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ATLAS, *arguments],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT,
        )

    def start(self) -> None:
        """Start `atlas serve` and wait until it is ready."""
        self._output = ""
        self._process = subprocess.Popen(
            [ATLAS, "serve"],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        assert self._process.stderr is not None
        end = time.monotonic() + TIMEOUT
        while "Press Ctrl-C to stop." not in self._output:
            line = self._process.stderr.readline()
            self._output += line
            assert line and time.monotonic() < end, self._output

    def kill(self) -> int:
        """Send SIGKILL and return the exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGKILL)
        code = process.wait(TIMEOUT)
        assert process.stderr is not None
        process.stderr.close()
        return code

    @property
    def url(self) -> str:
        found = re.search(r"listening on (http://\S+)\.", self._output)
        assert found, self._output
        return found[1]

    @property
    def token(self) -> str:
        return (self.home / "token").read_text(encoding="utf-8").strip()
