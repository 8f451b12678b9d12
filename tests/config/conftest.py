"""A desk for each test."""

from pathlib import Path

import pytest
from settings_words import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)
