"""Sources of settings for tests: files, `.env` and an environment that are independent of the machine."""

from pathlib import Path
from typing import Any

import pytest

from atlas_agents import ConfigError
from atlas_agents.config import Settings, load
from atlas_agents.core.trust import Trust, read_files
from atlas_agents.testing import Environment


class SettingsSources:
    """Working directory, user folder and environment variables of one test."""

    def __init__(self, folder: Path) -> None:
        self.cwd = folder / "project"
        self.cwd.mkdir(parents=True)
        self.person = folder / "ana"
        self.variables = {"HOME": str(self.person), "XDG_DATA_HOME": str(self.person / "data")}
        self.variables["XDG_CONFIG_HOME"] = str(self.person / "config")
        self.project_file = self.cwd / "atlas.toml"
        self.user_file = self.person / "config" / "atlas" / "config.toml"

    def project(self, text: str) -> None:
        """Write `atlas.toml` as a person who trusts the folder."""
        self.project_file.write_text(text, encoding="utf-8")
        self.trust(self.project_file)

    def trust(self, *files: Path) -> None:
        Trust.of(self.environment()).trust_folder(self.cwd, read_files(files))

    def user(self, text: str) -> None:
        self.user_file.parent.mkdir(parents=True, exist_ok=True)
        self.user_file.write_text(text, encoding="utf-8")

    def dotenv(self, text: str) -> None:
        (self.cwd / ".env").write_text(text, encoding="utf-8")

    def environment(self) -> Environment:
        return Environment(self.variables, dotenv=self.cwd / ".env")

    def load(self, flags: dict[str, Any] | None = None, /, **variables: str) -> Settings:
        self.variables |= variables
        return load(flags, self.environment(), self.cwd)

    def error(self, flags: dict[str, Any] | None = None, /, **variables: str) -> str:
        """Return the error message of invalid settings, with its folders shortened."""
        with pytest.raises(ConfigError) as caught:
            self.load(flags, **variables)
        return str(caught.value).replace(f"{self.cwd}/", "").replace(f"{self.person}/", "~/")
