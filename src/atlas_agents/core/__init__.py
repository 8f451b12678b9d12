"""Core layer: values and small utilities that every other layer uses."""

import os
import sys


def package_version() -> str:
    """Return the version of this package.

    It is part of the metadata folder's name; importing importlib.metadata takes longer than most commands.
    """
    prefix, suffix = "atlas_agents-", ".dist-info"
    for folder in filter(os.path.isdir, sys.path):
        for name in os.listdir(folder):
            if name.startswith(prefix) and name.endswith(suffix):
                return name.removeprefix(prefix).removesuffix(suffix)
    from importlib.metadata import version

    return version("atlas-agents")
