"""OAuth authorization server for MCP connectors: client registration, consent, authorization codes and refresh tokens.

Clients are public (no secret) and must use PKCE with S256. An access token is an entry of `tokens.json` like any other,
so it is listed, audited and revoked like any other. Codes and refresh tokens are stored as SHA-256 only.
"""

import base64
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.resources import files
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.errors import ConfigError, Conflict, NotFound
from atlas_agents.core.json import encode
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import DropRecord, PutRecord
from atlas_agents.gateway.asgi import ApiRoute, JsonResponse, Operation, get_grant
from atlas_agents.gateway.auth import (
    MCP_PATH,
    MCP_SCOPES,
    OAUTH_SCOPES,
    OAUTH_SECONDS,
    Grant,
    Lockout,
    TokenEntry,
    external_url,
)
from atlas_agents.gateway.edits import EditTarget
from atlas_agents.gateway.http_api import read_body, read_bytes, require_own_page, with_error_responses
from atlas_agents.gateway.http_errors import HTTPError
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol.types import Scope
from atlas_agents.tools.audit import AuditEntry

SERVER_METADATA_PATH = "/.well-known/oauth-authorization-server"
"""Path of the metadata of the authorization server (RFC 8414)."""
CODE_SECONDS = 60
REFRESH_SECONDS = 30 * 24 * 3600
MAX_CLIENTS = 200
"""Maximum number of registered clients; one more replaces the oldest client without a token."""
MAX_GRANTS = 20
"""Maximum number of OAuth tokens per user; one more replaces the oldest."""
_MAX_REDIRECTS = 10
_MAX_URI = 2000
_MAX_NAME = 80
_MAX_BODY = 16 * 1024
_MAX_USED = 10
_KEPT_CODE_MS = 3_600_000
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")
_URI = re.compile(r"[!-\[\]-~]+")
_HOST = re.compile(r"[a-z0-9_.-]+|[0-9a-f:.]+")
"""Hosts that every browser reads exactly as written: without percent-encoding or other special characters."""
_LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
_PAGE_HEADERS = {"Cross-Origin-Opener-Policy": "unsafe-none"}
"""The page that opened the consent screen in a window must see when that window is closed."""
_GRANT_TYPES = ("authorization_code", "refresh_token")
Answer: TypeAlias = Callable[[Request], Awaitable[Response]]
Form: TypeAlias = dict[str, str]
logger = logging.getLogger(__name__)


