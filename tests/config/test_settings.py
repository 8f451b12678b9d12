"""Settings from all sources: precedence, defaults and explanation."""

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from settings_sources import SettingsSources

from atlas_agents import ConfigError, Delegation, Limits
from atlas_agents.config import SETTINGS, Explained, load, load_again, open_home
from atlas_agents.core import paths
from atlas_agents.testing import Environment

TOKEN = "canary-token-0123456789abcdef"


def test_settings_have_defaults(sources: SettingsSources) -> None:
    settings = sources.load()
    home = sources.person / "data" / "atlas-agents"
    assert (settings.home, settings.workspace) == (home, home / "workspace")
    assert settings.database_url.reveal() == f"sqlite:///{home}/atlas.db"
    assert (settings.host, settings.port, settings.token) == ("127.0.0.1", 18789, None)
    assert settings.limits == Limits.from_environment(Environment({}, dotenv=None))
    assert {line.origin for line in settings.explain()} == {"default"}
    assert settings.notices == ()
    assert not home.exists()  # loading settings creates nothing


def test_model_may_be_the_demo(sources: SettingsSources) -> None:
    assert sources.load({"model": "demo"}).model == "demo"


def test_sources_have_an_order_of_precedence(sources: SettingsSources) -> None:
    sources.user("port = 1\n\nhost = '::1'\nrepeats = 3\ntick = 7\nlog_level = 'error'\n")
    sources.project("port = 2\n# here\nrepeats = 4\ntick = 8.5\nlog_level = 'debug'\n")
    sources.dotenv("ATLAS_PORT=3\nATLAS_TICK=9\nATLAS_LOG_LEVEL=info\n")
    settings = sources.load({"port": 5, "model": None}, ATLAS_PORT="4", ATLAS_LOG_LEVEL="warning")
    found = {line.key: (line.value, line.origin) for line in settings.explain() if line.origin != "default"}
    assert found == {
        "port": ("5", "--port"),
        "log_level": ("warning", "environment ATLAS_LOG_LEVEL"),
        "tick": ("9", f"{sources.cwd}/.env:2"),
        "repeats": ("4", f"{sources.project_file}:3"),
        "host": ("::1", f"{sources.user_file}:3"),
    }
    assert (settings.port, settings.tick, settings.repeats) == (5, 9.0, 4)


