"""A client of the gateway: ask for its methods, and hear what happens in a session, also over a line that breaks."""

from atlas_agents.client.client import GatewayAddress, GatewayClient, SessionEvent, SessionFeed
from atlas_agents.core.errors import GatewayError, Unauthorized, Unreachable

__all__ = [
    "GatewayAddress",
    "GatewayClient",
    "GatewayError",
    "SessionEvent",
    "SessionFeed",
    "Unauthorized",
    "Unreachable",
]
