"""The ways to name a model, and the error for an invalid reference."""

from atlas_agents import Agent, BadModelRef, OpenAIProvider, parse_model_ref

claude = Agent("claude", model="anthropic/claude-opus-4-6")
the_same = Agent("the-same", provider="anthropic", model="claude-opus-4-6")
nearby = Agent("nearby", model=OpenAIProvider("llama3.2", base_url="http://localhost:11434/v1"))
whatever = Agent("whatever")  # uses ATLAS_MODEL

print(claude.models == the_same.models)
print(parse_model_ref("http/meta-llama/Llama-3.3-70B-Instruct"))
try:
    Agent("typo", model="claude-opus-4-6")
except BadModelRef as error:
    print(error)
