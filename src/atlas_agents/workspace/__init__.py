"""Workspace: a folder whose files define the agents and the system prompt.

`AGENTS.md` defines the agents; `SOUL.md` and `TOOLS.md` are instructions. Together they are the system prompt.
"""

from atlas_agents.core.text import HiddenCharacters, hidden_characters
from atlas_agents.workspace.build import LOCAL_MODEL, BuiltAgents, build_agent, build_agents, resolve_models
from atlas_agents.workspace.workspace import AgentSpec, Workspace, WorkspaceState, parse_agents

__all__ = [
    "LOCAL_MODEL",
    "AgentSpec",
    "BuiltAgents",
    "HiddenCharacters",
    "Workspace",
    "WorkspaceState",
    "build_agent",
    "build_agents",
    "hidden_characters",
    "parse_agents",
    "resolve_models",
]
