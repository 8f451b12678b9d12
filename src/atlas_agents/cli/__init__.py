"""The `atlas` command: one module per group of commands."""

import os
import sys


def version_text() -> str:
    """Return the version as `atlas --version` prints it.

    It is part of the metadata folder's name; importing importlib.metadata takes longer than the rest of the command.
    """
    prefix, suffix = "atlas_agents-", ".dist-info"
    for folder in filter(os.path.isdir, sys.path):
        for name in os.listdir(folder):
            if name.startswith(prefix) and name.endswith(suffix):
                return f"atlas {name.removeprefix(prefix).removesuffix(suffix)}"
    from importlib.metadata import version

    return f"atlas {version('atlas-agents')}"
