"""The page for people: files that were built from web/ and are kept in memory, ready to be sent."""

import mimetypes
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

Found: TypeAlias = dict[str, "Asset"]
_FOLDER = "page"
_INDEX = "/index.html"
_HASHED = "/assets/"
_FOREVER = "public, max-age=31536000, immutable"
_PACKED = {"br": ".br", "gzip": ".gz"}
_APART = ("/v1/", "/ag-ui/", "/mcp")
"""What programs ask for is told plainly that it is not there."""


class Asset(msgspec.Struct, frozen=True):
    """One file, and what it is when packed."""

    kind: str
    plain: bytes
    packed: dict[str, bytes]


class BuiltPage:
    """All files of the page; without an index there is none."""

    def __init__(self, folder: Traversable | None = None) -> None:
        folder = folder or files("atlas_agents.gateway").joinpath(_FOLDER)
        self._assets = _read(folder) if folder.is_dir() else {}

    def __bool__(self) -> bool:
        return _INDEX in self._assets

    async def answer(self, request: Request) -> Response:
        """A file by its name; for every other address a person may stand at, the page itself."""
        path = request.url.path
        asset = self._assets.get(path)
        if asset is None:
            wants_page = path == "/" or "text/html" in request.headers.get("accept", "")
            if path.startswith((_HASHED, *_APART)) or not wants_page:
                return PlainTextResponse("there is nothing here\n", 404)
            asset, path = self._assets[_INDEX], _INDEX
        headers = {"Cache-Control": _FOREVER if path.startswith(_HASHED) else "no-cache", "Vary": "Accept-Encoding"}
        taken = {each.split(";")[0].strip() for each in request.headers.get("accept-encoding", "").split(",")}
        for encoding, body in asset.packed.items():
            if encoding in taken:
                return Response(body, media_type=asset.kind, headers={**headers, "Content-Encoding": encoding})
        return Response(asset.plain, media_type=asset.kind, headers=headers)


def _read(folder: Traversable, path: str = "") -> Found:
    found: Found = {}
    here = {each.name: each for each in folder.iterdir()}
    for name, each in here.items():
        if each.is_dir():
            found |= _read(each, f"{path}/{name}")
        elif not name.endswith(tuple(_PACKED.values())) and not name.startswith("."):
            packed = {form: here[name + end].read_bytes() for form, end in _PACKED.items() if name + end in here}
            found[f"{path}/{name}"] = Asset(_kind(name), each.read_bytes(), packed)
    return found


def _kind(name: str) -> str:
    """Not as the machine's own tables say, which may be wrong: a browser refuses a script of another kind."""
    if name.endswith(".js"):
        return "text/javascript"
    return mimetypes.guess_type(name)[0] or "application/octet-stream"
