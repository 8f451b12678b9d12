"""A fake internet: names with public addresses that are routed to a server on loopback."""

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
from checks import TIMEOUT
from fault_server import FaultServer, Script, response

PUBLIC = "93.184.215.14"
OTHER = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
CAPS = Caps(total=20, connect=5, reading=30)


@dataclass
class FakeNetwork:
    """Fake name resolution and routing. Each lookup returns the next answer; the last one repeats."""

    port: int
    names: dict[str, Sequence[Sequence[str]]] = field(default_factory=dict[str, Sequence[Sequence[str]]])
    own_addresses: frozenset[str] = frozenset()
    looked_up: list[str] = field(default_factory=list[str])
    connected: list[str] = field(default_factory=list[str])

    async def lookup(self, host: str, port: int) -> list[str]:
        before = self.looked_up.count(host)
        self.looked_up.append(host)
        if host not in self.names:
            raise OSError(-2, "Name or service not known")
        answers = self.names[host]
        return list(answers[min(before, len(answers) - 1)])

    def route(self, address: str, port: int) -> tuple[str, int]:
        self.connected.append(address)
        return "127.0.0.1", self.port

    def is_own(self, address: str) -> bool:
        return address in self.own_addresses


@dataclass
class FakeInternet:
    """The server behind all public addresses, the network, and the tool."""

    server: FaultServer
    network: FakeNetwork
    tool: Tool

    async def fetch(self, url: str, **arguments: int) -> str:
        return await self.tool.function(url, **arguments)


@asynccontextmanager
async def fake_internet(
    *scripts: Script, then: Script | None = None, hosts: Sequence[str] = (), caps: Caps = CAPS
) -> AsyncGenerator[FakeInternet]:
    async with AsyncExitStack() as exit_stack:
        server = await exit_stack.enter_async_context(FaultServer(*scripts, then=then))
        port = urlsplit(server.url).port or 0
        network = FakeNetwork(port, {"pub.test": [[PUBLIC]], "other.test": [[OTHER, PUBLIC]]})
        yield FakeInternet(server, network, url_fetch(exit_stack, hosts=hosts, network=network, caps=caps))


def page(body: str | bytes, type: str = "text/html; charset=utf-8", **headers: str) -> Script:
    content = body.encode() if isinstance(body, str) else body
    return response(content, type=type, framing="sized", **headers)


def redirect(location: str, status: str = "302 Found") -> Script:
    return response(b"", status=status, type="text/html", framing="sized", location=location)


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


def tls_context(folder: Path, host: str) -> ssl.SSLContext:
    """Create a server's TLS context with a self-signed certificate, written to `folder/cert`."""
    (folder / "request").write_text(CERTIFICATE.format(host=host))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-config", f"{folder}/request"]
    command += ["-keyout", f"{folder}/key", "-out", f"{folder}/cert"]
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert", folder / "key")
    return context
