"""Model catalogue: prices, context windows and limits by model name, next to the calculation of `genai-prices`."""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

import model_catalogue
from atlas_agents import Agent, Atlas, ConfigError, LocalProvider, Price, register_model
from atlas_agents.core.events import Usage
from atlas_agents.providers import catalogue
from atlas_agents.providers.base import Prices
from atlas_agents.testing import Scripted, says
from checks import TIMEOUT

CURRENT = {
    "claude-opus-5-5": "anthropic",
    "claude-sonnet-5-5": "anthropic",
    "claude-haiku-5-5": "anthropic",
    "claude-opus-5": "anthropic",
    "claude-opus-4-8": "anthropic",
    "claude-sonnet-4-5": "anthropic",
    "gpt-5": "openai",
    "gpt-5.4": "openai",
    "gpt-5.6-sol": "openai",
    "gpt-6-astra": "openai",
    "gpt-6.1-sol": "openai",
    "gemini-2.5-pro": "google",
    "gemini-3.1-pro-preview": "google",
    "gemini-4-argon": "google",
    "deepseek-v4-pro": "deepseek",
    "grok-4.7": "x-ai",
    "mistral-large-4": "mistral",
}
USAGES = [
    Usage(1000, 200),
    Usage(150_000, 4000, cached_tokens=120_000),
    Usage(50_000, 10, cached_tokens=20_000, cache_write_tokens=25_000),
    Usage(50_000, 10, cached_tokens=20_000, cache_write_tokens=25_000, cache_write_1h_tokens=5000),
    Usage(300_000, 9000, cached_tokens=100_000, cache_write_tokens=50_000, reasoning_tokens=8000),
    Usage(200_000, 1),
    Usage(200_001, 1),
    Usage(),
]


@pytest.fixture(autouse=True)
def _restore_registered() -> Iterator[None]:
    before = dict(catalogue.registered)
    yield
    catalogue.registered.clear()
    catalogue.registered.update(before)
    catalogue.find_profile.cache_clear()


@pytest.mark.parametrize(("model", "vendor"), CURRENT.items(), ids=CURRENT)
def test_costs_are_those_that_genai_prices_calculates(model: str, vendor: str) -> None:
    from genai_prices import Usage as TheirUsage
    from genai_prices import calc_price

    noon = datetime.combine(date.fromisoformat(catalogue.load_models().date), datetime.min.time(), UTC).replace(hour=12)
    entry = catalogue.find_model(model)
    price = entry.price_on(noon.date().isoformat()) if entry else None
    assert price is not None
    for usage in USAGES:
        theirs = TheirUsage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cache_write_1h_tokens=usage.cache_write_1h_tokens,
            output_reasoning_tokens=usage.reasoning_tokens,
        )
        expected = calc_price(theirs, model, provider_id=vendor, genai_request_timestamp=noon).total_price
        assert price.cost(usage) == pytest.approx(float(expected)), usage


OTHER_NAMES = {
    "claude-opus-4-5-20251101": "claude-opus-4-5",
    "claude-opus-4-6@20260101": "claude-opus-4-6",
    "anthropic/claude-opus-5.5": "claude-opus-5-5",
    "anthropic/claude-opus-4.6:thinking": "claude-opus-4-6",
    "openrouter/anthropic/claude-sonnet-5.5": "claude-sonnet-5-5",
    "publishers/anthropic/models/claude-opus-5-5": "claude-opus-5-5",
    "global.anthropic.claude-opus-5-5": "global.anthropic.claude-opus-5-5",
    "us.anthropic.claude-opus-4-5-20251101-v1:0": "regional.anthropic.claude-opus-4-5-v1:0",
    "bedrock/eu.anthropic.claude-opus-5-5": "regional.anthropic.claude-opus-5-5",
    "gpt-5-2025-08-07": "gpt-5",
    "openai/gpt-6.1-sol": "gpt-6.1-sol",
    "GPT-5.4": "gpt-5.4",
    "azure/gpt-5.4": "gpt-5.4",
    "models/gemini-2.5-flash": "gemini-2.5-flash",
    "google/gemini-4-argon": "gemini-4-argon",
    "gemini-3.1-pro": "gemini-3.1-pro-preview",
    "x-ai/grok-4.5": "grok-4.5",
    "z-ai/glm-5.3": "glm-5.3",
}


