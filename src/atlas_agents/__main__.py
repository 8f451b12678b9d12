"""`python -m atlas_agents` is the `atlas` command."""

from atlas_agents.cli.main import main

main()
