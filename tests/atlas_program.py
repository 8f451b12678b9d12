"""The `atlas` command as a program of the fork server, which loads these modules once for all commands."""

import sys

import aiohttp
import prompt_toolkit
import pydantic
import rich.markdown
import uvicorn.config

import atlas_agents.app.serve
import atlas_agents.builtin_tools.bash
import atlas_agents.cli.ask
import atlas_agents.cli.chat
import atlas_agents.cli.serve
import atlas_agents.gateway.server
import atlas_agents.storage.sqlite
from atlas_agents.cli import main

LOADED = (
    aiohttp,
    atlas_agents.app.serve,
    atlas_agents.builtin_tools.bash,
    atlas_agents.cli.ask,
    atlas_agents.cli.chat,
    atlas_agents.cli.serve,
    atlas_agents.gateway.server,
    atlas_agents.storage.sqlite,
    prompt_toolkit,
    pydantic,
    rich.markdown,
    uvicorn.config,
)

if __name__ == "__main__":
    sys.argv[0] = "atlas"
    main()
