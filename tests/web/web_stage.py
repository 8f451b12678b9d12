"""A played internet: names with public addresses that lead to servers on loopback, and a trap that nobody may reach."""

import ssl
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from atlas_agents.builtin_tools.web.fetch import url_fetch
from atlas_agents.builtin_tools.web.ssrf import Caps
from atlas_agents.tools.tool import Tool
from fault_server import FaultServer, Script, answer

PUBLIC = "93.184.215.14"
OTHER = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
CAPS = Caps(total=20, connect=5, reading=30)


@dataclass
class Stage:
    """Vetting is real; names and ways are played. Each lookup takes the next answer, the last one stays."""

    port: int
    names: dict[str, Sequence[Sequence[str]]] = field(default_factory=dict[str, Sequence[Sequence[str]]])
    ours: frozenset[str] = frozenset()
    looked_up: list[str] = field(default_factory=list[str])
    dialled: list[str] = field(default_factory=list[str])

    async def lookup(self, host: str, port: int) -> list[str]:
        before = self.looked_up.count(host)
        self.looked_up.append(host)
        if host not in self.names:
            raise OSError(-2, "Name or service not known")
        answers = self.names[host]
        return list(answers[min(before, len(answers) - 1)])

    def way(self, address: str, port: int) -> tuple[str, int]:
        self.dialled.append(address)
        return "127.0.0.1", self.port

    def is_ours(self, address: str) -> bool:
        return address in self.ours


@dataclass
class World:
    """The server behind all public addresses, the stage, and the tool."""

    server: FaultServer
    stage: Stage
    tool: Tool

    async def fetch(self, url: str, **arguments: int) -> str:
        return await self.tool.function(url, **arguments)


@asynccontextmanager
async def world(
    *scripts: Script, then: Script | None = None, hosts: Sequence[str] = (), caps: Caps = CAPS
) -> AsyncGenerator[World]:
    async with AsyncExitStack() as opening:
        server = await opening.enter_async_context(FaultServer(*scripts, then=then))
        port = urlsplit(server.url).port or 0
        stage = Stage(port, {"pub.test": [[PUBLIC]], "other.test": [[OTHER, PUBLIC]]})
        yield World(server, stage, url_fetch(opening, hosts=hosts, network=stage, caps=caps))


def page(body: str | bytes, type: str = "text/html; charset=utf-8", **headers: str) -> Script:
    content = body.encode() if isinstance(body, str) else body
    return answer(content, type=type, framing="sized", **headers)


def moved(location: str, status: str = "302 Found") -> Script:
    return answer(b"", status=status, type="text/html", framing="sized", location=location)


CERTIFICATE = """[req]
prompt = no
distinguished_name = who
x509_extensions = what
[who]
CN = {host}
[what]
subjectAltName = DNS:{host}
basicConstraints = critical, CA:FALSE
"""


def certified(folder: Path, host: str) -> ssl.SSLContext:
    """A server's side of TLS, with a certificate that nobody has signed: it is in `folder/cert`."""
    (folder / "request").write_text(CERTIFICATE.format(host=host))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-config", f"{folder}/request"]
    command += ["-keyout", f"{folder}/key", "-out", f"{folder}/cert"]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert", folder / "key")
    return context