def test_every_setting_has_an_environment_variable(sources: SettingsSources) -> None:
    (sources.cwd / "team.toml").write_text("")
    (sources.cwd / "mine.toml").write_text("")
    values = {
        "ATLAS_HOME": "state",
        "ATLAS_WORKSPACE": "~/agents",
        "ATLAS_CONFIG": "mine.toml",
        "ATLAS_TRUSTED_FOLDERS": "/srv/atlas, /srv/team",
        "ATLAS_TOKEN": TOKEN,
        "ATLAS_HOST": "0.0.0.0",
        "ATLAS_PORT": "0",
        "ATLAS_ALLOWED_ORIGINS": "https://a.example, http://localhost:3000",
        "ATLAS_ALLOWED_HOSTS": "a.example",
        "ATLAS_ALERTS": "error_rate > 10% for 5m, queue_lag > 30 to webhook",
        "ATLAS_ALERT_WEBHOOK": "https://hooks.example.org/T0K3N",
        "ATLAS_DATABASE_URL": "postgresql://ana:pw@db/atlas?sslpassword=more",
        "ATLAS_REDIS_URL": "redis://:pw@cache:6379/0",
        "ATLAS_MODEL": "openai/gpt-5.2",
        "ATLAS_PROVIDER_LIMITS": "openai requests=5, http at_once=2",
        "ATLAS_MODEL_CATALOGUE": "my-model input=1 output=4, old-model window=8000",
        "ATLAS_BUDGETS": "turn tokens=5000, user dollars=2.50 per=day",
        "ATLAS_POLICY": "team.toml",
        "ATLAS_APPROVAL_DEADLINE": "60",
        "ATLAS_TWO_PERSON": "true",
        "MAX_ACTIONS_PER_DAY": "7",
        "ATLAS_CALLS_AT_ONCE": "2",
        "ATLAS_CALLS_PER_TICK": "3",
        "ATLAS_TICK": "0.5",
        "ATLAS_REPEATS": "4",
        "ATLAS_KEEP_EVENTS": "7",
        "ATLAS_KEEP_JOURNALS": "90",
        "ATLAS_LOG_LEVEL": "debug",
        "ATLAS_LOG_FORMAT": "json",
        "ATLAS_AUDIT_KEY": "key-of-audit",
        "ATLAS_AUDIT_HEADS": "heads",
        "ATLAS_AUDIT_WEBHOOK": "https://log.example/heads?key=hook-of-audit",
        "ATLAS_ROLE": "worker",
        "ATLAS_DRAIN_SECONDS": "30",
        "ATLAS_DISABLED_PLUGINS": "broken, slow",
        "ATLAS_FOLDER": "project",
        "ATLAS_USER_FOLDERS": "users",
        "ATLAS_SHARED_FOLDER": "true",
        "ATLAS_TRUSTED_PROXIES": "10.0.0.0/8",
        "ATLAS_ALLOWED_MODELS": "openai/gpt-5.2",
        "ATLAS_TITLE_MODEL": "openai/gpt-5.2-nano",
        "ATLAS_COMPACTION": "false",
        "ATLAS_COMPACTION_THRESHOLD": "0.7",
        "ATLAS_COMPACTION_MODEL": "openai/gpt-5-mini",
        "ATLAS_USER_SESSIONS": "3",
        "ATLAS_USER_MESSAGES": "4",
        "ATLAS_USER_MEGABYTES": "5",
        "ATLAS_SANDBOX": "bubblewrap",
        "ATLAS_BASH_NETWORK": "true",
        "ATLAS_CODE_PYTHON": "science",
        "ATLAS_CODE_MEMORY": "512",
        "ATLAS_SEARCH": "searxng",
        "ATLAS_SEARCH_URL": "http://localhost:8888",
        "ATLAS_SEARCH_KEY": "key-of-search",
        "ATLAS_FETCH_HOSTS": "wiki.intern, 10.0.0.7:8080",
        "ATLAS_TELEGRAM_TOKEN": "123:token-of-bot",
        "ATLAS_TELEGRAM_CHAT": "-100",
        "ATLAS_TELEGRAM_URL": "http://localhost:8081",
        "ATLAS_TELEGRAM_CHANNEL": "true",
        "ATLAS_X_CLIENT_ID": "client-of-x",
        "ATLAS_X_CLIENT_SECRET": "secret-of-x",
        "ATLAS_X_TOKEN": "token-of-x",
        "ATLAS_X_REFRESH_TOKEN": "refresh-of-x",
        "ATLAS_X_URL": "http://localhost:8082",
        "ATLAS_EMBEDDINGS": "openai/text-embedding-3-small",
        "ATLAS_EMBEDDINGS_URL": "http://localhost:8082/v1",
        "ATLAS_EMBEDDINGS_KEY": "key-of-embeddings",
        "ATLAS_RECALL": "true",
        "ATLAS_TOOL_SEARCH": "40",
        "ATLAS_KNOWLEDGE_TOOL": "look_up",
        "ATLAS_DELEGATION_DEPTH": "2",
        "ATLAS_DELEGATION_JOBS": "9",
        "ATLAS_JOBS_AT_ONCE": "4",
        "ATLAS_TELEMETRY": "otel",
        "ATLAS_TELEMETRY_CONTENT": "true",
    }
    assert set(values) == {setting.variable for setting in SETTINGS.values()}
    settings = sources.load(**values)
    assert {line.key: line.value for line in settings.explain()} == {
        "home": f"{sources.cwd}/state",
        "workspace": f"{sources.person}/agents",
        "config": f"{sources.cwd}/mine.toml",
        "trusted_folders": "/srv/atlas, /srv/team",
        "token": "[REDACTED]",
        "host": "0.0.0.0",
        "port": "0",
        "allowed_origins": "https://a.example, http://localhost:3000",
        "allowed_hosts": "a.example",
        "database_url": "postgresql://ana:[REDACTED]@db/atlas?sslpassword=[REDACTED]",
        "redis_url": "redis://:[REDACTED]@cache:6379/0",
        "model": "openai/gpt-5.2",
        "provider_limits": "openai requests=5, http at_once=2",
        "model_catalogue": "my-model input=1 output=4, old-model window=8000",
        "budgets": "turn tokens=5000, user dollars=2.50 per=day",
        "alerts": "error_rate > 10% for 5m, queue_lag > 30 to webhook",
        "alert_webhook": "[REDACTED]",
        "policy": f"{sources.cwd}/team.toml",
        "approval_deadline": "60",
        "two_person": "true",
        "max_actions_per_day": "7",
        "calls_at_once": "2",
        "calls_per_tick": "3",
        "tick": "0.5",
        "repeats": "4",
        "keep_events": "7",
        "keep_journals": "90",
        "telemetry": "otel",
        "telemetry_content": "true",
        "log_level": "debug",
        "log_format": "json",
        "audit_key": "[REDACTED]",
        "audit_heads": f"{sources.cwd}/heads",
        "audit_webhook": "[REDACTED]",
        "role": "worker",
        "drain_seconds": "30",
        "disabled_plugins": "broken, slow",
        "folder": f"{sources.cwd}/project",
        "user_folders": f"{sources.cwd}/users",
        "shared_folder": "true",
        "trusted_proxies": "10.0.0.0/8",
        "allowed_models": "openai/gpt-5.2",
        "title_model": "openai/gpt-5.2-nano",
        "compaction": "false",
        "compaction_threshold": "0.7",
        "compaction_model": "openai/gpt-5-mini",
        "user_sessions": "3",
        "user_messages": "4",
        "user_megabytes": "5",
        "sandbox": "bubblewrap",
        "bash_network": "true",
        "code_python": f"{sources.cwd}/science",
        "code_memory": "512",
        "search": "searxng",
        "search_url": "http://localhost:8888",
        "search_key": "[REDACTED]",
        "fetch_hosts": "wiki.intern, 10.0.0.7:8080",
        "telegram_token": "[REDACTED]",
        "telegram_chat": "-100",
        "telegram_url": "http://localhost:8081",
        "telegram_channel": "true",
        "x_client_id": "client-of-x",
        "x_client_secret": "[REDACTED]",
        "x_token": "[REDACTED]",
        "x_refresh_token": "[REDACTED]",
        "x_url": "http://localhost:8082",
        "embeddings": "openai/text-embedding-3-small",
        "embeddings_url": "http://localhost:8082/v1",
        "embeddings_key": "[REDACTED]",
        "recall": "true",
        "tool_search": "40",
        "knowledge_tool": "look_up",
        "delegation_depth": "2",
        "delegation_jobs": "9",
        "jobs_at_once": "4",
    }
    assert settings.token is not None and settings.token.reveal() == TOKEN
    assert settings.delegation == Delegation(depth=2, jobs=9, at_once=4)
    assert settings.limits == Limits(at_once=2, per_tick=3, tick=0.5, per_day=7, repeats=4)


