"""The `atlas` command: one module per group of commands."""


def version_text() -> str:
    """Return the version as `atlas --version` prints it."""
    from importlib.metadata import version

    return f"atlas {version('atlas-agents')}"
