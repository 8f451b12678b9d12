"""MCP server: the gateway's tools, agents, prompts and documents under `/mcp`."""
