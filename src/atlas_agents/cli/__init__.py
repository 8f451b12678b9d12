"""The `atlas` command: parses, calls, prints."""
