"""Crash harness: kills turns at drawn points and checks the outcome. Run `python -m crash` in the parent folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # helpers of all tests
