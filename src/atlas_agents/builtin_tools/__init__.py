"""The built-in tools that touch the outside: the web, files, a shell, code, messages."""
