"""Gateway: serves agents over WebSocket and HTTP."""