class OAuthError(Exception):
    """An error response of OAuth (RFC 6749, section 5.2): `code` is for programs, the message for people."""

    def __init__(self, code: str, message: str, status: int = 400, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.headers = {"Retry-After": str(max(1, round(retry_after)))} if retry_after else {}


class RegisteredClient(msgspec.Struct, frozen=True):
    """A registered client. `created_at` is in milliseconds."""

    id: str
    name: str
    redirect_uris: tuple[str, ...]
    created_at: int


class AuthorizationCode(msgspec.Struct, frozen=True):
    """Authorization code: the rights that a user allowed. `approver` is the SHA-256 of the token with which the user
    signed in.

    `token_name` is the token that the code was exchanged for, or was to be; empty until the code is used.
    """

    client_id: str
    redirect_uri: str
    challenge: str
    scopes: tuple[Scope, ...]
    resource: str
    user: str
    approver: str
    expires_at: int
    token_name: str = ""


class RefreshGrant(msgspec.Struct, frozen=True):
    """The refresh token of an entry of `tokens.json`, by SHA-256; `used` are those that it replaced."""

    token_name: str
    client_id: str
    user: str
    approver: str
    secret: str
    created_at: int
    expires_at: int
    used: tuple[str, ...] = ()


class Registration(msgspec.Struct, frozen=True):
    """Body of `POST /register` (RFC 7591). Other fields are ignored; every client is public."""

    redirect_uris: tuple[str, ...]
    client_name: str | None = None
    grant_types: tuple[str, ...] = _GRANT_TYPES


class ClientInformation(msgspec.Struct, frozen=True):
    """A registered client, as RFC 7591 describes it."""

    client_id: str
    client_id_issued_at: int
    client_name: str
    redirect_uris: tuple[str, ...]
    grant_types: tuple[str, ...] = _GRANT_TYPES
    response_types: tuple[str, ...] = ("code",)
    token_endpoint_auth_method: str = "none"  # noqa: S105 - the name of a method


class TokenResponse(msgspec.Struct, frozen=True):
    """An access token with the refresh token that replaces it (RFC 6749)."""

    access_token: str
    refresh_token: str
    expires_in: int
    scope: str
    token_type: str = "Bearer"  # noqa: S105 - the name of a type


class Consent(msgspec.Struct, frozen=True):
    """Content of the consent screen: the client, the redirect target, and the scopes that the user can allow."""

    client: str
    host: str
    scopes: tuple[Scope, ...]
    user: str


class ConsentRequest(msgspec.Struct, frozen=True):
    """Body of `POST /api/consent/request`: the query of the authorization request."""

    query: str


class ConsentDecision(msgspec.Struct, frozen=True):
    """Body of `POST /api/consent`: the query of the authorization request, and the user's answer."""

    query: str
    decision: Literal["allow", "deny"]


class ConsentRedirect(msgspec.Struct, frozen=True):
    """Redirect target of the browser."""

    redirect: str


class _Asked(msgspec.Struct, frozen=True):
    """A valid authorization request."""

    client: RegisteredClient
    redirect_uri: str
    state: str
    challenge: str
    scopes: tuple[Scope, ...]
    resource: str


_clients = msgspec.json.Decoder(RegisteredClient)
_codes = msgspec.json.Decoder(AuthorizationCode)
_grants = msgspec.json.Decoder(RefreshGrant)


class OAuthServer:
    """Registers clients, asks the signed-in user for consent and issues tokens.

    Anyone can register clients, so registrations are only logged; decisions of users and everything after are audited.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._registrations = Lockout()
        self._consents = Lockout()
        self._failures = Lockout()

    async def register(self, registration: Registration, address: str) -> RegisteredClient:
        """Store a new client; at the limit it replaces the oldest one without a token."""
        _check_limit(self._registrations, address)
        self._registrations.record_failure(address)
        uris = registration.redirect_uris
        if not 1 <= len(uris) <= _MAX_REDIRECTS:
            raise OAuthError("invalid_redirect_uri", f"expected 1 to {_MAX_REDIRECTS} redirect_uris, got {len(uris)}")
        for uri in uris:
            _check_redirect_uri(uri)
        if "authorization_code" not in registration.grant_types:
            raise OAuthError("invalid_client_metadata", "grant_types: expected 'authorization_code'")
        name = "".join([each for each in registration.client_name or "" if each.isprintable()]).strip()[:_MAX_NAME]
        client = RegisteredClient(secrets.token_hex(16), name or _host(uris[0]), uris, _now_ms())
        async with self._hub.edits.exclusive():
            await self._drop(await self._find_idle_client())
            await self._commit(PutRecord("oauth", f"client:{client.id}", encode(client), version=0))
        fields = {"address": address, "client": client.id, "name": self._hub.atlas.hide(client.name)}
        logger.info("OAuth client registered", extra={"fields": fields})
        return client

    async def _find_idle_client(self) -> list[DropRecord]:
        """Return the write that deletes the oldest client without a token, if there are too many."""
        clients = sorted([_clients.decode(each) for each in await self._bodies("client:")], key=_created_at)
        if len(clients) < MAX_CLIENTS:
            return []
        in_use = {_grants.decode(each).client_id for each in await self._bodies("grant:")}
        idle = [each for each in clients if each.id not in in_use]
        if not idle:
            raise OAuthError("temporarily_unavailable", f"all {MAX_CLIENTS} clients are in use", 503)
        return [DropRecord("oauth", f"client:{idle[0].id}")]

    async def parse_request(self, query: str, issuer: str) -> _Asked:
        """Check an authorization request. Errors are shown to the user, never redirected: anyone can register."""
        form = _parse_form(query)
        client = await self._client(form)
        uri = form.get("redirect_uri", "")
        if not any(_matches_redirect(each, uri) for each in client.redirect_uris):
            raise OAuthError("invalid_request", "redirect_uri is not one that the client registered")
        if form.get("response_type") != "code":
            raise OAuthError("unsupported_response_type", "response_type: expected 'code'")
        challenge = form.get("code_challenge", "")
        if form.get("code_challenge_method") != "S256" or not _CHALLENGE.fullmatch(challenge):
            raise OAuthError("invalid_request", "PKCE is required: send code_challenge and code_challenge_method=S256")
        resource = form.get("resource", issuer + MCP_PATH)
        if resource != issuer + MCP_PATH and not resource.startswith(f"{issuer}{MCP_PATH}/"):
            raise OAuthError("invalid_target", f"resource: expected {issuer}{MCP_PATH} or an address below it")
        wanted = form.get("scope", "").split() or list(MCP_SCOPES)
        scopes: tuple[Scope, ...] = tuple([scope for scope in OAUTH_SCOPES if scope in wanted])
        if "read" not in scopes:
            raise OAuthError("invalid_scope", f"scope: expected 'read' and more of {', '.join(OAUTH_SCOPES)}")
        return _Asked(client, uri, form.get("state", ""), challenge, scopes, resource)

    async def decide(self, asked: _Asked, grant: Grant, issuer: str, *, allowed: bool) -> str:
        """Record the decision of a signed-in user and return the redirect address with the decision."""
        user, scopes = grant.principal.id, allowed_scopes(asked, grant)
        _check_limit(self._consents, user)
        self._consents.record_failure(user)
        answer = {"error": "access_denied"}
        if allowed:
            code = secrets.token_urlsafe(32)
            answer = {"code": code}
            made = AuthorizationCode(
                client_id=asked.client.id,
                redirect_uri=asked.redirect_uri,
                challenge=asked.challenge,
                scopes=scopes,
                resource=asked.resource,
                user=user,
                approver=grant.digest.hex(),
                expires_at=_now_ms() + CODE_SECONDS * 1000,
            )
            await self._drop(await self._old_codes())
            await self._commit(PutRecord("oauth", _code_key(code), encode(made), version=0))
        detail = {"redirectUri": asked.redirect_uri, "scopes": list(scopes)}
        await self._audit(user, asked.client, "allowed" if allowed else "denied", detail)
        fields = {**answer, **({"state": asked.state} if asked.state else {}), "iss": issuer}
        return f"{asked.redirect_uri}{'&' if '?' in asked.redirect_uri else '?'}{urlencode(fields)}"

    async def _old_codes(self) -> list[DropRecord]:
        """Return the writes that delete old codes. Used codes are kept for an hour, to detect reuse."""
        rows = await self._hub.store.records(self._hub.atlas.tenant, "oauth")
        codes = [row for row in rows if row.key.startswith("code:")]
        oldest = _now_ms() - _KEPT_CODE_MS
        return [DropRecord("oauth", row.key) for row in codes if _codes.decode(row.body).expires_at < oldest]

    async def answer_token_request(self, body: str, address: str) -> TokenResponse:
        """Exchange an authorization code or a refresh token for tokens.

        Failures are limited per client and address: users of one proxy or cloud service cannot lock each other out.
        """
        sender = address
        try:
            form = _parse_form(body)
            client = await self._client(form)
            sender = f"{client.id} {address}"
            _check_limit(self._failures, sender)
            async with self._hub.edits.exclusive():
                if form.get("grant_type") == "authorization_code":
                    return await self._exchange(form, client)
                if form.get("grant_type") == "refresh_token":
                    return await self._refresh(form, client)
            raise OAuthError("unsupported_grant_type", f"grant_type: expected {' or '.join(_GRANT_TYPES)}")
        except Conflict:
            raise OAuthError("invalid_grant", "it was used by another request") from None
        except OAuthError as error:
            _check_limit(self._failures, sender)
            self._failures.record_failure(sender)
            logger.warning("OAuth token request refused: reason=%s", error.message, extra={"fields": {"ip": address}})
            raise

    async def _exchange(self, form: Form, client: RegisteredClient) -> TokenResponse:
        """Use up a code, whatever the outcome. A code that is used again revokes the token it was exchanged for."""
        key = _code_key(form.get("code", ""))
        row = await self._hub.store.record(self._hub.atlas.tenant, "oauth", key)
        if row is None:
            raise OAuthError("invalid_grant", "the code is unknown or expired")
        code = _codes.decode(row.body)
        if code.token_name:
            await self._revoke(code.token_name, code.user, "authorization code used again")
            await self._audit(code.user, client, "used a code again", {"token": code.token_name}, success=False)
            raise OAuthError("invalid_grant", "the code was used before; its token is revoked")
        name = f"oauth-{_slug(client.name)}-{secrets.token_hex(8)}"
        used = msgspec.structs.replace(code, token_name=name)
        await self._commit(PutRecord("oauth", key, encode(used), version=row.version))
        grant = self._find_approver(code.user, code.approver, code.scopes)
        problem = _find_mismatch(code, form, client) or ("" if grant else "the user's own token is no longer valid")
        if problem or grant is None:
            await self._audit(code.user, client, "sent an invalid code", {"reason": problem}, success=False)
            raise OAuthError("invalid_grant", problem)
        return await self._issue(name, code, client, grant)

    async def _issue(self, name: str, code: AuthorizationCode, client: RegisteredClient, grant: Grant) -> TokenResponse:
        await self._revoke_oldest(code.user)
        principal, secret, now = grant.principal, secrets.token_urlsafe(32), _now_ms()
        entry = TokenEntry(
            code.scopes,
            sessions=principal.sessions,
            role=principal.role,
            user=principal.id,
            client=client.name,
            expires_at=now + OAUTH_SECONDS * 1000,
            resource=unquote(urlsplit(code.resource).path).rstrip("/"),
            approver=code.approver,
        )
        refresh = RefreshGrant(
            token_name=name,
            client_id=client.id,
            user=code.user,
            approver=code.approver,
            secret=_sha256(secret),
            created_at=now,
            expires_at=now + REFRESH_SECONDS * 1000,
        )
        await self._commit(PutRecord("oauth", f"grant:{name}", encode(refresh), version=0))
        diff = f"token for OAuth client {client.name} ({client.id}): {', '.join(code.scopes)}"
        token = await self._edit_token(name, None, code.user, diff, lambda: self._hub.tokens.create(name, entry))
        return TokenResponse(token.reveal(), f"{name}.{secret}", OAUTH_SECONDS, " ".join(code.scopes))

    async def _refresh(self, form: Form, client: RegisteredClient) -> TokenResponse:
        """Replace the access token and the refresh token. A refresh token that is used again revokes both."""
        name, _, sent = form.get("refresh_token", "").partition(".")
        row = await self._hub.store.record(self._hub.atlas.tenant, "oauth", f"grant:{name}")
        found = _grants.decode(row.body) if row is not None else None
        if row is None or found is None or found.client_id != client.id:
            raise OAuthError("invalid_grant", "the refresh token is unknown, expired or revoked")
        digest = _sha256(sent)
        if digest in found.used:
            await self._revoke(name, found.user, "refresh token used again")
            await self._audit(found.user, client, "used a refresh token again", {"token": name}, success=False)
            raise OAuthError("invalid_grant", "the refresh token was used before; its tokens are revoked")
        if not hmac.compare_digest(digest, found.secret):
            raise OAuthError("invalid_grant", "the refresh token is unknown, expired or revoked")
        entry = (await run_in_thread(self._hub.tokens.entries)).get(name)
        approver = self._find_approver(found.user, found.approver, entry.scopes) if entry is not None else None
        if entry is None or approver is None or found.expires_at <= _now_ms():
            await self._revoke(name, found.user, "refresh token expired, or the user's own token was revoked")
            raise OAuthError("invalid_grant", "the refresh token is unknown, expired or revoked")
        secret, now = secrets.token_urlsafe(32), _now_ms()
        renewed = msgspec.structs.replace(
            found,
            secret=_sha256(secret),
            used=(digest, *found.used)[:_MAX_USED],
            expires_at=now + REFRESH_SECONDS * 1000,
        )
        await self._commit(PutRecord("oauth", row.key, encode(renewed), version=row.version))
        expires_at = now + OAUTH_SECONDS * 1000
        diff = f"token renewed by OAuth client {client.name} ({client.id})"
        token = await self._edit_token(
            name, "valid", found.user, diff, lambda: self._hub.tokens.renew(name, expires_at)
        )
        return TokenResponse(token.reveal(), f"{name}.{secret}", OAUTH_SECONDS, " ".join(entry.scopes))

    async def _edit_token(
        self, name: str, version: str | None, user: str, diff: str, make: Callable[[], Secret]
    ) -> Secret:
        made: list[Secret] = []

        async def write() -> str | None:
            made.append(await run_in_thread(make))
            return "valid"

        await self._hub.edits.apply(EditTarget("token", name, version), user, write, diff=diff, scope="admin")
        return made[0]

    async def _revoke(self, name: str, user: str, reason: str) -> None:
        """Remove an OAuth token with its refresh token, which is useless after a crash between the two."""

        async def write() -> str | None:
            await run_in_thread(self._hub.tokens.remove, name)
            return None

        if name in await run_in_thread(self._hub.tokens.entries):
            await self._hub.edits.apply(EditTarget("token", name, "valid"), user, write, diff=reason, scope="admin")
            self._hub.close_unauthorized()
        await self._drop([DropRecord("oauth", f"grant:{name}")])

    async def _revoke_oldest(self, user: str) -> None:
        """Revoke expired refresh tokens, and the oldest ones of a user who has too many."""
        found = sorted([_grants.decode(each) for each in await self._bodies("grant:")], key=_created_at)
        for each in [each for each in found if each.expires_at <= _now_ms()]:
            await self._revoke(each.token_name, each.user, "refresh token expired")
        own = [each for each in found if each.user == user and each.expires_at > _now_ms()]
        for each in own[: max(0, len(own) + 1 - MAX_GRANTS)]:
            await self._revoke(each.token_name, user, f"more than {MAX_GRANTS} OAuth clients")

    def _find_approver(self, user: str, digest: str, scopes: tuple[Scope, ...]) -> Grant | None:
        """Return the grant of the token with which the user signed in, if it still has the scopes."""
        grant = self._hub.tokens.find_digest(bytes.fromhex(digest))
        if grant is None or grant.principal.id != user or user in self._hub.authenticator.suspended:
            return None
        return grant if all(grant.allows(scope) for scope in scopes) else None

    async def _client(self, form: Form) -> RegisteredClient:
        id = form.get("client_id", "")
        row = await self._hub.store.record(self._hub.atlas.tenant, "oauth", f"client:{id}")
        if row is None:
            raise OAuthError("invalid_client", "unknown client_id; register the client again", 401)
        return _clients.decode(row.body)

    async def _bodies(self, prefix: str) -> list[bytes]:
        rows = await self._hub.store.records(self._hub.atlas.tenant, "oauth")
        return [row.body for row in rows if row.key.startswith(prefix)]

    async def _drop(self, drops: list[DropRecord]) -> None:
        """Delete records that another process may be deleting too."""
        for each in drops:
            with suppress(NotFound):
                await self._commit(each)

    async def _commit(self, *writes: PutRecord | DropRecord) -> None:
        await self._hub.store.commit(self._hub.atlas.tenant, list(writes))

    async def _audit(
        self, actor: str, client: RegisteredClient, what: str, detail: dict[str, Any], *, success: bool = True
    ) -> None:
        hide = self._hub.atlas.hide
        entry = AuditEntry(
            tenant_id=self._hub.atlas.tenant,
            actor_external_id=actor,
            entity_id=client.id,
            level="info" if success else "warn",
            message=hide(f"OAuth client {client.name}: {what}"),
            success=success,
            meta={"user": actor, "client": hide(client.name), "outcome": what, **detail},
            timestamp=_now_ms(),
            actor_type="user",
            action="OAUTH",
            entity_type="oauthClient",
        )
        await self._hub.atlas.audit.append(entry)


def _check_limit(lockout: Lockout, key: str) -> None:
    wait = lockout.wait(key)
    if wait:
        raise OAuthError("temporarily_unavailable", "too many requests; try again later", 429, wait)


def allowed_scopes(asked: _Asked, grant: Grant) -> tuple[Scope, ...]:
    """Return the requested scopes that the user has."""
    return tuple([scope for scope in asked.scopes if grant.allows(scope)])


def _find_mismatch(code: AuthorizationCode, form: Form, client: RegisteredClient) -> str:
    """Return the reason why this request cannot exchange a code; empty if it can."""
    verifier = form.get("code_verifier", "")
    digest = hashlib.sha256(verifier.encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    if code.client_id != client.id:
        return "the code was issued to another client"
    if code.redirect_uri != form.get("redirect_uri"):
        return "redirect_uri differs from that of the authorization request"
    if not _VERIFIER.fullmatch(verifier) or not hmac.compare_digest(challenge, code.challenge):
        return "code_verifier does not match the code_challenge"
    if form.get("resource", code.resource) != code.resource:
        return "resource differs from that of the authorization request"
    return "the code is unknown or expired" if code.expires_at <= _now_ms() else ""


def _check_redirect_uri(uri: str) -> None:
    try:
        parts = urlsplit(uri)
        host, valid = parts.hostname or "", parts.port != 0
    except ValueError:
        host, valid, parts = "", False, urlsplit("")
    safe = parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK_HOSTS)
    plain = _URI.fullmatch(uri) is not None and len(uri) <= _MAX_URI and "#" not in uri and "@" not in parts.netloc
    if not (safe and plain and valid and _HOST.fullmatch(host)):
        raise OAuthError(
            "invalid_redirect_uri",
            f"invalid redirect URI {uri[:200]!r}: expected https, or http on 127.0.0.1, [::1] or localhost, "
            "without a fragment or a user name",
        )


def _matches_redirect(registered: str, uri: str) -> bool:
    """Compare redirect URIs exactly, except for the port on a loopback address (RFC 8252, section 7.3)."""
    if registered == uri:
        return True
    try:
        _check_redirect_uri(uri)
    except OAuthError:
        return False
    one, other = urlsplit(registered), urlsplit(uri)
    loopback = one.scheme == "http" and other.scheme == "http"
    return loopback and (one.hostname, one.path, one.query) == (other.hostname, other.path, other.query)


def _parse_form(text: str) -> Form:
    """Decode a query or a form; a parameter that is sent twice is an error."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=50, errors="strict")
    except ValueError:
        raise OAuthError("invalid_request", "the request is not a valid form") from None
    form = dict(pairs)
    if len(form) != len(pairs):
        raise OAuthError("invalid_request", "a parameter is sent more than once")
    if any(len(value) > _MAX_URI or "\0" in value for value in form.values()):
        raise OAuthError("invalid_request", f"a parameter is longer than {_MAX_URI} characters")
    return form


def _host(uri: str) -> str:
    return urlsplit(uri).netloc


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24].strip("-") or "client"


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _code_key(code: str) -> str:
    return f"code:{_sha256(code)}"


