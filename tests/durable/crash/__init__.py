"""Crash harness: kills turns at every point and checks the outcome. Run `python -m crash` in the parent folder."""
