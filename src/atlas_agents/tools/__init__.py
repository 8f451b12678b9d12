"""Tools, and the pipeline that every tool call goes through."""
