"""The `code_interpreter` tool: runs Python code of a model in a sandbox."""
