"""Isolated settings sources for each test."""

from pathlib import Path

import pytest
from settings_sources import SettingsSources


@pytest.fixture
def sources(tmp_path: Path) -> SettingsSources:
    return SettingsSources(tmp_path)
