"""The house for MCP clients: its tools, its agents and its prompts under `/mcp`."""
