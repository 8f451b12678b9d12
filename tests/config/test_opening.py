"""What settings name is opened: a store of the right kind, a policy; and what cannot be is told."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from settings_words import Desk

from atlas_agents import Actor, ConfigError
from atlas_agents.config import open_policy, open_store
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sqlite import SqliteStore


async def test_without_anything_the_store_is_a_file_in_the_home_folder(desk: Desk) -> None:
    settings = desk.load()
    store = open_store(settings)
    assert isinstance(store, SqliteStore)
    await store.open()
    await store.close()
    assert (settings.home / "atlas.db").is_file()
    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "url", ["sqlite:///x.db", "SQLITE:///./x.db", "sqlite:///{cwd}/x.db", "sqlite:///~/../project/x.db"]
)
def test_a_file_elsewhere_can_be_named(url: str, desk: Desk) -> None:
    store = open_store(desk.load(ATLAS_DATABASE_URL=url.replace("{cwd}", str(desk.cwd))))
    assert isinstance(store, SqliteStore)
    assert store.path == desk.cwd / "x.db"


def test_a_file_in_a_folder_that_is_not_there_is_told(desk: Desk) -> None:
    settings = desk.load(ATLAS_DATABASE_URL="sqlite:///srv/atlas.db")
    with pytest.raises(ConfigError) as caught:
        open_store(settings)
    assert str(caught.value) == (
        f"database_url: there is no folder {desk.cwd}/srv; "
        "make it; a whole path begins with four slashes: sqlite:////folder/file.db"
    )


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_postgres_server_can_be_named(scheme: str, desk: Desk) -> None:
    assert isinstance(open_store(desk.load(ATLAS_DATABASE_URL=f"{scheme}://ana@127.0.0.1:1/atlas")), PostgresStore)


def test_without_the_extra_postgres_is_refused_with_what_to_do(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from atlas_agents.config import load, open_store\n"
        "from atlas_agents.testing import Environment\n"
        "values = {'ATLAS_DATABASE_URL': 'postgresql://a:canary@db/x', 'HOME': '.'}\n"
        "settings = load({}, Environment(values, dotenv=None))\n"
        "try: open_store(settings)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == (
        "ConfigError database_url: Postgres needs an extra: pip install 'atlas-agents[postgres]'\n",
        "",
    )


def test_the_policy_is_read_from_its_file(desk: Desk) -> None:
    assert open_policy(desk.load()) is None
    (desk.cwd / "team.toml").write_text("[tools.bash]\nask = ['assistant']\n")
    desk.project("policy = 'team.toml'\n")
    policy = open_policy(desk.load())
    assert policy is not None
    assert policy.verdict("bash", Actor("assistant")).cell == "ask"
    (desk.cwd / "team.toml").write_text("[tool.bash]\nask = ['assistant']\n")
    with pytest.raises(ConfigError, match=r"team\.toml: there is no section 'tool'"):
        open_policy(desk.load())
