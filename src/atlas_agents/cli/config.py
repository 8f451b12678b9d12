"""`atlas config …`: the settings in force, what they are for, and where they come from."""

import sys
from pathlib import Path

from atlas_agents.cli import options as given
from atlas_agents.cli import show as shown
from atlas_agents.cli.border import guarded
from atlas_agents.config.settings import SETTINGS, Settings
from atlas_agents.core.paths import Environment, user_config


def show(*, as_json: bool) -> int:
    def work() -> None:
        found = given.settings()
        _notices(found)
        values = {each.key: each.value for each in found.explain()}
        if as_json:
            shown.as_json(values)
            return
        shown.table(("setting", "value"), list(values.items()), "")

    return guarded(work)


def explain(*, as_json: bool) -> int:
    def work() -> None:
        found = given.settings()
        _notices(found)
        rows = [(each.key, each.value, each.origin, SETTINGS[each.key]) for each in found.explain()]
        if as_json:
            shown.as_json(
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
        shown.table(("setting", "value", "said by", "about"), lines, "")

    return guarded(work)


def path(*, as_json: bool) -> int:
    def work() -> None:
        found = given.settings()
        places = _places(found)
        if as_json:
            shown.as_json([{"what": what, "path": str(where), "exists": where.exists()} for what, where in places])
            return
        rows = [(what, "yes" if where.exists() else "no", where) for what, where in places]
        shown.table(("what", "there", "path"), rows, "")

    return guarded(work)


def _places(found: Settings) -> list[tuple[str, Path]]:
    project = found.config or Path.cwd() / "atlas.toml"
    named = [("policy", found.policy)] if found.policy else []
    return [
        ("environment file", Path.cwd() / ".env"),
        ("project settings", project),
        ("user settings", user_config(Environment())),
        *named,
        ("workspace", found.workspace),
        ("home", found.home),
        ("token", found.home / "token"),
        ("other tokens", found.home / "tokens.json"),
        ("models", found.home / "models"),
    ]


def _notices(found: Settings) -> None:
    for notice in found.notices:
        print(f"atlas: {notice}", file=sys.stderr)
