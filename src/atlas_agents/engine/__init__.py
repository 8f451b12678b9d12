"""Agents, contexts, the one loop, and the door to them."""
