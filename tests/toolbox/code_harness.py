"""A `CodeInterpreter` next to secrets and listeners that its code must not reach."""

import fcntl
import json
import secrets
import socket
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.builtin_tools.code.tool import CodeInterpreter, SandboxKind
from atlas_agents.core.errors import ToolFault
from atlas_agents.core.messages import Conversation
from atlas_agents.core.metadata import Metadata
from atlas_agents.tools.context import ToolContext

SANDBOXES = ("bubblewrap", "landlock")
"""Both must work where the tests run."""
assert sys.platform != "linux" or find_spec("sandlock"), (
    "the sandbox tests require sandlock: install the dev dependency group"
)


def is_unlocked(path: Path) -> bool:
    """Return whether no process holds a lock on the file; the kernel releases it when the last holder ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


class SandboxHarness:
    """A workspace with secrets around it, listeners that must not be reached, and an interpreter."""

    def __init__(self, kind: str, root: Path, **options: Any) -> None:
        self.kind = kind
        self.canary = f"canary-{secrets.token_hex(8)}"
        self.root = root
        self.folder = root / "workspace"
        self.folder.mkdir()
        (self.folder / ".env").write_text(f"KEY={self.canary}")
        self.outside = root / "outside.txt"
        self.outside.write_text(self.canary)
        sandbox: SandboxKind = msgspec.convert(kind, SandboxKind)
        self.interpreter = CodeInterpreter(self.folder, sandbox=sandbox, **options)
        self.conversation = Conversation(id="chat")
        self.notes: dict[str, Any] = {}
        self.progress: list[str] = []
        self.reached: list[str] = []
        self._listeners = [self._listen("tcp"), self._listen("udp"), self._listen("unix")]
        self.tcp, self.udp = self._listeners[0].getsockname()[1], self._listeners[1].getsockname()[1]

    @property
    def session_folder(self) -> Path:
        """The working directory of the code."""
        return self.folder / "code" / "chat"

    def context(self, conversation: str = "") -> ToolContext:
        return ToolContext(
            conversation=Conversation(id=conversation) if conversation else self.conversation,
            agent=None,
            run_id="run",
            call_id="call",
            tenant_id="default",
            metadata=Metadata(),
            report=self.progress.append,
            note=self.notes.__setitem__,
        )

    async def run(self, code: str, *, session: bool = False, conversation: str = "") -> dict[str, Any]:
        """Return the result that a model receives; an error as `fault` and `kind`."""
        try:
            result = await self.interpreter.run(code, self.context(conversation), session=session)
        except ToolFault as fault:
            return {"fault": str(fault), "kind": fault.kind}
        return json.loads(msgspec.json.encode(result))

    def has_no_interpreter(self) -> bool:
        """Return whether the interpreter of every session has ended."""
        pool = self.interpreter._pool._interpreters
        return all(each.has_ended for each in pool.values())

    async def close(self) -> None:
        await self.interpreter.close()
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _listen(self, kind: str) -> socket.socket:
        family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
        listener.bind(str(self.root / "socket") if kind == "unix" else ("127.0.0.1", 0))
        if kind != "udp":
            listener.listen()
        threading.Thread(target=self._wait, args=(listener, kind), daemon=True).start()
        return listener

    def _wait(self, listener: socket.socket, kind: str) -> None:
        with suppress(OSError):
            if kind == "udp":
                listener.recv(1)
            else:
                listener.accept()[0].close()
            self.reached.append(kind)
