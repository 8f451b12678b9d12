"""File tools for one folder: read, write, edit, list and search its files, and nothing outside it."""

from atlas_agents.builtin_tools.files.tools import file_tools

__all__ = ["file_tools"]