def test_secret_is_never_displayed(sources: SettingsSources) -> None:
    settings = sources.load(ATLAS_TOKEN=TOKEN, ATLAS_DATABASE_URL="postgresql://ana:pass-canary@db/x")
    shown = f"{settings!r} {settings} {settings.explain()!r} {sources.environment()!r}"
    assert [secret for secret in (TOKEN, "pass-canary") if secret in shown] == []


def test_relative_path_starts_at_its_source(sources: SettingsSources) -> None:
    sources.user("workspace = 'agents'\n")
    assert sources.load().workspace == sources.user_file.parent / "agents"
    sources.project("workspace = '../agents'\ndatabase_url = 'sqlite:///state/x.db'\n")
    assert sources.load().workspace == sources.cwd.parent / "agents"
    assert sources.load().database_url.reveal() == f"sqlite:///{sources.cwd}/state/x.db"
    assert sources.load(ATLAS_WORKSPACE="here").workspace == sources.cwd / "here"
    assert sources.load({"workspace": Path("/there")}).workspace == Path("/there")


def test_settings_file_can_be_chosen(sources: SettingsSources) -> None:
    sources.project("port = 1\n")
    (sources.cwd / "other.toml").write_text("port = 2\n")
    assert sources.load(ATLAS_CONFIG="other.toml").port == 2
    assert sources.load({"config": "atlas.toml"}).port == 1
    assert sources.error({"config": "none.toml"}) == (
        "settings file not found: none.toml; create it, or remove --config and ATLAS_CONFIG"
    )


