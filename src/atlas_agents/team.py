"""Strategies for several agents: `atlas.route(supervisor("chief"))`."""

from atlas_agents.agents.options import HandoffPlan
from atlas_agents.agents.team import Strategy, agent_tool, by_keywords, by_rules, chain, last_speaker, supervisor

__all__ = ["HandoffPlan", "Strategy", "agent_tool", "by_keywords", "by_rules", "chain", "last_speaker", "supervisor"]
