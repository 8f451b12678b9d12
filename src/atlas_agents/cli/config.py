"""`atlas config …`: the settings and where they come from. `atlas protocol …`: the gateway's protocol as a schema."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from atlas_agents.cli.command import Group, JsonFlag, command
from atlas_agents.cli.connect import load_settings
from atlas_agents.cli.output import print_json, print_table

if TYPE_CHECKING:
    from atlas_agents.config.settings import Settings

app = Group()
protocol = Group()


@command(app)
def show(as_json: JsonFlag = False) -> None:
    """Show every setting. Secrets are hidden."""
    settings = load_settings()
    _print_notices(settings)
    values = {each.key: each.value for each in settings.explain()}
    if as_json:
        print_json(values)
        return
    print_table(("setting", "value"), list(values.items()), "")


@command(app)
def explain(as_json: JsonFlag = False) -> None:
    """Show every setting with its meaning and where its value comes from."""
    from atlas_agents.config.settings import SETTINGS

    settings = load_settings()
    _print_notices(settings)
    rows = [(each.key, each.value, each.origin, SETTINGS[each.key]) for each in settings.explain()]
    if as_json:
        print_json(
            [
                {
                    "key": key,
                    "value": value,
                    "origin": origin,
                    "variable": setting.variable,
                    "takes": setting.takes,
                    "about": setting.description,
                }
                for key, value, origin, setting in rows
            ]
        )
        return
    lines = [
        (key, value, origin, f"{setting.description} ({setting.variable})") for key, value, origin, setting in rows
    ]
    print_table(("setting", "value", "origin", "about"), lines, "")


@command(app)
def path(as_json: JsonFlag = False) -> None:
    """Show the files and folders in use and whether they exist."""
    paths = _paths(load_settings())
    if as_json:
        print_json([{"what": name, "path": str(path), "exists": path.exists()} for name, path in paths])
        return
    rows = [(name, "yes" if path.exists() else "no", path) for name, path in paths]
    print_table(("file or folder", "exists", "path"), rows, "")


def _paths(settings: "Settings") -> list[tuple[str, Path]]:
    from atlas_agents.core.paths import Environment, user_config

    return [
        ("environment file", Path.cwd() / ".env"),
        ("project settings", settings.config or Path.cwd() / "atlas.toml"),
        ("user settings", user_config(Environment())),
        *([("policy", settings.policy)] if settings.policy else []),
        ("workspace", settings.workspace),
        ("home", settings.home),
        ("token", settings.home / "token"),
        ("other tokens", settings.home / "tokens.json"),
        ("models", settings.home / "models"),
    ]


def _print_notices(settings: "Settings") -> None:
    for notice in settings.notices:
        print(f"atlas: {notice}", file=sys.stderr)


@command(protocol)
def schema() -> None:
    """Print it as JSON Schema."""
    _print_document("schema")


@command(protocol)
def asyncapi() -> None:
    """Print it as AsyncAPI."""
    _print_document("asyncapi")


@command(protocol)
def typescript() -> None:
    """Print it as TypeScript types."""
    _print_document("typescript")


def _print_document(form: str) -> None:
    from atlas_agents.gateway.protocol.documents import document

    print(document(form), end="")
