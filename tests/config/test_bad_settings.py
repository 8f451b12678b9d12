"""Invalid settings are rejected with file, line and key."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from settings_sources import SettingsSources

from atlas_agents import BadModelRef
from checks import as_unprivileged_user

REF = "expected 'provider/model', for example 'anthropic/claude-opus-4-6'"
KEYS = "secrets are accepted only from the environment, .env or a secret file"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("host = 'x'\nport = '18789'\n", "2: port: expected an integer from 0 to 65535, got '18789'"),
        (
            "knowledge_tool = 'a b'\n",
            "1: knowledge_tool: invalid tool name 'a b': expected 1 to 64 letters, digits, _ or -, a letter first",
        ),
        ("port = 70000\n", "1: port: expected an integer from 0 to 65535, got 70000"),
        ("port = -1\n", "1: port: expected an integer from 0 to 65535, got -1"),
        ("port = 1.5\n", "1: port: expected an integer from 0 to 65535, got 1.5"),
        ("port = true\n", "1: port: expected an integer from 0 to 65535, got True"),
        ("port = [1]\n", "1: port: expected an integer from 0 to 65535, got [1]"),
        ("[port]\nx = 1\n", "1: port: expected an integer from 0 to 65535, got {'x': 1}"),
        ("two_person = 1\n", "1: two_person: expected true or false, got 1"),
        ("tick = nan\n", "1: tick: expected a number from 0.1 to 3600, got nan"),
        ("tick = inf\n", "1: tick: expected a number from 0.1 to 3600, got inf"),
        ("calls_at_once = 0\n", "1: calls_at_once: expected an integer from 1 to 64, got 0"),
        ("log_level = 'loud'\n", "1: log_level: expected debug or error or info or warning, got 'loud'"),
        ("workspace = 7\n", "1: workspace: expected a path, got 7"),
        ("workspace = ''\n", "1: workspace: the value is empty; set it or remove the setting"),
        ('workspace = "a\\u0000b"\n', "1: workspace: expected a path, got 'a\\x00b'"),
        ("allowed_hosts = 'a.example'\n", "1: allowed_hosts: expected a list of strings, got 'a.example'"),
        ("\n\nprot = 1\n", "3: unknown setting 'prot'; did you mean port?"),
        ("log-level = 'info'\n", "1: unknown setting 'log-level'; did you mean log_level?"),
        ("# one\nport = 1\n\n'port' = 2\n", "4: port: already defined in line 2; remove one of them"),
        ("port = 1\n[port]\n", "2: port: already defined in line 1; remove one of them"),
        ("port = \n", "1: port: invalid TOML: …"),
        ("port = 1\nhost = 'x\n", "2: host: invalid TOML: …"),
        (
            "port = 1\nallowed_hosts = [\n'a',\n",
            "3: allowed_hosts: invalid TOML: …",
        ),
        (
            "port: 1\n",
            "1: the first line: invalid TOML: …",
        ),
        ("model = 'gpt'\n", f"1: model: invalid model reference 'gpt': {REF}"),
        ("model = '/gpt'\n", f"1: model: invalid model reference '/gpt': {REF}"),
        ("model = 'a/b c'\n", "1: model: invalid model reference 'a/b c': it contains a space"),
        (
            "host = 'http://x'\n",
            "1: host: invalid address 'http://x': expected an IP address like 127.0.0.1 or a host name",
        ),
        (
            "allowed_origins = [\n  'https://a.example',\n  '*',\n]\n",
            "1: allowed_origins: invalid origin '*': expected one like https://chat.example.org",
        ),
        (
            "allowed_hosts = ['a.example:80']\n",
            "1: allowed_hosts: invalid host 'a.example:80': expected a name like chat.example.org, without a port",
        ),
        ("policy = 'team.toml'\n", "1: policy: file not found: team.toml; create it or remove the setting"),
        ("token = 'canary'\n", f"1: token: {KEYS}; set ATLAS_TOKEN or ATLAS_TOKEN_FILE"),
        ("port = 1\nopenai_api_key = 'canary'\n", f"2: unknown setting 'openai_api_key'; {KEYS}"),
        ("ANTHROPIC_API_KEY = 'canary'\n", f"1: unknown setting 'ANTHROPIC_API_KEY'; {KEYS}"),
        (
            "database_url = 'postgresql://ana:canary@db/x'\n",
            f"1: database_url: the URL contains a password, and {KEYS}; "
            "set ATLAS_DATABASE_URL or ATLAS_DATABASE_URL_FILE",
        ),
        (
            "redis_url = 'redis://:canary@cache'\n",
            f"1: redis_url: the URL contains a password, and {KEYS}; set ATLAS_REDIS_URL or ATLAS_REDIS_URL_FILE",
        ),
        (
            "database_url = 'mysql://ana:canary@db/x'\n",
            "1: database_url: invalid URL scheme 'mysql': expected sqlite:// or postgresql:// or postgres://",
        ),
        (
            "database_url = 'canary'\n",
            "1: database_url: invalid URL scheme '': expected sqlite:// or postgresql:// or postgres://",
        ),
        ("database_url = 7\n", "1: database_url: expected a string"),
        (
            "database_url = 'sqlite://x.db'\n",
            "1: database_url: invalid URL: expected sqlite:///file.db or sqlite:////folder/file.db, without options",
        ),
        (
            "database_url = 'sqlite:///:memory:'\n",
            "1: database_url: an in-memory database is lost at exit; name a file",
        ),
        (
            "redis_url = 'http://cache'\n",
            "1: redis_url: invalid URL scheme 'http': expected redis:// or rediss:// or unix://",
        ),
        (
            "fetch_hosts = ['wiki.intern:8080', 'https://b.example/']\n",
            "1: fetch_hosts: invalid host 'https://b.example/': expected a name like wiki.intern or wiki.intern:8080, "
            "without https://",
        ),
        (
            "search_url = 'localhost:8888'\n",
            "1: search_url: invalid URL 'localhost:8888': expected http:// or https://",
        ),
        (
            "search_url = 'https://ana:canary@search.intern'\n",
            "1: search_url: the URL contains a password, which would be displayed; use a SearXNG that needs none",
        ),
        ("home = '/x'\n", "1: home: not allowed in a file; use --home or ATLAS_HOME"),
        ("port = 1\nconfig = 'x'\n", "2: config: not allowed in a file; use --config or ATLAS_CONFIG"),
    ],
)
def test_error_in_a_file_names_line_and_key(text: str, error: str, sources: SettingsSources) -> None:
    sources.project(text)
    message = sources.error({"port": 1})  # what a flag overrides is checked too
    assert re.sub("(invalid TOML: ).*", r"\1…", message) == f"atlas.toml:{error}"
    assert "canary" not in message


def test_user_file_is_checked_like_the_project_file(sources: SettingsSources) -> None:
    sources.project("port = 1\n")
    sources.user("host = 'x'\nprot = 1\n")
    assert sources.error() == "~/config/atlas/config.toml:2: unknown setting 'prot'; did you mean port?"


def test_folder_is_rejected_as_policy(sources: SettingsSources) -> None:
    sources.project("policy = '.'\n")
    assert sources.error() == f"atlas.toml:1: policy: file not found: {sources.cwd}; create it or remove the setting"


def test_deeply_nested_file_is_rejected(sources: SettingsSources) -> None:
    sources.project(f"x = {'[' * 5000}\n")
    assert sources.error().startswith("atlas.toml:")


def test_error_lists_known_settings_if_no_name_is_close(sources: SettingsSources) -> None:
    sources.project("[gateway]\nport = 1\n")
    assert sources.error().startswith("atlas.toml:1: unknown setting 'gateway'; known settings: workspace, host, port,")


def test_invalid_model_reference_has_its_own_error_type(sources: SettingsSources) -> None:
    with pytest.raises(BadModelRef, match=r"^environment: ATLAS_MODEL: invalid model reference 'gpt'"):
        sources.load(ATLAS_MODEL="gpt")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (
            b"\xef\xbb\xbfport = 1\n",
            "atlas.toml:1: the file starts with a byte order mark; save it as UTF-8 without one",
        ),
        (b"port = 1\nhost = '\xff'\n", "atlas.toml:2: the file is not valid UTF-8; save it as UTF-8"),
        ("port = 1\n".encode("utf-16"), "atlas.toml:1: the file is not valid UTF-8; save it as UTF-8"),
        (b"#" * 300_000, "atlas.toml: larger than the maximum of 256 KiB"),
        (b"port = \x00\n", "atlas.toml:1: port: invalid TOML: …"),
    ],
)
def test_binary_file_is_rejected(content: bytes, error: str, sources: SettingsSources) -> None:
    sources.project_file.write_bytes(content)
    assert re.sub("(invalid TOML: ).*", r"\1…", sources.error()) == error


def test_special_file_or_broken_link_is_rejected(sources: SettingsSources) -> None:
    path = sources.project_file
    path.mkdir()
    assert sources.error() == "atlas.toml: not a regular file; replace it with a text file"
    path.rmdir()
    os.mkfifo(path)
    assert sources.error() == "atlas.toml: not a regular file; replace it with a text file"
    path.unlink()
    path.symlink_to("nothing.toml")
    assert sources.error() == "atlas.toml: broken symbolic link; fix or remove it"
    path.unlink()
    path.symlink_to("atlas.toml")
    assert sources.error() == (
        "cannot read atlas.toml: Too many levels of symbolic links; fix its permissions or remove it"
    )


def test_unreadable_file_is_rejected(tmp_path: Path) -> None:
    sources = SettingsSources(tmp_path)
    (sources.cwd / "team.toml").touch(0)
    with as_unprivileged_user(tmp_path):
        assert sources.error({"policy": "team.toml"}) == (
            "flag: --policy: cannot read team.toml: permission denied for this user"
        )
    sources.project("port = 1\n")
    sources.project_file.chmod(0)
    with as_unprivileged_user(tmp_path):
        assert sources.error() == "cannot read atlas.toml: Permission denied; fix its permissions or remove it"


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({"ATLAS_TOKEN": ""}, "environment: ATLAS_TOKEN: the value is empty; set it or remove the setting"),
        ({"ATLAS_TOKEN": "  "}, "environment: ATLAS_TOKEN: the value is empty; set it or remove the setting"),
        (
            {"ATLAS_TOKEN": "canary with spaces"},
            "environment: ATLAS_TOKEN: invalid token: expected printable ASCII characters without spaces",
        ),
        ({"ATLAS_PORT": "many"}, "environment: ATLAS_PORT: expected an integer from 0 to 65535, got 'many'"),
        (
            {"MAX_ACTIONS_PER_DAY": "0"},
            "environment: MAX_ACTIONS_PER_DAY: expected an integer of at least 1, got '0'",
        ),
        ({"ATLAS_TWO_PERSON": "perhaps"}, "environment: ATLAS_TWO_PERSON: expected true or false, got 'perhaps'"),
        (
            {"ATLAS_DATABASE_URL": "mysql://ana:canary@db"},
            "environment: ATLAS_DATABASE_URL: invalid URL scheme 'mysql': expected sqlite:// or postgresql:// or postgres://",
        ),
        (
            {"ATLAS_POLICY": "none.toml"},
            "environment: ATLAS_POLICY: file not found: none.toml; create it or remove the setting",
        ),
        (
            {"ATLAS_TOKEN_FILE": "none"},
            "ATLAS_TOKEN_FILE points to none, which cannot be read: No such file or directory",
        ),
        ({"ATLAS_TOKEN_FILE": "."}, "ATLAS_TOKEN_FILE points to {cwd}, which cannot be read: Is a directory"),
        (
            {"ATLAS_CONFIG": "none.toml"},
            "settings file not found: none.toml; create it, or remove --config and ATLAS_CONFIG",
        ),
    ],
)
def test_error_in_the_environment_names_the_variable(
    variables: dict[str, str], error: str, sources: SettingsSources
) -> None:
    message = sources.error(None, **variables)
    assert message == error.replace("{cwd}", str(sources.cwd))
    assert "canary" not in message


def test_error_in_dotenv_names_the_line(sources: SettingsSources) -> None:
    sources.dotenv("# settings\n\nATLAS_PORT=many\n")
    assert sources.error() == ".env:3: ATLAS_PORT: expected an integer from 0 to 65535, got 'many'"
    sources.dotenv("A=1\nATLAS_TOKEN=\n")
    assert sources.error() == ".env:2: ATLAS_TOKEN: the value is empty; set it or remove the setting"


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"port": "x"}, "flag: --port: expected an integer from 0 to 65535, got 'x'"),
        ({"prot": 1}, "flag: unknown setting 'prot'; did you mean port?"),
        ({"log_level": "loud"}, "flag: --log-level: expected debug or error or info or warning, got 'loud'"),
        ({"token": "canary"}, f"flag: --token: other users can read a command line; {KEYS}"),
        (
            {"database_url": "postgresql://a:canary@db"},
            f"flag: --database-url: the URL contains a password, and {KEYS}; "
            "set ATLAS_DATABASE_URL or ATLAS_DATABASE_URL_FILE",
        ),
        ({"origins": {}}, "flag: unknown setting 'origins'; did you mean allowed_origins?"),
    ],
)
def test_error_in_a_flag_names_the_flag(flags: dict[str, Any], error: str, sources: SettingsSources) -> None:
    assert sources.error(flags) == error
