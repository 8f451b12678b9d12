"""pytest as a program of the fork server, which loads it and its plugins once for all runs."""

import sys

import hypothesis
import pytest
import pytest_asyncio

import atlas_agents.testing

LOADED = (atlas_agents.testing, hypothesis, pytest_asyncio)

if __name__ == "__main__":
    sys.exit(pytest.main())
