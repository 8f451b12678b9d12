"""OpenAI's chat completions, spoken by our agents: an agent is a model, and its tools run in here."""
