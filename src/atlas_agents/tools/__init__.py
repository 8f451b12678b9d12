"""Tools and the one path that every call of one takes."""