@pytest.mark.parametrize(("name", "id"), OTHER_NAMES.items(), ids=OTHER_NAMES)
def test_model_is_found_under_the_names_of_clouds_and_proxies(name: str, id: str) -> None:
    entry = catalogue.find_model(name)
    assert entry is not None
    assert entry.id == id
    assert Prices().find(name) == entry.price_on(date.today().isoformat())


def test_unknown_local_model_does_not_make_the_model_of_a_vendor_free() -> None:
    before = Prices().find("gpt-5")
    LocalProvider("gpt-5")
    assert Prices().find("gpt-5") == before != Price(0, 0)
    assert Prices().find("qwen2.5-coder-1.5b") == Price(0, 0)


UNKNOWN = ["", "scripted", "gpt-17", "claude", "gpt-oss-120b", "gpt-4.1-turbo"]
SELF_HOSTED_OR_FREE = [
    "llama3.1:8b",
    "mistral-nemo:12b",
    "deepseek-r1:8b",
    "kimi-k2:1t",
    "deepseek/deepseek-v4-flash:free",
]


@pytest.mark.parametrize("name", [*UNKNOWN, *SELF_HOSTED_OR_FREE])
def test_unknown_model_has_no_price_and_no_window(name: str) -> None:
    assert Prices().find(name) is None
    assert catalogue.find_profile(name).context_window is None


def test_amazon_charges_more_for_a_region() -> None:
    prices = Prices()
    everywhere, region = prices.find("global.anthropic.claude-opus-5-5"), prices.find("us.anthropic.claude-opus-5-5")
    assert everywhere is not None and region is not None
    assert region.input == pytest.approx(1.1 * everywhere.input)


def test_announced_price_applies_from_its_day() -> None:
    entry = catalogue.find_model("gemini-4-argon")
    assert entry is not None
    before, after = entry.price_on("2026-11-30"), entry.price_on("2026-12-01")
    assert before is not None and after is not None
    assert (before.input, after.input) == (2, 4)


def test_cache_writes_cost_more_than_plain_input_and_reads_less() -> None:
    price = Price(4, 20, cached=0.2, cache_write=5, cache_write_1h=8)
    assert price.cost(Usage(1_000_000, 0)) == 4
    assert price.cost(Usage(1_000_000, 0, cached_tokens=1_000_000)) == pytest.approx(0.2)
    assert price.cost(Usage(1_000_000, 0, cache_write_tokens=1_000_000)) == 5
    assert price.cost(Usage(1_000_000, 0, cache_write_tokens=1_000_000, cache_write_1h_tokens=1_000_000)) == 8
    assert Price(4, 20).cost(Usage(3_000_000, 0, cached_tokens=1_000_000, cache_write_tokens=1_000_000)) == 12


def test_profile_has_window_output_limit_and_inputs() -> None:
    opus = catalogue.find_profile("us.anthropic.claude-opus-5-5")
    assert (opus.family, opus.context_window, opus.output_limit) == ("Claude 5.5", 1_000_000, 128_000)
    assert opus.inputs == ("text", "image", "pdf")
    assert catalogue.find_profile("claude-sonnet-4-5").output_limit == 64_000
    assert catalogue.find_profile("gpt-4.1").output_limit == 32_768
    assert "audio" in catalogue.find_profile("gemini-3.1-pro-preview").inputs
    assert catalogue.find_profile("my-model") is catalogue.UNKNOWN


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("gpt-5-2025-08-07", "GPT-5"),
        ("gpt-5.1-2025-11-13", "GPT-5.1"),
        ("anthropic/claude-opus-5.5", "Claude 5.5"),
        ("anthropic/claude-sonnet-4.5", "Claude 4.5"),
    ],
)
def test_profile_of_a_dated_or_dotted_name_is_that_of_its_family(name: str, family: str) -> None:
    assert catalogue.find_profile(name).family == family


