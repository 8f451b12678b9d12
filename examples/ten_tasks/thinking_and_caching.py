from pathlib import Path

from atlas_agents import Agent

manual = Path(__file__).read_text() * 100  # a long text that every request begins with
settings = {"effort": "high", "cache": "1h"}
agent = Agent("helper", model="anthropic/claude-opus-4-6", system_prompt=manual, settings=settings)
result = agent.run_sync("Is 2^31 - 1 prime?")
print(result.answer, result.usage.cached_tokens)
