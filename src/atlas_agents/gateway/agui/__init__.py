"""AG-UI 1.0: what pages made with CopilotKit, assistant-ui and their like speak with an agent."""
