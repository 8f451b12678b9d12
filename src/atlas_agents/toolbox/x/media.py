"""Pictures for a post: fetched past the guard, known by their bytes, and handed to X."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import aiohttp
import msgspec

from atlas_agents.core.errors import ToolFailed
from atlas_agents.toolbox.web.caps import CAPS
from atlas_agents.toolbox.web.hosts import Hosts
from atlas_agents.toolbox.web.network import INTERNET, Network
from atlas_agents.toolbox.x.api import XApi

MOST = 4
_LARGEST = 5_000_000
_STARTS = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG\r\n\x1a\n": "image/png", b"GIF8": "image/gif"}
Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Gets what stands at an address; ToolFailed says why it cannot be had."""


class Picture(msgspec.Struct, frozen=True):
    """What it is, not what somebody says it is."""

    media_type: str
    content: bytes


def guarded(network: Network = INTERNET) -> Fetch:
    """Pictures of the public web, and of nowhere else."""

    async def fetch(address: str) -> bytes:
        from atlas_agents.toolbox.web.download import download

        caps = msgspec.structs.replace(CAPS, size=_LARGEST)
        found = await download(address, hosts=Hosts(()), wanted=_wanted, caps=caps, network=network)
        if found.cut:
            raise ToolFailed(f"{address[:200]} is larger than {_LARGEST / 1e6:.0f} MB, which is all that X takes")
        return found.body

    return fetch


async def picture(address: str, fetch: Fetch) -> Picture:
    """A picture that X takes."""
    if not address.startswith("https://"):
        raise ToolFailed(f"{address[:200]}: pictures are taken from https:// addresses only")
    content = await fetch(address)
    kind = next((kind for start, kind in _STARTS.items() if content.startswith(start)), "")
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        kind = "image/webp"
    if not kind:
        raise ToolFailed(f"{address[:200]} is no JPEG, PNG, GIF or WebP picture")
    return Picture(kind, content)


async def upload(api: XApi, given: Picture) -> str:
    """Hand a picture over; its id. It is seen by nobody until a post has it."""

    def form() -> aiohttp.FormData:
        data = aiohttp.FormData()
        data.add_field("media_category", "tweet_gif" if given.media_type == "image/gif" else "tweet_image")
        data.add_field("media_type", given.media_type)
        data.add_field("media", given.content, filename="picture", content_type=given.media_type)
        return data

    answer: Any = await api.post("/2/media/upload", acts=False, data=form)
    return str(answer["data"]["id"])


def _wanted(url: str, media_type: str) -> None:
    if media_type and not media_type.startswith(("image/", "application/octet-stream")):
        raise ToolFailed(f"{url[:200]} is no picture but {media_type[:80]}")
