"""The Telegram channel: paired users talk to agents in private chats and answer approval requests with buttons."""
