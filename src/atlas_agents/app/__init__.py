"""Build a running program from settings: open and connect its parts, and close them in reverse order."""
