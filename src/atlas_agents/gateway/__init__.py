"""The gateway: agents behind a WebSocket and a little HTTP, for people and programs on this machine and beyond it."""
