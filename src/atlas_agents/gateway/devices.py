"""Signed-in browsers: each exchanges a token for a cookie, which is listed as a device and can be revoked.

The cookie holds a random secret of which only the SHA-256 is stored, with the SHA-256 of the token it was issued for.
It is valid as long as that token is, until it expires or is revoked.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec

from atlas_agents.core.json import encode
from atlas_agents.core.store import DropRecord, PutRecord, Store
from atlas_agents.gateway.auth import Authenticator, Grant

REMEMBERED_SECONDS = 30 * 24 * 3600
"""Lifetime of a cookie if the user stays signed in."""
SESSION_SECONDS = 24 * 3600
"""Lifetime of a cookie that the browser forgets when it is closed."""
MAX_DEVICES = 50
"""Devices per user; signing in on one more signs out the one that was used least recently."""
_SEEN_INTERVAL_MS = 3_600_000
_COOKIE = re.compile(r"([a-f0-9]{16})\.([A-Za-z0-9_-]{43})")
_BROWSERS = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("SamsungBrowser/", "Samsung Internet"),
    ("Firefox/", "Firefox"),
    ("FxiOS/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"),
    ("Safari/", "Safari"),
)
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("CrOS", "ChromeOS"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)


class Device(msgspec.Struct, frozen=True):
    """A signed-in browser. `secret` and `token` are SHA-256 in hexadecimal, times are milliseconds."""

    id: str
    user: str
    name: str
    secret: str
    token: str
    created_at: int
    seen_at: int
    expires_at: int


_devices = msgspec.json.Decoder(Device)


class Devices:
    """Signs browsers in and out. Devices are stored, so they survive restarts and are shared by a cluster."""

    def __init__(
        self, store: Store, tenant: str, authenticator: Authenticator, now: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._authenticator = authenticator
        self._now = now

    async def sign_in(self, grant: Grant, name: str, *, remember: bool) -> tuple[Device, str]:
        """Create a device for the grant of a token; return it with the value of its cookie."""
        secret, now = secrets.token_urlsafe(32), self._now_ms()
        lifetime = REMEMBERED_SECONDS if remember else SESSION_SECONDS
        device = Device(
            id=secrets.token_hex(8),
            user=grant.principal.id,
            name=name,
            secret=_digest(secret),
            token=grant.digest.hex(),
            created_at=now,
            seen_at=now,
            expires_at=now + lifetime * 1000,
        )
        others = sorted(await self.list(device.user), key=lambda each: each.seen_at)
        excess = others[: max(0, len(others) + 1 - MAX_DEVICES)]
        await self._store.commit(self._tenant, [*map(_drop, excess), _put(device)])
        return device, f"{device.id}.{secret}"

    async def renew(self, device: Device, *, remember: bool) -> Device:
        """Extend the lifetime of a device that signs in again with the same token."""
        expires_at = self._now_ms() + (REMEMBERED_SECONDS if remember else SESSION_SECONDS) * 1000
        renewed = msgspec.structs.replace(device, seen_at=self._now_ms(), expires_at=expires_at)
        await self._store.commit(self._tenant, [_put(renewed)])
        return renewed

    async def find(self, cookie: str) -> tuple[Device, Grant] | None:
        """Return the device of a cookie and the grant of its token; None if the cookie is not valid."""
        parts = _COOKIE.fullmatch(cookie)
        row = await self._store.record(self._tenant, "device", parts[1]) if parts is not None else None
        if parts is None or row is None:
            return None
        device = _devices.decode(row.body)
        grant = self._grant(device)
        if not hmac.compare_digest(device.secret, _digest(parts[2])) or grant is None:
            return None
        if self._now_ms() - device.seen_at > _SEEN_INTERVAL_MS:
            device = msgspec.structs.replace(device, seen_at=self._now_ms())
            await self._store.commit(self._tenant, [_put(device)])
        return device, grant

    async def list(self, user: str | None = None) -> list[Device]:
        """Return the signed-in devices of a user, or of all users, and delete expired ones."""
        stored = [_devices.decode(row.body) for row in await self._store.records(self._tenant, "device")]
        expired = [each for each in stored if each.expires_at <= self._now_ms()]
        if expired:
            await self._store.commit(self._tenant, [*map(_drop, expired)])
        return [each for each in stored if user in (None, each.user) and self._grant(each) is not None]

    async def remove(self, device: Device) -> None:
        await self._store.commit(self._tenant, [_drop(device)])

    def _grant(self, device: Device) -> Grant | None:
        grant = self._authenticator.tokens.find_digest(bytes.fromhex(device.token))
        if grant is None or device.expires_at <= self._now_ms() or device.user != grant.principal.id:
            return None
        return None if grant.principal.id in self._authenticator.suspended else grant

    def _now_ms(self) -> int:
        return int(self._now() * 1000)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _put(device: Device) -> PutRecord:
    return PutRecord("device", device.id, encode(device))


def _drop(device: Device) -> DropRecord:
    return DropRecord("device", device.id)


def describe_browser(user_agent: str) -> str:
    """Return a name for a browser, such as "Firefox on Linux"."""
    browser = next((name for mark, name in _BROWSERS if mark in user_agent), "Browser")
    system = next((name for mark, name in _SYSTEMS if mark in user_agent), "")
    return f"{browser} on {system}" if system else browser


def cookie_name(scope: Any) -> str:
    """Return the name of the cookie. Cookies ignore ports, so gateways on one host use different names."""
    host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
    port = re.search(r":([0-9]{1,5})$", host)
    return f"atlas_{port[1] if port else 80}"


def read_cookie(scope: Any) -> str:
    """Return the value of the gateway's cookie; empty if there is none."""
    name = cookie_name(scope)
    for key, value in scope["headers"]:
        for pair in value.decode("latin-1").split(";") if key == b"cookie" else ():
            found, _, content = pair.strip().partition("=")
            if found == name:
                return content
    return ""


def set_cookie(scope: Any, value: str, max_age: int | None, *, secure: bool) -> str:
    """Return the header that sets the cookie; a `max_age` of None keeps it until the browser is closed."""
    parts = [f"{cookie_name(scope)}={value}", "Path=/", "HttpOnly", "SameSite=Strict"]
    parts += [] if max_age is None else [f"Max-Age={max_age}"]
    return "; ".join([*parts, *(["Secure"] if secure else [])])
