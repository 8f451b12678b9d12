"""Provider registry: keys and settings from the environment, `.env` or a secret file."""

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Agent, AnthropicProvider, Atlas, BadModelRef, Balanced, ConfigError, MissingKey, OpenAIProvider
from atlas_agents.providers.base import collect_keys
from atlas_agents.testing import Environment, Registry

KEY = "sk-canary-0123456789"


def environment(dotenv: Path | None = None, **values: Any) -> Environment:
    return Environment(values, dotenv=dotenv)


# A provider exists when its key is set


@pytest.mark.parametrize(
    ("values", "known"),
    [
        ({}, []),
        ({"OPENAI_API_KEY": KEY}, ["openai", "openai-responses"]),
        ({"ANTHROPIC_API_KEY": KEY}, ["anthropic"]),
        ({"GOOGLE_API_KEY": KEY}, ["google"]),
        ({"GEMINI_API_KEY": KEY}, ["google"]),
        ({"DEEPSEEK_API_KEY": KEY, "XAI_API_KEY": KEY}, ["deepseek", "xai"]),
        ({"OPENROUTER_BASE_URL": "http://127.0.0.1:1/v1"}, ["openrouter"]),
        ({"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}, ["openai", "openai-responses", "anthropic"]),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, ["openai", "openai-responses", "http"]),
        ({"OPENAI_API_KEY": "  "}, []),
        ({"OPENAI_API_KEY": ""}, []),
    ],
)
def test_provider_exists_when_its_key_is_set(values: dict[str, Any], known: list[str]) -> None:
    available = Registry(environment(**values)).available()
    assert [name for name in available if name != "local"] == known


def test_each_provider_is_created_once() -> None:
    registry = Registry(environment(OPENAI_API_KEY=KEY))
    assert registry.provider("openai") is registry.provider("openai")
    route = registry.route("openai/gpt-x")
    assert (route.provider, route.model) == (registry.provider("openai"), "gpt-x")


async def test_demo_needs_neither_a_key_nor_a_model() -> None:
    async with Atlas([Agent("a", model="demo")], registry=Registry(environment())) as atlas:
        assert atlas.agents[0].models == ("demo",)
        assert "scripted demo" in (await atlas.ask("Hello")).text


def test_key_of_openai_is_not_sent_to_another_vendor() -> None:
    values = environment(
        OPENAI_API_KEY="sk-for-openai-only", GROQ_BASE_URL="http://127.0.0.1:1/v1", MISTRAL_API_KEY=KEY
    )
    groq, mistral = (Registry(values).provider(id) for id in ("groq", "mistral"))
    assert isinstance(groq, OpenAIProvider) and groq.key is None
    assert isinstance(mistral, OpenAIProvider) and mistral.key is not None and mistral.key.reveal() == KEY
    assert (mistral.id, mistral.base_url) == ("mistral", "https://api.mistral.ai/v1")


def test_base_url_is_read_from_the_environment() -> None:
    values: dict[str, Any] = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1/", "ANTHROPIC_BASE_URL": "http://127.0.0.1:2"}
    registry = Registry(environment(**values, ANTHROPIC_API_KEY=KEY))
    openai, anthropic, http = (registry.provider(id) for id in ("openai", "anthropic", "http"))
    assert isinstance(openai, OpenAIProvider) and openai.base_url == "http://127.0.0.1:1/v1"
    assert isinstance(anthropic, AnthropicProvider) and anthropic.base_url == "http://127.0.0.1:2"
    assert isinstance(http, OpenAIProvider) and (http.id, http.base_url) == ("http", "http://127.0.0.1:1/v1")


@pytest.mark.parametrize(
    ("id", "variable"),
    [
        ("openai", "OPENAI_API_KEY"),
        ("openai-responses", "OPENAI_API_KEY"),
        ("anthropic", "ANTHROPIC_API_KEY"),
        ("google", "set GOOGLE_API_KEY or GEMINI_API_KEY"),
        ("mistral", "MISTRAL_API_KEY"),
        ("http", "OPENAI_BASE_URL"),
    ],
)
def test_error_names_the_missing_setting(id: str, variable: str) -> None:
    with pytest.raises(MissingKey, match=variable):
        Registry(environment()).provider(id)


def test_both_apis_of_openai_use_the_same_keys_and_address() -> None:
    registry = Registry(environment(OPENAI_API_KEY=f"{KEY},{KEY}-2", OPENAI_BASE_URL="http://127.0.0.1:1/v1"))
    providers = [registry.provider(id) for id in ("openai", "openai-responses")]
    assert all(isinstance(each, Balanced) and each.base_url == "http://127.0.0.1:1/v1" for each in providers)
    assert [[key.reveal() for key in collect_keys(each)] for each in providers] == [[KEY, f"{KEY}-2"]] * 2


def test_error_of_an_unknown_provider_lists_the_known_ones() -> None:
    with pytest.raises(
        BadModelRef, match=r"unknown provider 'acme'; known providers: anthropic, deepseek, demo, google.*openai"
    ):
        Registry(environment()).provider("acme")


@pytest.mark.parametrize("wrong", [7, None, object()])
def test_value_that_is_not_a_model_is_rejected(wrong: Any) -> None:
    with pytest.raises(
        ConfigError, match="expected a model reference such as 'anthropic/claude-opus-4-6', a provider or a function"
    ):
        Registry(environment()).route(wrong)


def test_default_model_is_read_from_the_environment() -> None:
    assert Registry(environment(ATLAS_MODEL="openai/gpt-x")).default_model == "openai/gpt-x"
    assert Registry(environment()).default_model is None


async def test_process_environment_is_read_when_a_model_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    atlas = Atlas([Agent("a", model="openai/gpt-x")])  # nothing is read yet
    monkeypatch.setenv("OPENAI_API_KEY", "bad\nkey")
    with pytest.raises(MissingKey, match="contains invalid characters"):
        await atlas.ask("hi")


# .env


def test_dotenv_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(
        "# keys\n"
        "\n"
        f"OPENAI_API_KEY={KEY}\n"
        'export QUOTED="with spaces # and a hash"\n'
        "SINGLE='single'\n"
        "SPACED =  value  # a comment\n"
        "EMPTY=\n"
        "EQUALS=a=b\n"
        "UNICODE=wörter\n",
        encoding="utf-8",
    )
    found = environment(path)
    names = ["OPENAI_API_KEY", "QUOTED", "SINGLE", "SPACED", "EMPTY", "EQUALS", "UNICODE", "ABSENT"]
    assert [found.get(name) for name in names] == [
        KEY,
        "with spaces # and a hash",
        "single",
        "value",
        None,
        "a=b",
        "wörter",
        None,
    ]
    assert Registry(found).available()[0] == "openai"


def test_environment_overrides_the_dotenv_file(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("A=file\nB=file\nC=file\n")
    found = environment(path, A="process", B="")
    assert [found.get(name) for name in "ABC"] == ["process", "file", "file"]


def test_file_with_windows_line_endings_and_bom_is_read(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(b"\xef\xbb\xbfA=one\r\nB=two\r\n")
    assert [environment(path).get(name) for name in "AB"] == ["one", "two"]


def test_missing_dotenv_file_is_empty(tmp_path: Path) -> None:
    assert environment(tmp_path / "nowhere").get("A") is None
    assert environment(tmp_path).get("A") is None


@pytest.mark.parametrize("line", ["no equals sign", "=value", "1A=x", "A B=x", "A-B=x"])
def test_error_names_the_invalid_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / ".env"
    path.write_text(f"A=1\n\n{line}\n")
    with pytest.raises(ConfigError, match=r"\.env, line 3: expected NAME=value"):
        environment(path)


def test_error_names_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(b"A=\xff\xfe")
    with pytest.raises(ConfigError, match=r"cannot read .*\.env"):
        environment(path)


def test_dotenv_file_of_the_working_directory_is_read_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("ATLAS_MODEL=openai/from-file\n")
    monkeypatch.chdir(tmp_path)
    assert Registry().default_model == "openai/from-file"


# Secret files


def test_key_may_be_in_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    found = environment(OPENAI_API_KEY_FILE=str(path))
    assert found.secret("OPENAI_API_KEY") == KEY
    assert Registry(found).available()[0] == "openai"
    assert environment(OPENAI_API_KEY="direct", OPENAI_API_KEY_FILE=str(path)).secret("OPENAI_API_KEY") == "direct"


def test_dotenv_may_name_the_file_of_a_key(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    (tmp_path / ".env").write_text(f"ANTHROPIC_API_KEY_FILE={tmp_path / 'key'}\n")
    assert environment(tmp_path / ".env").secret("ANTHROPIC_API_KEY") == KEY


def test_error_names_an_unreadable_or_empty_key_file(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("  \n")
    with pytest.raises(ConfigError, match=r"OPENAI_API_KEY_FILE points to .*empty, which is empty"):
        environment(OPENAI_API_KEY_FILE=str(empty)).secret("OPENAI_API_KEY")
    with pytest.raises(ConfigError, match=r"OPENAI_API_KEY_FILE points to .*nowhere, which cannot be read"):
        environment(OPENAI_API_KEY_FILE=str(tmp_path / "nowhere")).secret("OPENAI_API_KEY")


# Keys are never shown


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
def test_key_is_never_shown(vendor: str, caplog: pytest.LogCaptureFixture) -> None:
    kind = OpenAIProvider if vendor == "openai" else AnthropicProvider
    provider = kind("m", api_key=KEY, environment=environment())
    registry = Registry(environment(OPENAI_API_KEY=KEY, ANTHROPIC_API_KEY=KEY))
    agent = Agent("a", model=provider)
    shown = [repr(provider), str(provider), f"{provider}", repr(registry), repr(registry.provider(vendor))]
    shown += [repr(agent), repr(agent.settings), repr(agent.models), repr(registry.route(f"{vendor}/m"))]
    logging.getLogger("atlas_agents").warning("%s %r", provider, agent.settings)
    assert [text for text in [*shown, caplog.text] if KEY in text] == []


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
def test_provider_with_a_key_cannot_be_pickled_or_copied(vendor: str) -> None:
    kind = OpenAIProvider if vendor == "openai" else AnthropicProvider
    provider = kind("m", api_key=KEY, environment=environment())
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            way(provider)


def test_agent_of_a_worker_process_does_not_contain_its_key() -> None:
    agent = Agent("a", model=OpenAIProvider("m", api_key=KEY, environment=environment()))
    assert KEY.encode() not in pickle.dumps(agent.worker_copy())


@pytest.mark.parametrize("key", ["a\nb", "a\r\nX-Evil: 1", "a\x00b", "schlüssel", "   "])
def test_invalid_key_is_rejected_without_being_shown(key: str) -> None:
    for kind in (OpenAIProvider, AnthropicProvider):
        with pytest.raises(MissingKey) as caught:
            kind("m", api_key=key, environment=environment())
        assert key.strip() == "" or key not in str(caught.value)


def test_self_hosted_server_needs_no_key() -> None:
    assert OpenAIProvider("m", base_url="http://127.0.0.1:1/v1", environment=environment()).model == "m"
