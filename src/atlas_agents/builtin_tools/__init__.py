"""Built-in tools: web, files, shell, code interpreter, Telegram, X and team tools."""