def _created_at(each: RegisteredClient | RefreshGrant) -> int:
    return each.created_at


def _now_ms() -> int:
    return int(time.time() * 1000)


def oauth_routes(hub: Hub) -> list[BaseRoute]:
    """Return the routes of the authorization server, and those of its consent screen."""
    server = OAuthServer(hub)

    async def describe(request: Request) -> Response:
        return JsonResponse(_describe_server(external_url(request.scope, "")))

    async def register(request: Request) -> Response:
        try:
            body = await read_body(request, Registration, _MAX_BODY)
        except HTTPError as error:
            raise OAuthError("invalid_client_metadata", error.message, error.status) from None
        client = await server.register(body, _address(request))
        shape = ClientInformation(client.id, client.created_at // 1000, client.name, client.redirect_uris)
        return JsonResponse(shape, 201)

    async def exchange(request: Request) -> Response:
        if (
            request.headers.get("content-type", "").partition(";")[0].strip().lower()
            != "application/x-www-form-urlencoded"
        ):
            raise OAuthError("invalid_request", "expected the content type application/x-www-form-urlencoded")
        try:
            body = (await read_bytes(request, _MAX_BODY)).decode("ascii", "strict")
        except HTTPError as error:
            raise OAuthError("invalid_request", error.message, error.status) from None
        except UnicodeDecodeError:
            raise OAuthError("invalid_request", "the request is not a valid form") from None
        return JsonResponse(await server.answer_token_request(body, _address(request)))

    described = Operation("Describe the OAuth authorization server.", "OAuth", result="application/json")
    registered = Operation(
        "Register an OAuth client.", "OAuth", body=Registration, result=ClientInformation, status=201
    )
    exchanged = Operation(
        "Exchange an authorization code or a refresh token for tokens.",
        "OAuth",
        body="application/x-www-form-urlencoded",
        result=TokenResponse,
    )
    return [
        ApiRoute(SERVER_METADATA_PATH, describe, described),
        ApiRoute("/register", _with_oauth_errors(register), registered, ["POST"]),
        ApiRoute("/token", _with_oauth_errors(exchange), exchanged, ["POST"]),
        *_consent_routes(hub, server),
    ]


def _consent_routes(hub: Hub, server: OAuthServer) -> list[BaseRoute]:
    folder = files("atlas_agents.gateway")
    page, script = [folder.joinpath(name).read_text(encoding="utf-8") for name in ("consent.html", "consent.js")]

    async def show_page(request: Request) -> Response:
        """Check the request and show the consent screen.

        The browser sends no cookie with a link from another site, so the page itself asks who is signed in.
        """
        try:
            await server.parse_request(request.url.query, external_url(request.scope, ""))
        except OAuthError as error:
            return PlainTextResponse(f"Invalid authorization request: {error.message}\n", 400)
        return HTMLResponse(page, headers=_PAGE_HEADERS)

    async def show_script(_: Request) -> Response:
        return Response(script, media_type="text/javascript")

    async def describe(request: Request) -> Response:
        grant = _signed_in(hub, request)
        body = await read_body(request, ConsentRequest, _MAX_BODY)
        asked = await server.parse_request(body.query, external_url(request.scope, ""))
        shown = Consent(asked.client.name, _host(asked.redirect_uri), allowed_scopes(asked, grant), grant.principal.id)
        return JsonResponse(shown)

    async def decide(request: Request) -> Response:
        grant = _signed_in(hub, request)
        body = await read_body(request, ConsentDecision, _MAX_BODY)
        issuer = external_url(request.scope, "")
        asked = await server.parse_request(body.query, issuer)
        redirect = await server.decide(asked, grant, issuer, allowed=body.decision == "allow")
        return JsonResponse(ConsentRedirect(redirect))

    def route(path: str, answer: Answer, operation: Operation) -> Route:
        return ApiRoute(path, with_error_responses(_with_api_errors(answer), hub.atlas.hide), operation, ["POST"])

    shown = Operation("Describe an authorization request.", "page", ("read",), body=ConsentRequest, result=Consent)
    decided = Operation(
        "Allow or deny an authorization request.", "page", ("read",), body=ConsentDecision, result=ConsentRedirect
    )
    return [
        ApiRoute("/authorize", show_page, Operation("Ask the user for consent.", "OAuth", result="text/html")),
        Route("/consent.js", show_script, include_in_schema=False),
        route("/api/consent/request", describe, shown),
        route("/api/consent", decide, decided),
    ]


def _signed_in(hub: Hub, request: Request) -> Grant:
    """Return the grant of a signed-in browser. A bearer token does not count: a person must have opened the page."""
    require_own_page(hub, request)
    grant = get_grant(request)
    if grant is None or not request.scope["state"]["device"]:
        raise HTTPError(401, "sign_in_required", "sign in first")
    if grant.client or not grant.allows("read"):
        raise HTTPError(403, "insufficient_scope", "this token cannot give access to others: sign in with another one")
    return grant


def _describe_server(issuer: str) -> dict[str, Any]:
    return {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        "registration_endpoint": f"{issuer}/register",
        "scopes_supported": OAUTH_SCOPES,
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": _GRANT_TYPES,
        "token_endpoint_auth_methods_supported": ["none"],
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": True,
    }


def _with_oauth_errors(answer: Answer) -> Answer:
    async def respond(request: Request) -> Response:
        try:
            return await answer(request)
        except OAuthError as error:
            body = {"error": error.code, "error_description": error.message}
            return JsonResponse(body, error.status, error.headers)
        except ConfigError as error:
            logger.warning("OAuth request failed: %s", error)
            return JsonResponse({"error": "server_error", "error_description": "the token file is unusable"}, 503)

    return respond


def _with_api_errors(answer: Answer) -> Answer:
    async def respond(request: Request) -> Response:
        try:
            return await answer(request)
        except OAuthError as error:
            status = 429 if error.status == 429 else 400
            raise HTTPError(status, error.code, error.message) from None

    return respond


def _address(request: Request) -> str:
    return request.client.host if request.client else ""
