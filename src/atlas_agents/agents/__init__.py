"""Agents, contexts, the agent loop, and the Atlas that runs them."""
