"""Agents in `AGENTS.md`: what a section may contain, and the error for a mistake."""

from atlas_agents import ConfigError
from atlas_agents.workspace import parse_agents

AGENTS = """\
# Agents

## writer

Name: The writer
Description: Writes what others publish.
Model: anthropic/claude-opus-4-6, openai/gpt-5.2
Role: author
Tools: file_read, file_write
Temperature: 0.7
Max tokens: 2000
Max rounds: 6
Prompt:
Write short sentences.

### Style
No adjectives.

## helper

Description: Handles everything else.
"""

for spec in parse_agents(AGENTS):
    print(spec.id, spec.models, spec.tools, repr(spec.prompt))

try:
    parse_agents(AGENTS.replace("Temperature:", "Temprature:"))
except ConfigError as error:
    print(str(error).partition(" Known keys")[0])
