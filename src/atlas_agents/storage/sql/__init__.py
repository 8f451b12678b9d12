"""What the SQL stores share: tables derived from the row structs, statements, writes and reads."""
