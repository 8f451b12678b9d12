"""Strict doubles of the vendors' APIs: test servers that refuse what the vendor refuses."""
