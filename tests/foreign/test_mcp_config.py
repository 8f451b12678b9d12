"""`mcp.json`: valid files, and errors that name the file and key."""

import json
from pathlib import Path
from typing import Any

import pytest
from mcp_workspace import write_config

from atlas_agents.core.errors import ConfigError
from atlas_agents.mcp.config import MAX_SIZE, read_servers
from atlas_agents.testing import Environment


def test_common_entries_are_read(tmp_path: Path) -> None:
    entries: dict[str, Any] = {
        "time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"TZ": "UTC"}, "cwd": "/tmp"},
        "far": {"type": "http", "url": "https://mcp.example.org/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
    }
    servers = read_servers(write_config(tmp_path, **entries))
    assert list(servers) == ["time", "far"]
    assert servers["time"].entry.text == "uvx mcp-server-time"
    expanded_entry = servers["far"].expanded(Environment({"TOKEN": "t"}, dotenv=None))
    assert expanded_entry.headers == {"Authorization": "Bearer t"}


def test_missing_file_means_no_servers(tmp_path: Path) -> None:
    assert read_servers(tmp_path) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "mcp.json: invalid JSON: "),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "invalid JSON"),
        ("[]", "invalid JSON: expected a JSON object"),
        ('{"servers": {}}', "mcp.json: unknown key 'servers'; servers belong under mcpServers"),
        ('{"mcpServers": []}', "mcp.json: mcpServers: expected an object"),
        ('{"mcpServers": {"a b": {"command": "x"}}}', "mcpServers.a b: invalid server name 'a b'"),
        ('{"mcpServers": {"a/b": {"command": "x"}}}', "invalid server name"),
        ('{"mcpServers": {"client": {"command": "x"}}}', "the name 'client' is reserved for tools that clients run"),
        ('{"mcpServers": {"a": {}}}', "mcpServers.a: expected either a command or a url"),
        ('{"mcpServers": {"a": {"command": "x", "url": "https://y"}}}', "either a command"),
        ('{"mcpServers": {"a": {"command": ["x"]}}}', "mcpServers.a.command: Expected `str`, got `array`"),
        ('{"mcpServers": {"a": {"command": "x", "argz": []}}}', "mcpServers.a: Object contains unknown field `argz`"),
        ('{"mcpServers": {"a": {"url": "file:///etc/passwd"}}}', "mcpServers.a.url: must start with https://"),
        ('{"mcpServers": {"a": {"url": "https://x", "type": "sse"}}}', "mcpServers.a.type: unsupported type 'sse'"),
        ('{"mcpServers": {"a": {"command": "x", "timeout": 0}}}', "mcpServers.a.timeout: expected 1 to 3600 seconds"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}', "mcpServers.a.env"),
        ('{"mcpServers": {"a": {"command": "x", "oauth": {"clientId": "i"}}}}', "mcpServers.a.oauth: applies to a url"),
        (
            '{"mcpServers": {"a": {"url": "https://x", "oauth": {}}}}',
            "mcpServers.a.oauth: Object missing required field",
        ),
        ('{"mcpServers": {"a": {"url": "https://x", "oauth": {"clientId": ""}}}}', "a.oauth.clientId: expected the id"),
        (
            '{"mcpServers": {"a": {"url": "https://x", "oauth": {"clientId": "i", "clientSecret": "s3cret"}}}}',
            "mcpServers.a.oauth.clientSecret: expected a variable such as ${NAME}; set the secret in the environment",
        ),
        (
            '{"mcpServers": {"a": {"url": "https://x", "oauth": {"clientId": "i", "callbackPort": 70000}}}}',
            "mcpServers.a.oauth.callbackPort: expected a port number, got 70000",
        ),
        (
            '{"mcpServers": {"a": {"url": "https://x", "headers": {"authorization": ""}, "oauth": {"clientId": "i"}}}}',
            "mcpServers.a: expected either oauth or the header Authorization",
        ),
        (" " * (MAX_SIZE + 1), "exceeds 256 KiB"),
    ],
)
def test_error_names_the_file_and_key(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_servers(tmp_path)
    assert str(tmp_path / "mcp.json") in str(caught.value) and message in str(caught.value)


def test_error_names_an_unset_variable_and_its_key(tmp_path: Path) -> None:
    (server,) = read_servers(write_config(tmp_path, a={"command": "x", "env": {"KEY": "${MISSING}"}})).values()
    with pytest.raises(ConfigError, match=r"mcpServers\.a\.env\.KEY: MISSING is not set"):
        server.expanded(Environment({}, dotenv=None))


def test_variables_are_expanded_once(tmp_path: Path) -> None:
    (server,) = read_servers(write_config(tmp_path, a={"command": "x", "args": ["${A}", "${env:B}"]})).values()
    expanded_entry = server.expanded(Environment({"A": "${B}", "B": "b"}, dotenv=None))
    assert expanded_entry.args == ("${B}", "b")


def test_file_with_byte_order_mark_and_crlf_is_read(tmp_path: Path) -> None:
    content = json.dumps({"mcpServers": {"a": {"command": "x"}}}).replace(" ", "\r\n")
    (tmp_path / "mcp.json").write_bytes(b"\xef\xbb\xbf" + content.encode())
    assert list(read_servers(tmp_path)) == ["a"]
