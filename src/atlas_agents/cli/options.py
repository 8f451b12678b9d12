"""What a command was called with, and the settings that follow from it."""

import os
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.config.load import load
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError


class Talking(msgspec.Struct, frozen=True):
    """Who is to be talked with: an agent of the workspace, or a model that is named here, alone."""

    session: str | None = None
    agent: str | None = None
    latest: bool = False
    model: str | None = None
    base_url: str | None = None
    system: str | None = None
    tools: bool = True

    @property
    def alone(self) -> bool:
        """A model of one's own choice, beside the workspace; nothing of it is kept."""
        chosen = self.model is not None or self.base_url is not None or self.system is not None or not self.tools
        if chosen and (self.session or self.agent or self.latest):
            raise ConfigError(
                "--model, --base-url, --system and --no-tools begin a conversation that is not kept, with no agent of "
                "the workspace: leave --session, --continue and --agent out"
            )
        return chosen


def settings(**flags: Any) -> Settings:
    """All settings, with these flags before all other sources."""
    if flags.get("home") is not None:
        os.environ["ATLAS_HOME"] = str(Path(flags["home"]).expanduser().absolute())  # models are looked for there too
    return load(flags)


def token_of(settings: Settings) -> str:
    """The main token: the user's own, or the one in the home folder."""
    if settings.token is not None:
        return settings.token.reveal()
    path = settings.home / "token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {path} cannot be read: {error}") from error
