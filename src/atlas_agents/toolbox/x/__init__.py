"""X: its API, posts as it counts them, pictures for them, and the two tools."""
