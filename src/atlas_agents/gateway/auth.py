"""Authentication: access tokens, allowed hosts and origins (CORS), trusted proxies, and limits for invalid tokens."""

import hashlib
import hmac
import ipaddress
import logging
import math
import re
import secrets
import stat
from collections import OrderedDict, deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Secret, lock_file, read_json, write_file, write_json
from atlas_agents.gateway.protocol.types import Principal, Scope
from atlas_agents.gateway.settings import EVERYWHERE, GatewaySettings

logger = logging.getLogger(__name__)
ALL: tuple[Scope, ...] = get_args(Scope)
MIN_TOKEN_BITS = 128
"""Minimum entropy, in bits, of a token when the gateway listens on a non-loopback address."""
_NAME = re.compile(r"[a-z0-9_-]{1,64}")
_MAX_TOKEN_FILE_BYTES = 4096
_Stamp: TypeAlias = tuple[tuple[int, ...], ...]
Headers: TypeAlias = list[tuple[bytes, bytes]]
Refusal: TypeAlias = tuple[int, str]
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://([^/?#@\\\s]+)")
_PORTS = {"http": "80", "https": "443"}
_OWN_SITE = (b"same-origin", b"none")
MAX_INVALID_TOKENS = 10
LOCKOUT_SECONDS = 60.0
_MAX_COUNTED = 20_000
_TOKEN_PREFIX = 8
CORS_PATHS = ("/v1/", "/ag-ui/")
"""Paths that allowed cross-site origins may request."""
MCP_PATH = "/mcp"
METADATA_PATH = "/.well-known/oauth-protected-resource"
"""Path of the OAuth metadata of a resource, before the path of the resource itself (RFC 9728)."""
MCP_SCOPES: tuple[Scope, ...] = ("read", "write")
"""Scopes that an MCP client needs."""
OAUTH_SCOPES: tuple[Scope, ...] = ("read", "write", "approve")
"""Scopes that a user can give to an OAuth client."""
OAUTH_SECONDS = 3600
"""Lifetime of the access token of an OAuth client."""
_HEADER_NAMES = re.compile(rb"[a-z0-9, -]{1,2000}", re.IGNORECASE)
_METHODS = b"GET, POST"
_PLAIN_TIERS = ("auto", "default", "flex", "standard_only")
_MAX_AGE = b"600"


class Grant(msgspec.Struct, frozen=True):
    """The user and the scopes of a token. `prefix` starts the keys of the sessions that only this user may access.

    `client` names the OAuth client that the token was issued to, `name` is its entry of `tokens.json`, and `resource`
    the path that accepts it. `expires_at` is in milliseconds; 0 never expires.
    """

    principal: Principal
    digest: bytes
    prefix: str = ""
    client: str = ""
    expires_at: int = 0
    name: str = ""
    resource: str = ""

    def allows(self, scope: Scope) -> bool:
        return scope in self.principal.scopes

    def covers(self, path: str) -> bool:
        """Return whether the token is valid for a path. Tokens of OAuth clients are valid for their resource only."""
        return not self.client or path == self.resource or path.startswith(f"{self.resource}/")

    def check_service_tier(self, tier: str | None) -> str:
        """Return the error if a client may not choose a service tier; empty if it may. Some require `admin`."""
        if tier is None or tier in _PLAIN_TIERS or self.allows("admin"):
            return ""
        return f"this token may choose only these service tiers: {', '.join(_PLAIN_TIERS)}"


