"""`bash`: commands that a person has agreed to, confined where this machine can."""

from atlas_agents.toolbox.shell.bash import bash_tool

__all__ = ["bash_tool"]
