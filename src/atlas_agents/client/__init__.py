"""A client of the gateway: ask for its methods, and hear what happens in a session, also over a line that breaks."""

from atlas_agents.client.client import Address, GatewayClient
from atlas_agents.client.feed import SessionEvent, SessionFeed
from atlas_agents.core.errors import GatewayError, NotLetIn, Unreachable

__all__ = [
    "Address",
    "GatewayClient",
    "GatewayError",
    "NotLetIn",
    "SessionEvent",
    "SessionFeed",
    "Unreachable",
]
