"""`open_store` and `open_policy` open what the settings name."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from settings_sources import SettingsSources

from atlas_agents import Actor, ConfigError
from atlas_agents.config import open_policy, open_store
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sqlite import SqliteStore
from checks import TIMEOUT


async def test_default_store_is_a_file_in_the_home_folder(sources: SettingsSources) -> None:
    settings = sources.load()
    store = open_store(settings)
    assert isinstance(store, SqliteStore)
    await store.open()
    await store.close()
    assert (settings.home / "atlas.db").is_file()
    assert stat.S_IMODE(settings.home.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "url", ["sqlite:///x.db", "SQLITE:///./x.db", "sqlite:///{cwd}/x.db", "sqlite:///~/../project/x.db"]
)
def test_database_file_can_be_elsewhere(url: str, sources: SettingsSources) -> None:
    store = open_store(sources.load(ATLAS_DATABASE_URL=url.replace("{cwd}", str(sources.cwd))))
    assert isinstance(store, SqliteStore)
    assert store.path == sources.cwd / "x.db"


def test_database_file_in_a_missing_folder_is_rejected(sources: SettingsSources) -> None:
    settings = sources.load(ATLAS_DATABASE_URL="sqlite:///srv/atlas.db")
    with pytest.raises(ConfigError) as caught:
        open_store(settings)
    assert str(caught.value) == (
        f"database_url: folder not found: {sources.cwd}/srv; "
        "create it; an absolute path starts with four slashes: sqlite:////folder/file.db"
    )


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_postgres_url_opens_a_postgres_store(scheme: str, sources: SettingsSources) -> None:
    assert isinstance(open_store(sources.load(ATLAS_DATABASE_URL=f"{scheme}://ana@127.0.0.1:1/atlas")), PostgresStore)


def test_error_names_the_extra_for_postgres(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from atlas_agents.config import load, open_store\n"
        "from atlas_agents.testing import Environment\n"
        "values = {'ATLAS_DATABASE_URL': 'postgresql://a:canary@db/x', 'HOME': '.'}\n"
        "settings = load({}, Environment(values, dotenv=None))\n"
        "try: open_store(settings)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.stdout, done.stderr) == (
        "ConfigError database_url: Postgres needs an extra; run: pip install 'atlas-agents[postgres]'\n",
        "",
    )


def test_policy_is_read_from_its_file(sources: SettingsSources) -> None:
    assert open_policy(sources.load()) is None
    (sources.cwd / "team.toml").write_text("[tools.bash]\nask = ['assistant']\n")
    sources.project("policy = 'team.toml'\n")
    policy = open_policy(sources.load())
    assert policy is not None
    assert policy.verdict("bash", Actor("assistant")).cell == "ask"
    (sources.cwd / "team.toml").write_text("[tool.bash]\nask = ['assistant']\n")
    with pytest.raises(ConfigError, match=r"team\.toml: unknown section 'tool'"):
        open_policy(sources.load())
