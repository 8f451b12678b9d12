"""Settings from all their sources: flags, then the environment and `.env`, then two files, then defaults."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atlas_agents.config.checks import checked
from atlas_agents.config.given import from_environment, from_file, from_flags, notices
from atlas_agents.config.settings import Settings
from atlas_agents.core.environment import Environment
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.places import home, user_config
from atlas_agents.core.secret import Secret


def load(
    flags: Mapping[str, Any] | None = None, environment: Environment | None = None, cwd: Path | None = None
) -> Settings:
    """Read and check everything, also what another source overrides; ConfigError names file, line and key.

    Without an `environment` it is that of this process and the `.env` of `cwd`.
    """
    folder = (cwd or Path.cwd()).absolute()
    environment = environment or Environment(dotenv=folder / ".env")
    outside = [list(from_environment(environment, folder)), list(from_flags(flags or {}, folder, environment))]
    named = [checked(given) for each in outside for given in each if given.setting.key == "config"]
    project = from_file(named[-1] if named else folder / "atlas.toml", environment, must_exist=bool(named))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source in (from_file(user_config(environment), environment), project, *outside):
        for given in source:
            values[given.setting.key] = checked(given)
            origins[given.setting.key] = given.origin
    values.setdefault("home", home(environment))
    values.setdefault("workspace", values["home"] / "workspace")
    values.setdefault("database_url", Secret(f"sqlite:///{values['home'] / 'atlas.db'}"))
    return Settings(**values, origins=origins, notices=tuple(notices(environment, folder)))


def load_again(
    old: Settings,
    flags: Mapping[str, Any] | None = None,
    environment: Environment | None = None,
    cwd: Path | None = None,
) -> tuple[Settings, str | None]:
    """The settings as they are now, or the old ones and why they stay."""
    try:
        return load(flags, environment, cwd), None
    except ConfigError as error:
        return old, str(error)
