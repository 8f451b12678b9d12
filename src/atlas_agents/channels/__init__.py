"""Channels: other programs in which people talk to agents. Each is a client of the gateway like any other."""
