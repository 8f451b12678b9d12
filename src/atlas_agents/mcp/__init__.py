"""MCP client: tools of MCP servers, started on demand, shown as approved and governed like every other tool."""
