"""Core layer: values and small utilities that every other layer uses."""

import os
import sys

_version = ""


def package_version() -> str:
    """Return the version of this package, which a gateway and its clients send to each other. It is read once.

    It is read from the name of the metadata folder: importing importlib.metadata takes longer than most commands.
    """
    global _version
    _version = _version or _read_version()
    return _version


def _read_version() -> str:
    prefix, suffix = "atlas_agents-", ".dist-info"
    for folder in filter(os.path.isdir, sys.path):
        for name in os.listdir(folder):
            if name.startswith(prefix) and name.endswith(suffix):
                return name.removeprefix(prefix).removesuffix(suffix)
    from importlib.metadata import version

    return version("atlas-agents")


def install_command(extra: str) -> str:
    """Return the command that installs an extra, for the installer that was used (pip, pipx or uv)."""
    package = f"'atlas-agents[{extra}]'"
    if os.path.basename(os.path.dirname(sys.prefix)).startswith(("archive-v", "environments-v")):  # in uv's cache
        return f"uvx {package}"
    for receipt, command in (("uv-receipt.toml", "uv tool install"), ("pipx_metadata.json", "pipx install --force")):
        if os.path.exists(os.path.join(sys.prefix, receipt)):
            return f"{command} {package}"
    return f"pip install {package}"
