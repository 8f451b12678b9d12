"""OpenAI-compatible API: each agent is a model, and its tools run in the gateway."""
