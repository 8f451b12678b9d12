"""A model's file from a web server, on from where the last try stopped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from atlas_agents.local.wheels import SourceFailed

_PIECE = 1 << 18
_TRIES = 3


async def fetch_url(url: str, part: Path, size: int, tell: Callable[[int, int, str], None]) -> None:
    """Let `part` grow to its whole size. SourceFailed says in a few words why it did not."""
    import aiohttp

    host = urlsplit(url).hostname or url
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)
    headers = {"Accept-Encoding": "identity"}
    trouble = ""
    with _opened(part) as file:
        async with aiohttp.ClientSession(timeout=timeout, trust_env=True, headers=headers) as session:
            for _ in range(_TRIES):
                try:
                    await _go_on(session, url, file, size, tell)
                    return
                except (aiohttp.ClientError, TimeoutError) as error:
                    trouble = _words(error)
                    if isinstance(error, aiohttp.ClientConnectorError):
                        break  # there is no way to the host: the next source may have one
    raise SourceFailed(f"{host}: {trouble}")


async def _go_on(session: Any, url: str, file: BinaryIO, size: int, tell: Callable[[int, int, str], None]) -> None:
    here = file.seek(0, 2)
    if here >= size:
        here = file.seek(0)
        file.truncate()
    async with session.get(url, headers={"Range": f"bytes={here}-"} if here else {}) as answer:
        if answer.status not in (200, 206):
            raise SourceFailed(f"{answer.url.host}: HTTP {answer.status}")
        if here and not _continues(answer, here):
            here = file.seek(0)
            file.truncate()
        async for piece in answer.content.iter_chunked(_PIECE):
            here += len(piece)
            if here > size:
                raise SourceFailed(f"{answer.url.host}: the file is larger than it should be")
            file.write(piece)
            tell(here, size, "downloading")
    file.flush()
    if here < size:
        raise SourceFailed(f"{urlsplit(url).hostname}: the file is smaller than it should be")


def _continues(answer: Any, here: int) -> bool:
    """Whether the server really goes on at that byte; many begin again."""
    return answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {here}-")


def _opened(part: Path) -> BinaryIO:
    return part.open("r+b" if part.exists() else "w+b")


def _words(error: BaseException) -> str:
    os_error = getattr(error, "os_error", None)
    if os_error is not None:
        return f"no connection ({getattr(os_error, 'strerror', None) or os_error})"
    return "it did not answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
