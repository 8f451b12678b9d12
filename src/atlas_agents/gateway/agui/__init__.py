"""AG-UI 1.0 endpoints, for frontends built with CopilotKit, assistant-ui and similar libraries."""
