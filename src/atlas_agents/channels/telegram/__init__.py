"""The Telegram channel: people whom the owner has let in talk to agents, and answer what they are asked by buttons."""
