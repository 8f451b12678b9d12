"""Files of one folder, and of nothing beside it: read, written, edited, listed and searched."""

from atlas_agents.builtin_tools.files.tools import file_tools

__all__ = ["file_tools"]
