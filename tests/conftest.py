"""What holds for every test: no network but loopback, and no settings from the machine it runs on."""

import ipaddress
import os
import signal
import socket
import sys
from typing import Any

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has it so for what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
_SETTINGS = ("OPENAI_", "ANTHROPIC_", "ATLAS_", "BRAVE_", "TAVILY_", "EXA_", "SEARXNG_")


class NetworkIsClosed(RuntimeError):
    """A test reached beyond loopback. Not an `OSError`, so that no retry takes it for a bad line."""


def _refuse_beyond_loopback(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: Python asks it about every socket, whichever library opened it."""
    match event, arguments:
        case (("socket.connect" | "socket.sendto" | "socket.sendmsg"), (_, address)):
            _check(address)
        case (("socket.getaddrinfo" | "socket.gethostbyname" | "socket.gethostbyaddr"), (host, *_)):
            _check((host,))
        case _:
            pass


def _check(address: Any) -> None:
    match address:
        case (str() | bytes() as host, *_) if not _is_loopback(host):
            raise NetworkIsClosed(f"tests reach loopback only, not {address!r}")
        case _:
            pass  # the path of a Unix socket, or a socket that is already connected


def _is_loopback(host: str | bytes) -> bool:
    name = host if isinstance(host, str) else host.decode()
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name in ("", "localhost")


def _connect(self: socket.socket, address: Any, /) -> None:
    """Python looks a name up before it raises the audit event of `connect`; here the question comes first."""
    _check(address)
    _original_connect(self, address)


_original_connect = socket.socket.connect
socket.socket.connect = _connect
sys.addaudithook(_refuse_beyond_loopback)


def pytest_runtest_setup() -> None:
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many crash cases were run, in all the processes that ran them."""
    reports: list[pytest.TestReport] = [
        report for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)
    ]
    counts = [int(str(value)) for report in reports for name, value in report.user_properties if name == "crash_cases"]
    if counts:
        terminalreporter.write_line(f"{sum(counts)} crash cases")
