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
    bash_network: Annotated[bool, about("Whether commands of `bash` may use the network.")] = False
    code_python: Annotated[
        Path | None,
        about("The Python that code runs on, or its virtual environment.", default="the one that runs Atlas"),
    ] = None
    code_memory: Annotated[int, Meta(ge=64, le=65536), about("MB of memory that code may use.")] = 256
    search: Annotated[Search | None, about("Who searches the web.", default="whoever has a key or an address")] = None
    search_url: Annotated[str | None, about("The address of a SearXNG.")] = None
    search_key: Annotated[Secret | None, about("The key for Brave, Tavily or Exa.", hides="all")] = None
    fetch_hosts: Annotated[
        tuple[str, ...],
        about("Hosts in a private network that `url_fetch` may read, like `wiki.intern` or `wiki.intern:8080`."),
    ] = ()
    telegram_token: Annotated[Secret | None, about("The token of a Telegram bot.", hides="all")] = None
    telegram_chat: Annotated[str | None, about("The Telegram chat that is written to where none is named.")] = None
    telegram_url: Annotated[str, about("Where the Telegram bot API is.")] = "https://api.telegram.org"
    telegram_channel: Annotated[
        bool | None,
        about("Let people talk to agents through the Telegram bot.", default="true once somebody is paired"),
    ] = None
    x_client_id: Annotated[str | None, about("The OAuth 2.0 client id of an app on X.")] = None
    x_client_secret: Annotated[Secret | None, about("Its secret, if it is a confidential client.", hides="all")] = None
    x_token: Annotated[Secret | None, about("An access token of a user of X.", hides="all")] = None
    x_refresh_token: Annotated[
        Secret | None, about("What new access tokens are had by; its successors are kept in the home.", hides="all")
    ] = None
    x_url: Annotated[str, about("Where the API of X is.")] = "https://api.x.com"
    embeddings: Annotated[
        str,
        about(
            "What finds documents and memories by their meaning: `local`, a model like `openai/text-embedding-3-small`,"
            " or `none` for words alone."
        ),
    ] = "local"
    embeddings_url: Annotated[
        str | None, about("The address of an OpenAI-compatible server that has the `embeddings` model.")
    ] = None
    embeddings_key: Annotated[Secret | None, about("The key for that server.", hides="all")] = None
    recall: Annotated[
        bool, about("Lay memories that fit beside each message; an agent may say otherwise with `Recall: on` or `off`.")
    ] = False
    delegation_depth: Annotated[int, Meta(ge=1, le=20), about("How many agents deep a task may be handed on.")] = 3
    delegation_jobs: Annotated[
        int, Meta(ge=1, le=10_000), about("How many jobs may follow from one message of a user.")
    ] = 50
    jobs_at_once: Annotated[int, Meta(ge=1, le=64), about("How many jobs are worked on at once.")] = 8
