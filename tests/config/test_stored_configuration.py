"""The configuration of tests/data, which every later version must read."""

import shutil
from pathlib import Path

from settings_sources import SettingsSources

from atlas_agents.config.open import open_policy
from atlas_agents.workspace.workspace import Workspace

DATA = Path(__file__).parents[1] / "data"


def test_stored_configuration_is_read(sources: SettingsSources) -> None:
    for name in ("atlas.toml", "policy.toml", "AGENTS.md"):
        shutil.copy(DATA / name, sources.cwd)
    sources.project((DATA / "atlas.toml").read_text(encoding="utf-8"))
    settings = sources.load()
    assert not settings.ignored
    assert (settings.model, settings.port, settings.drain_seconds) == ("openai/gpt-5.6", 8123, 7.5)
    assert (settings.keep_events, settings.log_format, len(settings.budgets)) == (14, "json", 2)
    policy = open_policy(settings)
    assert policy is not None and policy.groups == ("helpers",) and set(policy.tools) == {"current_time", "bash"}
    clerk, manager = Workspace(settings.workspace).state.agents
    assert (clerk.id, clerk.name, clerk.role, clerk.tools) == ("clerk", "Clerk", "office", ("current_time",))
    assert clerk.hands_off_to == ("manager",) and manager.temperature == 0.2
