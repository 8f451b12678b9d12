"""A loopback server that accepts requests as X documents them, for the endpoints in use only."""

import html
import re
import time
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

CLIENT, SECRET = "client-of-tests", "secret-of-tests"
ME = "900"
_POST_FIELDS = {"text", "media", "reply", "quote_tweet_id"}
_FIELDS = {"created_at", "public_metrics", "entities", "author_id", "lang"}


@dataclass
class Fault:
    """Fault of the next request to a path; with `done`, after its work."""

    path: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: dict[str, Any] = field(default_factory=dict[str, Any])
    done: bool = False


class XDouble:
    """`access` and `refresh` are the valid tokens; `posts` is what the account has published."""

    def __init__(self) -> None:
        self.url = ""
        self.access = {"access-0"}
        self.refresh = "refresh-0"
        self.confidential = True
        self.posts: list[dict[str, Any]] = []
        self.uploads: dict[str, tuple[str, bytes]] = {}
        self.found: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.faults: list[Fault] = []
        self._number = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.path}")
        fault = next((each for each in self.faults if each.path == request.path), None)
        if fault is not None:
            self.faults.remove(fault)
            if fault.done:
                await self._respond(request)
            if fault.status:
                return web.json_response(fault.body, status=fault.status, headers=fault.headers)
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        return await self._respond(request)

    async def _respond(self, request: web.Request) -> web.Response:
        if request.path == "/2/oauth2/token":
            return await self._token(request)
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.access:
            return problem(401, "Unauthorized", "Unauthorized")
        match request.method, request.path:
            case "POST", "/2/tweets":
                return await self._post(request)
            case "POST", "/2/media/upload":
                return await self._upload(request)
            case "GET", "/2/tweets/search/recent":
                return self._search(request)
            case "GET", "/2/users/me":
                return web.json_response({"data": {"id": ME, "name": "Atlas", "username": "atlas"}})
            case "GET", path if path == f"/2/users/{ME}/tweets":
                return self._timeline(request)
            case _:
                return problem(404, "Not Found", request.path)

    async def _token(self, request: web.Request) -> web.Response:
        """Refresh a token, once per refresh token. A confidential client sends its secret, a public one its id."""
        if request.content_type != "application/x-www-form-urlencoded":
            return problem(400, "invalid_request", "form expected")
        form = {key: str(value) for key, value in (await request.post()).items()}
        basic = "Basic " + b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        shown = request.headers.get("Authorization") == basic
        if not (shown if self.confidential else form.get("client_id") == CLIENT and not shown):
            return problem(401, "invalid_client", "who are you")
        if form.get("grant_type") != "refresh_token" or form.get("refresh_token") != self.refresh:
            return problem(400, "invalid_request", "Value passed for the token was invalid.")
        self._number += 1
        access, self.refresh = f"access-{self._number}", f"refresh-{self._number}"
        self.access = {access}
        given = {"token_type": "bearer", "expires_in": 7200, "access_token": access, "refresh_token": self.refresh}
        return web.json_response({**given, "scope": "tweet.read tweet.write users.read media.write offline.access"})

    async def _post(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        if request.content_type != "application/json" or set(body) - _POST_FIELDS or not body.get("text"):
            return problem(400, "Invalid Request", "One or more parameters to your request was invalid.")
        media: dict[str, Any] = body.get("media") or {"media_ids": []}
        if set(media) != {"media_ids"} or any(each not in self.uploads for each in media["media_ids"]):
            return problem(400, "Invalid Request", "Your media IDs are invalid.")
        if any(each["original"] == body["text"] for each in self.posts):
            return problem(403, "Forbidden", "You are not allowed to create a Tweet with duplicate content.")
        self.posts.append(self._stored(body["text"], media["media_ids"]))
        id, text = self.posts[-1]["id"], self.posts[-1]["text"]
        return web.json_response({"data": {"id": id, "text": text, "edit_history_tweet_ids": [id]}}, status=201)

    def _stored(self, original: str, media: list[str]) -> dict[str, Any]:
        """Store a post as X does: escaped, with shortened URLs, and with one more URL for images."""
        text, urls = html.escape(original, quote=False), list[dict[str, str]]()
        for number, url in enumerate(re.findall(r"https?://\S+", text)):
            short = f"https://t.co/{number:010d}"
            text = text.replace(url, short)
            urls.append({"url": short, "expanded_url": html.unescape(url)})
        if media:
            text += " https://t.co/picture001"
            urls.append({"url": "https://t.co/picture001", "media_key": f"3_{media[0]}"})
        now = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        id = str(1000 + len(self.posts))
        return {
            "id": id,
            "text": text,
            "original": original,
            "media": media,
            "created_at": now,
            "entities": {"urls": urls},
        }

    async def _upload(self, request: web.Request) -> web.Response:
        if request.content_type != "multipart/form-data":
            return problem(400, "Invalid Request", "multipart expected")
        form = await request.post()
        file = form.get("media")
        if set(form) != {"media", "media_category", "media_type"} or not isinstance(file, web.FileField):
            return problem(400, "Invalid Request", "One or more parameters to your request was invalid.")
        if form["media_category"] not in ("tweet_image", "tweet_gif"):
            return problem(400, "Invalid Request", "media_category")
        id = str(5000 + len(self.uploads))
        self.uploads[id] = (str(form["media_type"]), file.file.read())
        return web.json_response({"data": {"id": id, "media_key": f"3_{id}", "expires_after_secs": 86400}})

    def _search(self, request: web.Request) -> web.Response:
        query = request.query
        if not 1 <= len(query.get("query", "")) <= 512 or not 10 <= int(query.get("max_results", 10)) <= 100:
            return problem(400, "Invalid Request", "max_results must be between 10 and 100")
        if not _are_known_fields(query.get("tweet.fields", "")) or query.get("expansions") != "author_id":
            return problem(400, "Invalid Request", "fields")
        if not self.found:
            return web.json_response({"meta": {"result_count": 0}})
        users = [{"id": "7", "name": "Ana\u200b", "username": "ana"}]
        found = self.found[: int(query["max_results"])]
        return web.json_response({"data": found, "includes": {"users": users}, "meta": {"result_count": len(found)}})

    def _timeline(self, request: web.Request) -> web.Response:
        query = request.query
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", query.get("start_time", "")):
            return problem(400, "Invalid Request", "start_time")
        if not 5 <= int(query.get("max_results", 10)) <= 100 or not _are_known_fields(query.get("tweet.fields", "")):
            return problem(400, "Invalid Request", "max_results")
        shown = ("id", "text", "created_at", "entities")
        return web.json_response({"data": [{key: each[key] for key in shown} for each in reversed(self.posts)]})


def _are_known_fields(fields: str) -> bool:
    return set(fields.split(",")) <= _FIELDS


def problem(status: int, title: str, detail: str) -> web.Response:
    body = {"title": title, "detail": detail, "status": status, "type": "about:blank"}
    return web.json_response(body, status=status, content_type="application/problem+json")


@asynccontextmanager
async def x_double() -> AsyncGenerator[XDouble, None]:
    """Serve a double inside the block."""
    double = XDouble()
    app = web.Application(client_max_size=8 << 20)
    app.router.add_route("*", "/{rest:.*}", double.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    double.url = f"http://{host}:{port}"
    try:
        yield double
    finally:
        await runner.cleanup()
