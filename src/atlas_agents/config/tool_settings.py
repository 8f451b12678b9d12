"""What the built-in tools are set to: where they work, whom they ask, by which keys."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from atlas_agents.config.about import about
from atlas_agents.core.secret import Secret

Search: TypeAlias = Literal["searxng", "brave", "tavily", "exa", "duckduckgo"]
Sandbox: TypeAlias = Literal["auto", "bubblewrap", "landlock", "wasm", "none"]


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the settings that built-in tools are made with."""

    folder: Annotated[
        Path | None, about("The folder that files, `bash` and code are confined to.", default="the workspace")
    ] = None
    sandbox: Annotated[Sandbox, about("What holds commands and code; `auto` takes the strongest that works here.")] = (
        "auto"
    )
    search: Annotated[Search | None, about("Who searches the web.", default="whoever has a key or an address")] = None
    search_url: Annotated[str | None, about("The address of a SearXNG.")] = None
    search_key: Annotated[Secret | None, about("The key for Brave, Tavily or Exa.", hides="all")] = None
    telegram_token: Annotated[Secret | None, about("The token of a Telegram bot.", hides="all")] = None
    telegram_chat: Annotated[str | None, about("The Telegram chat that is written to where none is named.")] = None
    telegram_url: Annotated[str, about("Where the Telegram bot API is.")] = "https://api.telegram.org"
    delegation_depth: Annotated[int, Meta(ge=1, le=20), about("How many agents deep a task may be handed on.")] = 3
    delegation_jobs: Annotated[
        int, Meta(ge=1, le=10_000), about("How many jobs may follow from one message of a user.")
    ] = 50
    jobs_at_once: Annotated[int, Meta(ge=1, le=64), about("How many jobs are worked on at once.")] = 8
