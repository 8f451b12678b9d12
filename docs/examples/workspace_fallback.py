"""Which model answers for an agent whose key is not set."""

from atlas_agents.testing import Environment, Registry
from atlas_agents.workspace import AgentSpec, resolve_models

spec = AgentSpec("assistant", models=("anthropic/claude-opus-4-6",))

for values in [{"ANTHROPIC_API_KEY": "k"}, {"OPENAI_API_KEY": "k", "ATLAS_MODEL": "openai/gpt-5.2"}, {}]:
    models, notice = resolve_models(spec, Registry(Environment(values, dotenv=None)))
    print(models, notice)
