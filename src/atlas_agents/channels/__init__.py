"""Channels: other programs through which people talk to agents. Each channel is an ordinary gateway client."""
