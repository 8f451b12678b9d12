"""`mcp.json`: read as people write it, and wrong entries named by file and key."""

import json
from pathlib import Path
from typing import Any

import pytest
from mcp_house import written

from atlas_agents.core.errors import ConfigError
from atlas_agents.mcp.config import MAX_SIZE, read_servers
from atlas_agents.testing import Environment


def test_the_shape_that_people_know(tmp_path: Path) -> None:
    entries: dict[str, Any] = {
        "time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"TZ": "UTC"}, "cwd": "/tmp"},
        "far": {"type": "http", "url": "https://mcp.example.org/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
    }
    servers = read_servers(written(tmp_path, **entries))
    assert list(servers) == ["time", "far"]
    assert servers["time"].entry.text == "uvx mcp-server-time"
    filled = servers["far"].expanded(Environment({"TOKEN": "t"}, dotenv=None))
    assert filled.headers == {"Authorization": "Bearer t"}


def test_no_file_names_no_server(tmp_path: Path) -> None:
    assert read_servers(tmp_path) == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "mcp.json: invalid JSON: "),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "invalid JSON"),
        ("[]", "invalid JSON: expected a JSON object"),
        ('{"servers": {}}', "mcp.json: unknown key 'servers'; servers belong under mcpServers"),
        ('{"mcpServers": []}', "mcp.json: mcpServers: expected an object"),
        ('{"mcpServers": {"a b": {"command": "x"}}}', "mcpServers.a b: invalid server name 'a b'"),
        ('{"mcpServers": {"a/b": {"command": "x"}}}', "invalid server name"),
        ('{"mcpServers": {"a": {}}}', "mcpServers.a: expected either a command or a url"),
        ('{"mcpServers": {"a": {"command": "x", "url": "https://y"}}}', "either a command"),
        ('{"mcpServers": {"a": {"command": ["x"]}}}', "mcpServers.a.command: Expected `str`, got `array`"),
        ('{"mcpServers": {"a": {"command": "x", "argz": []}}}', "mcpServers.a: Object contains unknown field `argz`"),
        ('{"mcpServers": {"a": {"url": "file:///etc/passwd"}}}', "mcpServers.a.url: must start with https://"),
        ('{"mcpServers": {"a": {"url": "https://x", "type": "sse"}}}', "mcpServers.a.type: unsupported type 'sse'"),
        ('{"mcpServers": {"a": {"command": "x", "timeout": 0}}}', "mcpServers.a.timeout: expected 1 to 3600 seconds"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}', "mcpServers.a.env"),
        (" " * (MAX_SIZE + 1), "exceeds 256 KiB"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_key(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_servers(tmp_path)
    assert str(tmp_path / "mcp.json") in str(caught.value) and words in str(caught.value)


def test_a_variable_that_is_not_set_is_named_with_its_place(tmp_path: Path) -> None:
    (server,) = read_servers(written(tmp_path, a={"command": "x", "env": {"KEY": "${MISSING}"}})).values()
    with pytest.raises(ConfigError, match=r"mcpServers\.a\.env\.KEY: MISSING is not set"):
        server.expanded(Environment({}, dotenv=None))


def test_a_value_is_filled_in_once(tmp_path: Path) -> None:
    (server,) = read_servers(written(tmp_path, a={"command": "x", "args": ["${A}", "${env:B}"]})).values()
    filled = server.expanded(Environment({"A": "${B}", "B": "b"}, dotenv=None))
    assert filled.args == ("${B}", "b")


def test_a_file_as_an_editor_on_another_system_writes_it(tmp_path: Path) -> None:
    content = json.dumps({"mcpServers": {"a": {"command": "x"}}}).replace(" ", "\r\n")
    (tmp_path / "mcp.json").write_bytes(b"\xef\xbb\xbf" + content.encode())
    assert list(read_servers(tmp_path)) == ["a"]