def test_token_can_be_read_from_a_secret_file(sources: SettingsSources) -> None:
    secret = sources.cwd / "token"
    secret.write_text(f"{TOKEN}\n")
    secret.chmod(0o600)
    settings = sources.load(ATLAS_TOKEN_FILE="token")
    assert settings.token is not None and settings.token.reveal() == TOKEN
    assert Explained("token", "[REDACTED]", str(secret)) in settings.explain()
    assert settings.notices == ()
    secret.chmod(0o644)
    assert sources.load().notices == (f"ATLAS_TOKEN_FILE: other users can read {secret}; run: chmod 600 {secret}",)
    secret.chmod(0o602)
    assert sources.error() == ("ATLAS_TOKEN_FILE points to token, which every user can write to; run: chmod 600 token")


def test_misspelled_variable_causes_a_notice(sources: SettingsSources) -> None:
    settings = sources.load(ATLAS_PROT="1", ATLAS_SOMETHING_OF_ANOTHER_PROGRAM="x", PORT="2")
    assert settings.notices == ("unknown environment variable ATLAS_PROT; did you mean ATLAS_PORT?",)


def test_load_reads_the_process_environment_and_dotenv(
    sources: SettingsSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources.dotenv("ATLAS_REPEATS=3\n")
    sources.trust(sources.cwd / ".env")
    for name, value in sources.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ATLAS_PORT", "99")
    monkeypatch.chdir(sources.cwd)
    settings = load()
    assert (settings.port, settings.repeats) == (99, 3)


# Reload


def test_invalid_settings_keep_the_old_ones(sources: SettingsSources) -> None:
    sources.project("port = 1\n")
    old = sources.load()
    for half in ("port = ", "port = 2\nhos", "port = '2'\n", "port = 2\nport = 3\n"):
        sources.project(half)
        current, error = load_again(old, {}, sources.environment(), sources.cwd)
        assert current is old
        assert error is not None and error.startswith(f"{sources.project_file}:")
    sources.project("port = 2\n")
    new, error = load_again(old, {}, sources.environment(), sources.cwd)
    assert (new.port, error) == (2, None)


# Home folder


def test_default_home_folder_follows_the_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def home(**values: str) -> Path:
        return paths.home(Environment({"HOME": "/home/ana", **values}, dotenv=None))

    monkeypatch.setattr(sys, "platform", "linux")
    assert home() == Path("/home/ana/.local/share/atlas-agents")
    assert home(XDG_DATA_HOME="/data") == Path("/data/atlas-agents")
    assert home(XDG_DATA_HOME="relative") == Path("/home/ana/.local/share/atlas-agents")
    assert home(ATLAS_HOME="~/state") == Path("/home/ana/state")
    assert home(ATLAS_HOME="/a/../b") == Path("/b")
    monkeypatch.chdir(tmp_path)
    assert home(ATLAS_HOME="here") == tmp_path / "here"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert home() == Path("/home/ana/Library/Application Support/atlas-agents")


def test_home_folder_is_private(sources: SettingsSources) -> None:
    settings = sources.load(ATLAS_HOME="deep/state")
    before = os.umask(0)
    try:
        made = open_home(settings)
    finally:
        os.umask(before)
    assert made == sources.cwd / "deep" / "state"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o750)
    assert open_home(settings) == made  # the mode of an existing folder is not changed
    assert stat.S_IMODE(made.stat().st_mode) == 0o750


@pytest.mark.parametrize("where", ["file", "file/state"])
def test_home_folder_that_cannot_be_created_is_named(where: str, sources: SettingsSources) -> None:
    (sources.cwd / "file").write_text("")
    with pytest.raises(
        ConfigError, match=rf"(expected a folder at .*{where},|cannot create the folder .*{where}: .*; set ATLAS_HOME)"
    ):
        open_home(sources.load(ATLAS_HOME=where))


def test_flags_accept_typed_values(sources: SettingsSources) -> None:
    flags: dict[str, Any] = {"port": "7", "two_person": True, "allowed_hosts": ["a.example"], "tick": 2}
    settings = sources.load(flags)
    assert (settings.port, settings.two_person, settings.allowed_hosts, settings.tick) == (7, True, ("a.example",), 2)
