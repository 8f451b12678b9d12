"""Tools of MCP servers, as tools of the house: started when needed, shown as approved, called under its rules."""
