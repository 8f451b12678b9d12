"""The tools of a team: hand work to each other, know who is there and what the house may use."""

from atlas_agents.toolbox.team.delegate import delegate_task

__all__ = ["delegate_task"]