async def test_registered_model_has_price_and_window() -> None:
    register_model("my-model", price=Price(1, 2), context_window=32_000, output_limit=4000, inputs=("text",))
    register_model("claude-opus-5-5", context_window=200_000)
    profile = catalogue.find_profile("my-model-2026-05-01")
    assert (profile.context_window, profile.output_limit, profile.inputs) == (32_000, 4000, ("text",))
    assert catalogue.find_profile("claude-opus-5-5").context_window == 200_000
    assert catalogue.find_profile("claude-opus-5-5").family == "Claude 5.5"
    assert Prices().find("my-model") == Price(1, 2)
    assert Prices({"my-model": Price(3, 4)}).find("my-model") == Price(3, 4)
    async with Atlas([Agent("a", model=Scripted(says("Hello."), id="my-model"))]) as atlas:
        assert (await atlas.run("Hi")).usage.cost is not None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"price": Price(-1, 2)}, "invalid price of 'm': must not be negative"),
        ({"price": Price(1, 2, above=((10, Price(1, -2)),))}, "invalid price of 'm'"),
        ({"context_window": 0}, "invalid context_window of 'm': expected at least 1, got 0"),
        ({"output_limit": -5}, "invalid output_limit of 'm'"),
    ],
)
def test_impossible_values_are_refused(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        register_model("m", **options)  # type: ignore[arg-type]
    assert "m" not in catalogue.registered


def test_models_of_the_settings_are_read() -> None:
    example = Path(__file__).parents[1] / "docs/examples/models.toml"
    found = catalogue.read_models(tomllib.loads(example.read_text(encoding="utf-8"))["model_catalogue"])
    assert found["my-model"] == catalogue.RegisteredModel(Price(1, 4, 0.1, 1.25), 32_000, 8000)
    assert found["gpt-5.4"] == catalogue.RegisteredModel(None, 200_000)


@pytest.mark.parametrize(
    "line", ["my-model", "my-model input=1", "m input=-1 output=2", "m window=1 window=2", "m size=3", "m window=x"]
)
def test_invalid_model_of_the_settings_is_quoted(line: str) -> None:
    with pytest.raises(
        ConfigError, match=f"invalid model '{line}': expected one line per model, for example 'my-model"
    ):
        catalogue.read_models((line,))
    with pytest.raises(ConfigError, match="invalid model"):
        catalogue.read_models(("m window=5", "m window=6"))


def test_price_given_to_an_atlas_must_not_be_negative() -> None:
    with pytest.raises(ConfigError, match="invalid price of 'm': must not be negative"):
        Prices({"m": Price(1, 1, cache_write=-1)})


def test_data_file_is_what_the_script_generates() -> None:
    text = Path(catalogue.__file__).with_name("models.json").read_text(encoding="utf-8")
    assert text == model_catalogue.generate(date.fromisoformat(catalogue.load_models().date))


def test_data_is_loaded_by_the_first_lookup_and_not_for_unknown_vendors() -> None:
    program = (
        "import atlas_agents, atlas_agents.providers.openai\n"
        "from atlas_agents.providers import base, catalogue\n"
        "base.Prices().find('llama3.1:8b'); catalogue.find_profile('my-model')\n"
        "assert catalogue.load_models.cache_info().currsize == 0\n"
        "assert base.Prices().find('gpt-5').input == 1.25\n"
        "assert catalogue.load_models.cache_info().currsize == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=TIMEOUT)
