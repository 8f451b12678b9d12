"""Settings that cannot be used: each is refused, and told with its file, its line and its key."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from settings_words import Desk

from atlas_agents import BadModelRef
from checks import as_nobody

REF = "expected 'provider/model', for example 'anthropic/claude-opus-4-6'"
KEYS = "keys come only from the environment, .env or a secret file"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("host = 'x'\nport = '18789'\n", "2: port: it must be a whole number from 0 to 65535, not '18789'"),
        (
            "knowledge_tool = 'a b'\n",
            "1: knowledge_tool: invalid tool name 'a b': expected 1 to 64 letters, digits, _ or -, a letter first",
        ),
        ("port = 70000\n", "1: port: it must be a whole number from 0 to 65535, not 70000"),
        ("port = -1\n", "1: port: it must be a whole number from 0 to 65535, not -1"),
        ("port = 1.5\n", "1: port: it must be a whole number from 0 to 65535, not 1.5"),
        ("port = true\n", "1: port: it must be a whole number from 0 to 65535, not True"),
        ("port = [1]\n", "1: port: it must be a whole number from 0 to 65535, not [1]"),
        ("[port]\nx = 1\n", "1: port: it must be a whole number from 0 to 65535, not {'x': 1}"),
        ("two_person = 1\n", "1: two_person: it must be true or false, not 1"),
        ("tick = nan\n", "1: tick: it must be a number from 0.1 to 3600, not nan"),
        ("tick = inf\n", "1: tick: it must be a number from 0.1 to 3600, not inf"),
        ("calls_at_once = 0\n", "1: calls_at_once: it must be a whole number from 1 to 64, not 0"),
        ("log_level = 'loud'\n", "1: log_level: it must be debug or error or info or warning, not 'loud'"),
        ("workspace = 7\n", "1: workspace: it must be a path, not 7"),
        ("workspace = ''\n", "1: workspace: it is blank; give it a value or take it out"),
        ('workspace = "a\\u0000b"\n', "1: workspace: it must be a path, not 'a\\x00b'"),
        ("allowed_hosts = 'a.example'\n", "1: allowed_hosts: it must be a list of texts, not 'a.example'"),
        ("\n\nprot = 1\n", "3: prot: there is no such setting; did you mean port?"),
        ("log-level = 'info'\n", "1: log-level: there is no such setting; did you mean log_level?"),
        ("# one\nport = 1\n\n'port' = 2\n", "4: port: it stands in line 2 already; keep one of them"),
        ("port = 1\n[port]\n", "2: port: it stands in line 1 already; keep one of them"),
        ("port = \n", "1: port: this is no TOML: …"),
        ("port = 1\nhost = 'x\n", "2: host: this is no TOML: …"),
        (
            "port = 1\nallowed_hosts = [\n'a',\n",
            "3: allowed_hosts: this is no TOML: …",
        ),
        (
            "port: 1\n",
            "1: the first line: this is no TOML: …",
        ),
        ("model = 'gpt'\n", f"1: model: invalid model reference 'gpt': {REF}"),
        ("model = '/gpt'\n", f"1: model: invalid model reference '/gpt': {REF}"),
        ("model = 'a/b c'\n", "1: model: invalid model reference 'a/b c': it contains a space"),
        ("host = 'http://x'\n", "1: host: 'http://x' is no address to listen on; write one like 127.0.0.1, or a name"),
        (
            "allowed_origins = [\n  'https://a.example',\n  '*',\n]\n",
            "1: allowed_origins: '*' is no origin; write one like https://chat.example.org, without a path",
        ),
        (
            "allowed_hosts = ['a.example:80']\n",
            "1: allowed_hosts: 'a.example:80' is no name of a host; write one like chat.example.org, without a port",
        ),
        ("policy = 'team.toml'\n", "1: policy: there is no file team.toml; make it or take the setting out"),
        ("token = 'canary'\n", f"1: token: {KEYS}: set ATLAS_TOKEN or ATLAS_TOKEN_FILE"),
        ("port = 1\nopenai_api_key = 'canary'\n", f"2: openai_api_key: there is no such setting, and {KEYS}"),
        ("ANTHROPIC_API_KEY = 'canary'\n", f"1: ANTHROPIC_API_KEY: there is no such setting, and {KEYS}"),
        (
            "database_url = 'postgresql://ana:canary@db/x'\n",
            f"1: database_url: there is a password in it, and {KEYS}: "
            "set ATLAS_DATABASE_URL or ATLAS_DATABASE_URL_FILE",
        ),
        (
            "redis_url = 'redis://:canary@cache'\n",
            f"1: redis_url: there is a password in it, and {KEYS}: set ATLAS_REDIS_URL or ATLAS_REDIS_URL_FILE",
        ),
        (
            "database_url = 'mysql://ana:canary@db/x'\n",
            "1: database_url: it must begin with sqlite:// or postgresql:// or postgres://",
        ),
        ("database_url = 'canary'\n", "1: database_url: it must begin with sqlite:// or postgresql:// or postgres://"),
        ("database_url = 7\n", "1: database_url: it must be a text"),
        (
            "database_url = 'sqlite://x.db'\n",
            "1: database_url: write sqlite:///file.db or, for a whole path, sqlite:////folder/file.db, without options",
        ),
        (
            "database_url = 'sqlite:///:memory:'\n",
            "1: database_url: a database in memory forgets everything; name a file",
        ),
        ("redis_url = 'http://cache'\n", "1: redis_url: it must begin with redis:// or rediss:// or unix://"),
        (
            "fetch_hosts = ['wiki.intern:8080', 'https://b.example/']\n",
            "1: fetch_hosts: 'https://b.example/' is no host; write one like wiki.intern or wiki.intern:8080, "
            "without https://",
        ),
        ("search_url = 'localhost:8888'\n", "1: search_url: it must begin with http:// or https://"),
        (
            "search_url = 'https://ana:canary@search.intern'\n",
            "1: search_url: there is a password in it, and it would be shown; let the SearXNG be reached without one",
        ),
        ("home = '/x'\n", "1: home: it cannot stand in a file; use --home or ATLAS_HOME"),
        ("port = 1\nconfig = 'x'\n", "2: config: it cannot stand in a file; use --config or ATLAS_CONFIG"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line_and_its_key(text: str, error: str, desk: Desk) -> None:
    desk.project(text)
    said = desk.refusal({"port": 1})  # what a flag overrides is checked too
    assert re.sub("(this is no TOML: ).*", r"\1…", said) == f"atlas.toml:{error}"
    assert "canary" not in said


def test_the_file_of_a_person_is_checked_like_that_of_a_project(desk: Desk) -> None:
    desk.project("port = 1\n")
    desk.user("host = 'x'\nprot = 1\n")
    assert desk.refusal() == "~/config/atlas/config.toml:2: prot: there is no such setting; did you mean port?"


def test_a_folder_is_no_policy(desk: Desk) -> None:
    desk.project("policy = '.'\n")
    assert desk.refusal() == f"atlas.toml:1: policy: there is no file {desk.cwd}; make it or take the setting out"


def test_a_file_that_is_nested_too_deeply_is_refused(desk: Desk) -> None:
    desk.project(f"x = {'[' * 5000}\n")
    assert desk.refusal().startswith("atlas.toml:")


def test_a_list_of_the_settings_is_given_where_no_name_is_close(desk: Desk) -> None:
    desk.project("[gateway]\nport = 1\n")
    assert desk.refusal().startswith(
        "atlas.toml:1: gateway: there is no such setting; there are workspace, host, port,"
    )


def test_a_bad_model_ref_is_also_known_by_its_type(desk: Desk) -> None:
    with pytest.raises(BadModelRef, match=r"^environment: ATLAS_MODEL: invalid model reference 'gpt'"):
        desk.load(ATLAS_MODEL="gpt")


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"\xef\xbb\xbfport = 1\n", "atlas.toml:1: it begins with a byte order mark; save it as UTF-8 without one"),
        (b"port = 1\nhost = '\xff'\n", "atlas.toml:2: it is not UTF-8; save it as UTF-8"),
        ("port = 1\n".encode("utf-16"), "atlas.toml:1: it is not UTF-8; save it as UTF-8"),
        (b"#" * 300_000, "atlas.toml: it is larger than 256 KiB; these are no settings"),
        (b"port = \x00\n", "atlas.toml:1: port: this is no TOML: …"),
    ],
)
def test_a_file_that_is_no_text_is_refused(content: bytes, error: str, desk: Desk) -> None:
    desk.project_file.write_bytes(content)
    assert re.sub("(this is no TOML: ).*", r"\1…", desk.refusal()) == error


def test_what_stands_in_the_place_of_a_file_is_refused(desk: Desk) -> None:
    path = desk.project_file
    path.mkdir()
    assert desk.refusal() == "atlas.toml: it is not a regular file; put a text file there or take it away"
    path.rmdir()
    os.mkfifo(path)
    assert desk.refusal() == "atlas.toml: it is not a regular file; put a text file there or take it away"
    path.unlink()
    path.symlink_to("nothing.toml")
    assert desk.refusal() == "atlas.toml: it is a link to nothing; mend it or take it away"
    path.unlink()
    path.symlink_to("atlas.toml")
    assert desk.refusal() == (
        "atlas.toml: it cannot be read: Too many levels of symbolic links; mend that or take it away"
    )


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (desk.cwd / "team.toml").touch(0)
    with as_nobody(tmp_path):
        assert desk.refusal({"policy": "team.toml"}) == (
            "flag: --policy: the file team.toml may not be read; give this user the right"
        )
    desk.project("port = 1\n")
    desk.project_file.chmod(0)
    with as_nobody(tmp_path):
        assert desk.refusal() == "atlas.toml: it cannot be read: Permission denied; mend that or take it away"


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({"ATLAS_TOKEN": ""}, "environment: ATLAS_TOKEN: it is blank; give it a value or take it out"),
        ({"ATLAS_TOKEN": "  "}, "environment: ATLAS_TOKEN: it is blank; give it a value or take it out"),
        (
            {"ATLAS_TOKEN": "canary with spaces"},
            "environment: ATLAS_TOKEN: a token is made of letters, digits and signs without spaces; take another one",
        ),
        ({"ATLAS_PORT": "many"}, "environment: ATLAS_PORT: it must be a whole number from 0 to 65535, not 'many'"),
        (
            {"MAX_ACTIONS_PER_DAY": "0"},
            "environment: MAX_ACTIONS_PER_DAY: it must be a whole number of at least 1, not '0'",
        ),
        ({"ATLAS_TWO_PERSON": "perhaps"}, "environment: ATLAS_TWO_PERSON: it must be true or false, not 'perhaps'"),
        (
            {"ATLAS_DATABASE_URL": "mysql://ana:canary@db"},
            "environment: ATLAS_DATABASE_URL: it must begin with sqlite:// or postgresql:// or postgres://",
        ),
        (
            {"ATLAS_POLICY": "none.toml"},
            "environment: ATLAS_POLICY: there is no file none.toml; make it or take the setting out",
        ),
        (
            {"ATLAS_TOKEN_FILE": "none"},
            "ATLAS_TOKEN_FILE points to none, which cannot be read: No such file or directory",
        ),
        ({"ATLAS_TOKEN_FILE": "."}, "ATLAS_TOKEN_FILE points to {cwd}, which cannot be read: Is a directory"),
        (
            {"ATLAS_CONFIG": "none.toml"},
            "none.toml: there is no such settings file; make it, or leave --config and ATLAS_CONFIG out",
        ),
    ],
)
def test_a_mistake_in_the_environment_is_told_with_its_name(variables: dict[str, str], error: str, desk: Desk) -> None:
    said = desk.refusal(None, **variables)
    assert said == error.replace("{cwd}", str(desk.cwd))
    assert "canary" not in said


def test_a_mistake_in_dotenv_is_told_with_its_line(desk: Desk) -> None:
    desk.dotenv("# settings\n\nATLAS_PORT=many\n")
    assert desk.refusal() == ".env:3: ATLAS_PORT: it must be a whole number from 0 to 65535, not 'many'"
    desk.dotenv("A=1\nATLAS_TOKEN=\n")
    assert desk.refusal() == ".env:2: ATLAS_TOKEN: it is blank; give it a value or take it out"


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"port": "x"}, "flag: --port: it must be a whole number from 0 to 65535, not 'x'"),
        ({"prot": 1}, "flag: prot: there is no such setting; did you mean port?"),
        ({"log_level": "loud"}, "flag: --log-level: it must be debug or error or info or warning, not 'loud'"),
        ({"token": "canary"}, f"flag: --token: everybody on the machine can read a command line; {KEYS}"),
        (
            {"database_url": "postgresql://a:canary@db"},
            f"flag: --database-url: there is a password in it, and {KEYS}: "
            "set ATLAS_DATABASE_URL or ATLAS_DATABASE_URL_FILE",
        ),
        ({"origins": {}}, "flag: origins: there is no such setting; did you mean allowed_origins?"),
    ],
)
def test_a_mistake_in_a_flag_is_told_with_its_name(flags: dict[str, Any], error: str, desk: Desk) -> None:
    assert desk.refusal(flags) == error
