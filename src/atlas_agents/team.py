"""Strategies for several agents: `atlas.route(supervisor("chief"))`."""

from atlas_agents.engine.options import HandoffPlan
from atlas_agents.engine.team import (
    Strategy,
    agent_tool,
    by_keywords,
    by_rules,
    chain,
    last_speaker,
    supervisor,
)

__all__ = ["HandoffPlan", "Strategy", "agent_tool", "by_keywords", "by_rules", "chain", "last_speaker", "supervisor"]
