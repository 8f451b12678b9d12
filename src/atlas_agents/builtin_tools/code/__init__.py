"""`code_interpreter`: Python that a model wrote, run in a sandbox."""
