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


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation, for the tool that it was installed with."""
    package = f"'atlas-agents[{extra}]'"
    if os.path.basename(os.path.dirname(sys.prefix)).startswith(("archive-v", "environments-v")):  # in uv's cache
        return f"uvx {package}"
    for receipt, command in (("uv-receipt.toml", "uv tool install"), ("pipx_metadata.json", "pipx install --force")):
        if os.path.exists(os.path.join(sys.prefix, receipt)):
            return f"{command} {package}"
    return f"pip install {package}"
