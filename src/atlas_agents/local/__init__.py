"""Local models: a catalog, their download and verification, and llama.cpp servers that run them without an API key."""
