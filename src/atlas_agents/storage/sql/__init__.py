"""Shared parts of the SQL stores: tables derived from the row structs, statements, writes and reads."""
