"""Access to an account on X: a token that ends after two hours, and another by which the next one is had.

X takes a refresh token once and gives its successor with the new access token. Both are on the disk before they are
used; whoever loses the successor has to authorise the app anew.
"""

import asyncio
import hashlib
import time
from base64 import b64encode
from pathlib import Path

import msgspec

from atlas_agents.core.calling import in_thread
from atlas_agents.core.errors import ToolFailed
from atlas_agents.core.keeping import keep, kept
from atlas_agents.core.secret import Secret
from atlas_agents.toolbox.x.wire import Answer, Lost, Wire

_EARLY = 60.0
AUTHORISE = "authorise the app anew and set ATLAS_X_TOKEN and ATLAS_X_REFRESH_TOKEN"


class Account(msgspec.Struct, frozen=True):
    """What was set: an app, and tokens of one of its users."""

    client_id: str | None = None
    client_secret: Secret | None = None
    token: Secret | None = None
    refresh_token: Secret | None = None

    @property
    def mark(self) -> str:
        """Tells these tokens from others, without telling them."""
        given = "\n".join(each.reveal() if each else "" for each in (self.token, self.refresh_token))
        return hashlib.sha256(given.encode()).hexdigest()[:16]


class _Kept(msgspec.Struct, frozen=True):
    """The newest tokens that came of those in the settings, whose `mark` this is."""

    mark: str
    access_token: str
    refresh_token: str
    expires_at: float


class _Given(msgspec.Struct, frozen=True):
    access_token: str
    refresh_token: str | None = None
    expires_in: float = 7200.0


class Tokens:
    """Knows a token that is taken, and gets another one when it is not any more."""

    def __init__(self, account: Account, path: Path, wire: Wire) -> None:
        self._account = account
        self._path = path
        self._wire = wire
        self._one = asyncio.Lock()
        self._now: _Kept | None = None

    async def current(self, *, refused: str | None = None) -> str:
        """The access token; another one than the one that X `refused`."""
        async with self._one:  # two who refresh at once would use up the same token
            now = await self._read()
            if now.access_token and now.access_token != refused and now.expires_at - _EARLY > time.time():
                return now.access_token
            return (await self._refresh(now)).access_token

    async def _read(self) -> _Kept:
        if self._now is not None:
            return self._now
        found: _Kept | None = await in_thread(kept, self._path, _Kept)
        account = self._account
        if found is None or found.mark != account.mark:
            access, refresh = [each.reveal() if each else "" for each in (account.token, account.refresh_token)]
            found = _Kept(account.mark, access, refresh, time.time() + 7200 if access else 0.0)
        self._now = found
        return found

    async def _refresh(self, now: _Kept) -> _Kept:
        if not now.refresh_token or not self._account.client_id:
            raise ToolFailed(f"X does not take the access token any more, and no other can be had: {AUTHORISE}.")
        try:
            given = _read_tokens(await self._wire.form("/2/oauth2/token", self._form(now), self._headers()))
        except Lost as lost:
            raise ToolFailed(f"No new access token came: {lost}. Nothing was done; try again later.") from None
        fresh = _Kept(
            now.mark, given.access_token, given.refresh_token or now.refresh_token, time.time() + given.expires_in
        )
        await asyncio.shield(asyncio.ensure_future(in_thread(keep, self._path, msgspec.to_builtins(fresh))))
        self._now = fresh
        return fresh

    def _form(self, now: _Kept) -> dict[str, str]:
        client = {} if self._account.client_secret else {"client_id": self._account.client_id or ""}
        return {"grant_type": "refresh_token", "refresh_token": now.refresh_token, **client}

    def _headers(self) -> dict[str, str]:
        secret = self._account.client_secret
        if secret is None:
            return {}
        pair = f"{self._account.client_id}:{secret.reveal()}".encode()
        return {"Authorization": f"Basic {b64encode(pair).decode()}"}


def _read_tokens(answer: Answer) -> _Given:
    if answer.status >= 500 or answer.status == 429:
        raise ToolFailed(f"X gives no new access token now (HTTP {answer.status}): try again later.")
    try:
        if answer.status == 200:
            return msgspec.json.decode(answer.body, type=_Given)
    except msgspec.DecodeError:
        pass
    raise ToolFailed(f"X gives no new access token (HTTP {answer.status}): {AUTHORISE}.")