class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of `tokens.json`: the token or its SHA-256, its scopes, and which sessions it may access.

    Several tokens can belong to one user: `user` defaults to the entry's name. A token with a `client` was issued to
    that OAuth client until `expires_at`, in milliseconds, for the path `resource`. It can never do more than the token
    with the SHA-256 `approver`, with which the user signed in, and never has the scope `admin`.
    """

    scopes: tuple[Scope, ...]
    token: str = ""
    sha256: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{64})?$")] = ""
    sessions: Literal["own", "all"] = "own"
    role: str = ""
    user: str = ""
    client: str = ""
    expires_at: int = 0
    resource: str = ""
    approver: str = ""


class TokenFile:
    """Access tokens from the files `token` and `tokens.json` in a folder, reloaded when they change."""

    def __init__(
        self, home: Path, configured: Secret | None = None, *, exposed: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._clock = clock
        self.path = home / "token"
        self._entries_path = home / "tokens.json"
        self._configured = configured
        self._exposed = exposed
        self._issued: dict[str, Grant] = {}
        if configured is None:
            _create_token_file(self.path)
        self._stamp = self._read_stamps()
        self._grants = self._read()

    def find_grant(self, token: str) -> Grant | None:
        """Return the grant of a token, or None if it is invalid. Takes constant time for any token."""
        return self.find_digest(_digest(token))

    def find_digest(self, digest: bytes) -> Grant | None:
        """Return the grant of the token with this SHA-256, or None if it is invalid."""
        self.refresh()
        found = None
        for grant in (*self._grants, *self._issued.values()):
            if hmac.compare_digest(grant.digest, digest) and not self._is_expired(grant):
                found = grant
        return found

    def has_expired(self, token: str) -> bool:
        """Return whether a token was valid until it expired, so that it is not a guess."""
        digest = _digest(token)
        return any(self._is_expired(each) and hmac.compare_digest(each.digest, digest) for each in self._grants)

    @property
    def main(self) -> Secret:
        """The main token, which has all scopes."""
        return self._configured or Secret(_read_token(self.path).strip())

    def is_valid(self, grant: Grant) -> bool:
        """Return whether the grant is still valid with the same scopes.

        An OAuth client may renew its token while a request is running.
        """
        if grant.client:
            same = [each for each in self._grants if (each.name, each.principal) == (grant.name, grant.principal)]
            return any(not self._is_expired(each) for each in same)
        return (grant in self._grants or grant in self._issued.values()) and not self._is_expired(grant)

    def _is_expired(self, grant: Grant) -> bool:
        return 0 < grant.expires_at <= self._clock.time() * 1000

    def refresh(self) -> bool:
        """Reload the files if they have changed. If they cannot be read, every token is refused."""
        stamp = self._read_stamps()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._grants = self._read()
        except ConfigError:
            self._grants = ()
            logger.exception("token files cannot be read; refusing all tokens until they can")
        return True

    def entries(self) -> dict[str, TokenEntry]:
        """Return the entries of `tokens.json` by name."""
        return read_json(self._entries_path, dict[str, TokenEntry]) or {}

    def check_new(self, name: str, entry: TokenEntry) -> None:
        """Raise ConfigError if a token with this name and these properties cannot be created."""
        self._grant(name, replace(entry, sha256="0" * 64))  # checks the names
        if name in self.entries():
            raise ConfigError(f"a token for {name!r} already exists; run: atlas token revoke {name}")

    def create(self, name: str, entry: TokenEntry) -> Secret:
        """Create a token with the properties of an entry and return it. Only its hash is written to disk."""
        secret = secrets.token_urlsafe(32)
        entry = replace(entry, sha256=_digest(secret).hex())
        with lock_file(self._entries_path):
            self.check_new(name, entry)
            self._write_entries({**self.entries(), name: entry})
        return Secret(secret)

    def renew(self, name: str, expires_at: int) -> Secret:
        """Replace the token of an entry with a new one that expires then, and return it."""
        secret = secrets.token_urlsafe(32)
        with lock_file(self._entries_path):
            entries = self.entries()
            if name not in entries:
                raise ConfigError(f"token not found: {name!r}; it was revoked")
            renewed = replace(entries[name], sha256=_digest(secret).hex(), expires_at=expires_at)
            self._write_entries({**entries, name: renewed})
        return Secret(secret)

    def remove(self, name: str) -> None:
        """Revoke a token of `tokens.json`."""
        with lock_file(self._entries_path):
            entries = self.entries()
            if name not in entries:
                raise ConfigError(
                    f"token not found: {name!r}; tokens: {', '.join(entries) or 'none'}. "
                    "Replace the main token with: atlas token rotate"
                )
            del entries[name]
            self._write_entries(entries)

    def _write_entries(self, entries: dict[str, TokenEntry]) -> None:
        values = {name: msgspec.to_builtins(entry) for name, entry in entries.items()}
        plain = {name: {key: value for key, value in each.items() if value} for name, each in values.items()}
        write_json(self._entries_path, plain)
        self.refresh()

    def issue(self, name: str, scopes: tuple[Scope, ...]) -> Secret:
        """Issue a token for an internal client with its own sessions, such as a channel. It is never written to disk.

        It is valid until the process ends, or until it is revoked or issued again under the same name.
        """
        if any(grant.principal.id == name for grant in self._grants):
            raise ConfigError(f"{self._entries_path}: token name {name!r} is reserved: choose another name")
        token = secrets.token_urlsafe(32)
        self._issued[name] = Grant(Principal(name, "guest", scopes, "own"), _digest(token), f"@{name}/")
        return Secret(token)

    def revoke(self, name: str) -> None:
        self._issued.pop(name, None)

    def rotate(self) -> Path:
        """Replace the main token with a new one and return the path of its file."""
        if self._configured is not None:
            raise ConfigError("cannot rotate the token: it is set in the settings; change it there")
        write_file(self.path, _new_token())
        self.refresh()
        return self.path

    @property
    def principals(self) -> tuple[Principal, ...]:
        return tuple(grant.principal for grant in self._grants)

    def _read_stamps(self) -> _Stamp:
        return tuple(_stamp(path) for path in (self.path, self._entries_path))

    def _read(self) -> tuple[Grant, ...]:
        main = self._configured.reveal() if self._configured is not None else _read_token(self.path)
        token = self._check_strength(main, "the token" if self._configured is not None else str(self.path))
        entries = self._read_entries()
        grants = [Grant(Principal("owner", "owner", ALL), _digest(token)), *map(self._grant, entries, entries.values())]
        own = {grant.digest.hex(): grant for grant in grants if not grant.client}
        approvers = {name: own.get(entry.approver) for name, entry in entries.items() if entry.client}
        return tuple([_limit(each, approvers[each.name]) if each.client else each for each in grants])

    def _check_strength(self, token: str, where: str) -> str:
        token = token.strip()
        if not token:
            raise ConfigError(f"{where} is empty: expected an access token")
        if strength(token) < MIN_TOKEN_BITS:
            if self._exposed:
                raise ConfigError(f"{where} is too weak for a non-loopback address: use at least 22 random characters")
            logger.warning("weak token accepted because the gateway only listens on loopback: token=%s", where)
        return token

    def _read_entries(self) -> dict[str, TokenEntry]:
        try:
            content = self._entries_path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"cannot read {self._entries_path}: {error.strerror}") from error
        try:
            entries = msgspec.json.decode(content, type=dict[str, TokenEntry])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._entries_path}: {error}") from error
        _restrict_permissions(self._entries_path)
        return entries

    def _grant(self, name: str, entry: TokenEntry) -> Grant:
        if not _NAME.fullmatch(name) or name == "owner":
            raise ConfigError(
                f"{self._entries_path}: invalid token name {name!r}: expected lowercase letters, digits, '-' and '_'"
            )
        if bool(entry.sha256) == bool(entry.token):
            raise ConfigError(f"{self._entries_path}: {name} needs either 'token' or 'sha256'")
        digest = bytes.fromhex(entry.sha256)
        if entry.token:
            digest = _digest(self._check_strength(entry.token, f"{self._entries_path}: {name}"))
        allowed = OAUTH_SCOPES if entry.client else ALL
        scopes: tuple[Scope, ...] = tuple([scope for scope in allowed if scope in entry.scopes])
        user = entry.user or name
        if not _NAME.fullmatch(user) or (user == "owner" and not entry.client):
            raise ConfigError(f"{self._entries_path}: {name}: invalid user name {user!r}")
        prefix = f"@{user}/" if entry.sessions == "own" else ""
        principal = Principal(user, entry.role or "guest", scopes, entry.sessions)
        return Grant(principal, digest, prefix, entry.client, entry.expires_at, name, entry.resource)


def _limit(grant: Grant, approver: Grant | None) -> Grant:
    """Limit the grant of an OAuth client to the current rights of its user's token. Without that token it expires."""
    if approver is None or approver.principal.id != grant.principal.id:
        return replace(grant, principal=replace(grant.principal, scopes=()), expires_at=1)
    scopes = tuple([scope for scope in grant.principal.scopes if approver.allows(scope)])
    return replace(grant, principal=replace(approver.principal, scopes=scopes), prefix=approver.prefix)


class Invitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Invitation: the rights of the new user's token, and the SHA-256 of the code. `expires_at` is in milliseconds."""

    sha256: str
    scopes: tuple[Scope, ...]
    expires_at: int
    sessions: Literal["own", "all"] = "own"
    role: str = ""


class Invitations:
    """Open invitations by user, in the file `invitations.json` of a folder. A code is valid once, until it expires."""

    def __init__(self, home: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = home / "invitations.json"
        self._clock = clock

    def open(self) -> dict[str, Invitation]:
        """Return the invitations that are still valid."""
        now = self._clock.time() * 1000
        found = read_json(self._path, dict[str, Invitation]) or {}
        return {user: each for user, each in found.items() if each.expires_at > now}

    def create(self, user: str, entry: TokenEntry, seconds: float) -> tuple[Secret, Invitation]:
        """Invite a user; an earlier invitation becomes invalid. Only the hash of the code is written to disk."""
        if not _NAME.fullmatch(user) or user == "owner":
            raise ConfigError(f"invalid user name {user!r}: expected lowercase letters, digits, '-' and '_'")
        code = secrets.token_urlsafe(24)
        expires_at = int((self._clock.time() + seconds) * 1000)
        made = Invitation(_digest(code).hex(), entry.scopes, expires_at, entry.sessions, entry.role)
        with lock_file(self._path):
            write_json(self._path, {**self.open(), user: made})
        return Secret(code), made

    def find(self, code: str) -> str | None:
        """Return the user that a code invites; None if it is invalid or expired."""
        digest, found = _digest(code).hex(), None
        for user, each in self.open().items():
            if hmac.compare_digest(each.sha256, digest):
                found = user
        return found

    def take(self, user: str) -> Invitation | None:
        """Remove the invitation of a user and return it; None if there is none."""
        with lock_file(self._path):
            found = self.open()
            taken = found.pop(user, None)
            if taken is not None:
                write_json(self._path, found)
        return taken


def strength(token: str) -> float:
    """Estimate the entropy of a token in bits. A token with few distinct characters has none."""
    if len(set(token)) < 10:
        return 0.0
    size = 16 if re.fullmatch(r"[0-9a-f]+|[0-9A-F]+", token) else 36 if token.isalnum() and token.islower() else 64
    return len(token) * math.log2(size)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode


def _create_token_file(path: Path) -> None:
    """Create the token file if it does not exist. If two processes start at once, one of them creates it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        return
    with suppress(FileExistsError):
        write_file(path, _new_token(), overwrite=False)


def _new_token() -> bytes:
    return secrets.token_urlsafe(32).encode() + b"\n"


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TOKEN_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read token file {path}: {error.strerror}") from error
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read token file {path}: not UTF-8 text") from error
    if len(content) > _MAX_TOKEN_FILE_BYTES or "\0" in text:
        raise ConfigError(f"invalid token file {path}: expected one line with an access token")
    _restrict_permissions(path)
    return text


def _restrict_permissions(path: Path) -> None:
    """Remove the permissions of other users from a token file."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            logger.warning("token file was readable by other users; permissions fixed: path=%s", path)
            path.chmod(mode & 0o700)
    except OSError:
        logger.warning("token file is readable by other users and its permissions cannot be changed: path=%s", path)


class OriginPolicy:
    """Checks the `Host` and `Origin` headers of requests.

    Unknown hosts are refused to prevent DNS rebinding; origins of other sites must be allowed in the settings.
    """

    def __init__(self, hosts: Iterable[str], origins: Iterable[str] = ()) -> None:
        self._hosts = {"localhost", "127.0.0.1", "[::1]"} | {_bracketed(host.strip().lower()) for host in hosts}
        self._origins = {origin.strip().lower().rstrip("/") for origin in origins} - {"*", "null"}

    def refusal(self, scope: Any) -> Refusal | None:
        """Return the status and the reason if the request must be refused, else None."""
        headers: Headers = scope["headers"]
        host = _single_header(headers, b"host")
        name = _HOST.fullmatch(host.lower()) if host else None
        if host is None or name is None or name[1] not in self._hosts:
            return 421, "host not allowed"
        if self.allowed_origin(scope) is not None:
            return None
        origins = [value for key, value in headers if key == b"origin"]
        if origins and (len(origins) > 1 or not _is_same_origin(origins[0].decode("latin-1"), name)):
            return 403, "origin not allowed"
        if _is_cross_site(scope, headers):
            return 403, "origin not allowed"
        return None

    def is_own_page(self, scope: Any) -> bool:
        """Return whether a page of this gateway sent the request, so that its cookie may be used.

        Pages of other ports and of allowed cross-site origins do not count. Browsers send no `Origin` with simple GET
        requests of the same origin, but mark them.
        """
        headers: Headers = scope["headers"]
        host, origin = _single_header(headers, b"host"), _single_header(headers, b"origin")
        name = _HOST.fullmatch(host.lower()) if host else None
        if origin is not None:
            return name is not None and _is_same_origin(origin, name)
        reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        return (
            reads
            and not any(key == b"origin" for key, _ in headers)
            and (_single_header(headers, b"sec-fetch-site") == "same-origin")
        )

    def allowed_origin(self, scope: Any) -> str | None:
        """Return the origin of the request if it is an allowed cross-site origin, else None."""
        origin = _single_header(scope["headers"], b"origin") if self._origins else None
        return origin if origin is not None and origin.lower() in self._origins else None


def _is_same_origin(origin: str, host: re.Match[str]) -> bool:
    found = _ORIGIN.fullmatch(origin.lower())
    target = _HOST.fullmatch(found[2]) if found else None
    if found is None or target is None:
        return False
    default = _PORTS[found[1]]
    return target[1] == host[1] and (target[2] or default) == (host[2] or default)


def _is_cross_site(scope: Any, headers: Headers) -> bool:
    """Return whether the browser marks the request as cross-site. Navigation to the web UI is allowed."""
    values = dict(headers)
    if values.get(b"sec-fetch-site", b"none") in _OWN_SITE:
        return False
    follows_link = values.get(b"sec-fetch-mode") == b"navigate" and values.get(b"sec-fetch-dest") == b"document"
    return not (follows_link and scope["type"] == "http" and scope["method"] == "GET")


def _single_header(headers: Headers, key: bytes) -> str | None:
    found = [value for name, value in headers if name == key]
    return found[0].decode("latin-1") if len(found) == 1 else None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


class Lockout:
    """Counts invalid tokens per client address and per token prefix. IPv6 addresses are counted per /64 network."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, address: str, token: str = "") -> float:
        """Return the seconds until this address may try such an invalid token again; 0 if it may now."""
        return max(map(self._wait, self._keys(address, token)))

    def record_failure(self, address: str, token: str = "") -> None:
        """Record an invalid token from this address."""
        for key in self._keys(address, token):
            times = self._failures.setdefault(key, deque(maxlen=MAX_INVALID_TOKENS))
            times.append(self._clock.monotonic())
            self._failures.move_to_end(key)
            if len(self._failures) > _MAX_COUNTED:
                self._failures.popitem(last=False)

    def _wait(self, key: str) -> float:
        times = self._failures.get(key)
        if times is None or len(times) < MAX_INVALID_TOKENS:
            return 0.0
        return max(0.0, times[0] + LOCKOUT_SECONDS - self._clock.monotonic())

    def _keys(self, address: str, token: str) -> list[str]:
        prefix = token[:_TOKEN_PREFIX]
        return [_network(address), *([f"token {_digest(prefix).hex()}"] if prefix else [])]


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped is None and not found.is_loopback:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def external_url(scope: Any, path: str) -> str:
    """Return an absolute URL under the address that the client used. Behind a proxy with TLS, that is an https one."""
    headers = dict(scope["headers"])
    forwarded = headers.get(b"x-forwarded-proto", b"").decode("latin-1")
    scheme = forwarded if forwarded in _PORTS else scope.get("scheme", "http")
    return f"{scheme}://{headers.get(b'host', b'').decode('latin-1')}{quote(path)}"


def bearer_challenge(scope: Any, needed: Iterable[Scope] = MCP_SCOPES, error: str = "") -> str:
    """Return the `WWW-Authenticate` header of a refusal. For MCP clients it names the resource metadata (RFC 9728)."""
    path = scope["path"]
    if path != MCP_PATH and not path.startswith(f"{MCP_PATH}/"):
        return "Bearer"
    fields = {
        **({"error": error} if error else {}),
        "resource_metadata": external_url(scope, METADATA_PATH + path),
        "scope": " ".join(needed),
    }
    return "Bearer " + ", ".join([f'{name}="{value}"' for name, value in fields.items()])


class TrustedProxies:
    """Finds the address of a client behind reverse proxies, which add it to the header `X-Forwarded-For`.

    The header is used only if a trusted proxy sent the request: the client is the last address in it that is not a
    trusted proxy itself. Everything before that may have been invented by the client.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [_parse_network(each) for each in networks]

    def client_address(self, scope: Any) -> str:
        """Return the address of the client that sent the request."""
        address: str = scope["client"][0] if scope["client"] else ""
        if not self._is_trusted(address):
            return address
        headers: Headers = scope["headers"]
        for value in reversed([value for name, value in headers if name == b"x-forwarded-for"]):
            for entry in reversed(value.decode("latin-1").split(",")):
                found = _parse_address(entry.strip())
                if found is None:
                    return address
                address = found
                if not self._is_trusted(address):
                    return address
        return address

    def _is_trusted(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = found.ipv4_mapped if found.version == 6 else None
        return any((mapped or found) in network for network in self._networks)


def _parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise ConfigError(
            f"trusted_proxies: invalid address {text!r}: expected an IP address or a network such as 10.0.0.0/8"
        ) from None
    if not network.prefixlen:
        raise ConfigError(f"trusted_proxies: {text!r} would trust every client; name the addresses of the proxies")
    return network


def _parse_address(entry: str) -> str | None:
    """Return the address in an entry of `X-Forwarded-For`, without its port; None if it is not an address."""
    host, _, port = entry.rpartition(":")
    plain = host if port.isdigit() and ("." in host or host.endswith("]")) else entry
    try:
        return str(ipaddress.ip_address(plain.strip("[]").partition("%")[0]))
    except ValueError:
        return None


class Authenticator:
    """Authenticates tokens and limits invalid ones. One instance per listening process."""

    def __init__(self, settings: GatewaySettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self.tokens = TokenFile(settings.home, settings.token, exposed=settings.exposed, clock=clock)
        self.invitations = Invitations(settings.home)
        own = () if settings.host in EVERYWHERE else (settings.host,)
        self.origin_policy = OriginPolicy((*settings.hosts, *own), settings.origins)
        self.proxies = TrustedProxies(settings.trusted_proxies)
        self.suspended: frozenset[str] = frozenset()
        """Users whose tokens are refused."""
        self._lockout = Lockout(clock)

    def authenticate(self, address: str, token: str, path: str = "") -> tuple[float, Grant | None]:
        """Return the grant of a token; None, and the seconds to wait before the next try, if it is invalid for a path.

        A valid token is accepted whatever others have tried from the same address: guessing is prevented by the
        length of tokens, and users behind one proxy or router cannot lock each other out.
        """
        grant = self.tokens.find_grant(token)
        if grant is not None and grant.covers(path) and grant.principal.id not in self.suspended:
            return 0.0, grant
        if self.tokens.has_expired(token):  # OAuth clients renew a token when it is refused with the status 401
            return 0.0, None
        wait = self._lockout.wait(address, token)
        if not wait:
            self._lockout.record_failure(address, token)
        return wait, None

    def find_invited(self, address: str, code: str) -> tuple[float, str | None]:
        """Return the user that a code invites; None, and the seconds to wait before the next try, if it is invalid."""
        user = self.invitations.find(code)
        if user is not None:
            return 0.0, user
        wait = self._lockout.wait(address, code)
        if not wait:
            self._lockout.record_failure(address, code)
        return wait, None


def is_preflight(scope: Any) -> bool:
    """Return whether the request is a CORS preflight."""
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


def cors_headers(origin: str | None, scope: Any) -> Headers:
    """Return the CORS headers for an allowed origin; none for same-origin requests."""
    if origin is None or not scope["path"].startswith(CORS_PATHS):
        return []
    return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]


def preflight_headers(origin: str, scope: Any) -> Headers:
    """Return the headers that answer a CORS preflight. The requested headers are allowed; cookies are not."""
    found = cors_headers(origin, scope)
    if found:
        found += [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", _MAX_AGE)]
        fields = dict(scope["headers"]).get(b"access-control-request-headers", b"")
        if _HEADER_NAMES.fullmatch(fields):
            found.append((b"access-control-allow-headers", fields))
    return found
