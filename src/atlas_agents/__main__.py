"""`python -m atlas_agents` is the `atlas` command."""

import os
import sys

# Python adds the working folder to its path. Its modules and plugins must not run: the folder may not be trusted.
sys.path[:] = [entry for entry in sys.path if entry and os.path.realpath(entry) != os.getcwd()]

from atlas_agents.cli import main  # noqa: E402 - the path must be clean before anything is imported

main()
