"""The tools of a team: hand work to each other, know who is there and what the house may use."""

from atlas_agents.toolbox.team.delegate import delegate_task
from atlas_agents.toolbox.team.people import get_subscription_info, get_team_members

__all__ = ["delegate_task", "get_subscription_info", "get_team_members"]
