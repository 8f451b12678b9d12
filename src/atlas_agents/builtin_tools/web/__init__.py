"""Web tools: `url_fetch` downloads pages behind an SSRF guard and parses them in worker processes; `web_search`."""
