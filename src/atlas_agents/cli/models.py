"""`atlas models …`: list the models; download and remove those that run on this machine."""

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from atlas_agents.cli.command import Argument, Group, JsonFlag, Option, YesFlag, command, confirm
from atlas_agents.cli.output import print_json, print_table, show_download

if TYPE_CHECKING:
    from atlas_agents.local.models import ModelState
    from atlas_agents.providers.catalogue import ModelEntry, Price

app = Group()
Name = Annotated[str, Argument(metavar="MODEL", help="The name of the model, as `list` shows it.")]


@command(app, "list")
def list_models(
    name: Annotated[str, Argument(metavar="NAME", help="Part of a name; other models are left out.")] = "",
    everything: Annotated[bool, Option("--all", help="Include older, specialised and dated models.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the models of vendors, with price and limits, and those that can run on this machine."""
    from atlas_agents.local import models

    local = [each for each in models.list_models() if name.lower() in each.model.id.lower()]
    hosted = [each for each in _find_hosted(everything) if name.lower() in each.reference.lower()]
    if as_json:
        print_json([*map(_as_json, local), *(each.as_json() for each in hosted)])
        return
    rows = [(each.model.id, f"{each.model.megabytes} MB", _installed(each), each.model.label) for each in local]
    if rows or not hosted:
        print_table(("model", "size", "installed", "about"), rows, "No models match.")
    if hosted:
        if rows:
            print()
        print_table(_HOSTED_COLUMNS, [each.as_row() for each in hosted], "")
        print(
            f"\nDollars per million tokens, list prices of {_data_date()}. Prices with + are higher for long requests."
        )


@command(app)
async def pull(model: Name, yes: YesFlag = False) -> None:
    """Download a model, or resume an interrupted download, and verify its checksum."""
    from atlas_agents.local.download import pull as download
    from atlas_agents.local.models import find_model, model_state, models_folder

    wanted = find_model(model)
    state = model_state(wanted, models_folder())
    if not state.installed:
        print(
            f"{wanted.title} ({wanted.license}), {wanted.megabytes} MB, to {state.path.parent}: {wanted.label}.",
            file=sys.stderr,
        )
        if not yes and not wanted.auto_download and not confirm("Download it?"):
            print("Nothing was downloaded.", file=sys.stderr)
            return
    print(await download(model, progress=show_download(model)))


@command(app)
def remove(model: Name) -> None:
    """Remove a model from this machine."""
    from atlas_agents.local.models import remove_model

    freed = remove_model(model)
    print(f"{model}: removed, {freed / 1e6:.0f} MB freed." if freed else f"{model}: not installed.", file=sys.stderr)


def _installed(state: "ModelState") -> str:
    if state.installed:
        return "yes"
    return f"{state.fetched / state.model.size:.0%}" if state.fetched else "no"


def _as_json(state: "ModelState") -> dict[str, object]:
    model = state.model
    return {
        "id": model.id,
        "title": model.title,
        "label": model.label,
        "license": model.license,
        "bytes": model.size,
        "installed": state.installed,
        "fetchedBytes": state.fetched,
        "path": str(state.path),
    }


# Models of vendors

_HOSTED_COLUMNS = ("model", "key", "input", "output", "cache read", "write", "window", "answer", "takes", "effort")
_PROVIDERS = ("anthropic", "openai", "google")
_COMMON_VENDORS = ("anthropic", "openai", "google", "deepseek", "x-ai", "mistral")
_SPECIAL = re.compile(
    "tts|image|audio|realtime|live|transcri|embed|ocr|search|robotics|omni|banana|vision|voice|cyber|computer-use|"
    "research|instruct|:|rosalind|translate|whisper|contributor"
)
_OLD = re.compile(
    r"claude-[23]|claude-v|gpt-3|gpt-4(?!\.1|o)|gpt-4\.5|chatgpt|gpt-chat|gemini-(?:1|2\.0|pro|flash)|o1|codex|grok-[23]|"
    r"20\d\d|-\d{4}$|-preview-"
)


class _HostedModel:
    """A model of the catalogue, and whether the key of its vendor is set; None if there is no provider for it."""

    def __init__(self, vendor: str, entry: "ModelEntry", price: "Price", has_key: bool | None) -> None:
        from atlas_agents.providers.catalogue import find_profile

        self.reference = f"{vendor}/{entry.id}" if vendor in _PROVIDERS else entry.id
        self.has_key = has_key
        self._vendor, self._price, self._profile = vendor, price, find_profile(entry.id)

    def as_row(self) -> tuple[str, ...]:
        price, profile = self._price, self._profile
        larger = "+" if price.above else ""
        effort = "–".join(dict.fromkeys((*profile.efforts[:1], *profile.efforts[-1:])))
        key = "" if self.has_key is None else "yes" if self.has_key else "no"
        prices = (price.input, price.output, price.cached, price.cache_write)
        window, answer = _tokens(profile.context_window), _tokens(profile.output_limit)
        shown = [f"{each:g}{larger}" if each is not None else "" for each in prices]
        return (
            self.reference,
            key,
            *shown,
            window,
            answer,
            " ".join(profile.inputs),
            effort or "budget" * profile.budget,
        )

    def as_json(self) -> dict[str, object]:
        profile = self._profile
        return {
            "id": self.reference,
            "vendor": self._vendor,
            "keySet": self.has_key,
            "price": _price_as_json(self._price),
            "pricesOf": _data_date(),
            "contextWindow": profile.context_window,
            "outputLimit": profile.output_limit,
            "inputs": list(profile.inputs),
            "efforts": list(profile.efforts),
        }


def _find_hosted(everything: bool) -> Iterator[_HostedModel]:
    import time

    from atlas_agents.core.paths import SECRETS_FILE, Environment, home, read_json
    from atlas_agents.providers.catalogue import find_model, key_variables, load_models

    environment, today = Environment(), time.strftime("%Y-%m-%d")
    stored = (read_json(home(environment) / SECRETS_FILE, dict[str, Any]) or {}).get("providers", {})
    for vendor in load_models().vendors:
        has_key = None
        if vendor.id in _PROVIDERS:
            variables, kept = key_variables(vendor.id), stored.get(vendor.id, {}).get("key")
            has_key = bool(kept) or any(map(environment.secret, variables))
        for entry in vendor.models if everything or vendor.id in _COMMON_VENDORS else ():
            if not everything and (_SPECIAL.search(entry.id) or _OLD.search(entry.id)):
                continue
            price = entry.price_on(today)
            if price is not None and find_model(entry.id) is entry:
                yield _HostedModel(vendor.id, entry, price, has_key)


def _data_date() -> str:
    from atlas_agents.providers.catalogue import load_models

    return load_models().date


def _tokens(number: int | None) -> str:
    if number is None:
        return ""
    return f"{number / 1_000_000:.3g}M" if number >= 1_000_000 else f"{number / 1000:.3g}k"


def _price_as_json(price: "Price") -> dict[str, object]:
    fields: dict[str, object] = {
        "input": price.input,
        "output": price.output,
        "cacheRead": price.cached,
        "cacheWrite": price.cache_write,
        "cacheWrite1h": price.cache_write_1h,
    }
    if price.above:
        fields["above"] = [{"tokens": tokens, **_price_as_json(larger)} for tokens, larger in price.above]
    return fields
