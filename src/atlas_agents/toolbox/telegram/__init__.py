"""Telegram: its bot API, texts as it takes them, and the tool that sends a message."""
