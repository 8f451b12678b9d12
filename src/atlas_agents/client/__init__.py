"""Gateway client: call methods and follow the events of sessions. It reconnects when the connection is lost."""

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
