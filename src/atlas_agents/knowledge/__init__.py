"""What agents know and remember: documents and memories, found by meaning and by words."""
