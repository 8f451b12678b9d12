"""Administration methods: agents, models, tools, MCP servers, audit, usage, settings, tokens, users and plans."""

import asyncio
import logging
import math
import platform
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.runner import tool_call_result
from atlas_agents.core.aio import SYSTEM_CLOCK, run_in_thread, utc_day
from atlas_agents.core.errors import ConfigError, NotFound
from atlas_agents.core.json import encode
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import UsageKey, UsageRow
from atlas_agents.core.telemetry import read_trace_context
from atlas_agents.core.tenancy import Plan, User, check_not_owner, check_plan_name
from atlas_agents.core.text import list_known, one_line
from atlas_agents.evaluation.report import (
    SUFFIX,
    ColumnSummary,
    ScoreComparison,
    explain,
    list_evaluations,
    make_report,
)
from atlas_agents.evaluation.runner import Evaluation, Result, ResultFile
from atlas_agents.gateway.auth import ALL, OAUTH_SECONDS, Invitation, TokenEntry
from atlas_agents.gateway.connection import ClientConnection
from atlas_agents.gateway.convert import list_model_users
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.edits import EditTarget, describe_change, version_of
from atlas_agents.gateway.hub import Hub, ModelSetupPort, OperationsPort
from atlas_agents.gateway.methods.agents import require_agent, set_agent_model
from atlas_agents.gateway.monitor import budget_shape
from atlas_agents.gateway.protocol import admin as wire
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.gateway.protocol.types import Ack, EditStamp, ModelShape, NoParams, RemovalResult, Scope, ToolShape
from atlas_agents.gateway.telemetry import MAX_MESSAGE, escape
from atlas_agents.providers.catalogue import parse_model_ref
from atlas_agents.tools.tool import Tool

_USAGE_KEYS: dict[str, UsageKey] = {"agent": "agent_id", "model": "model", "session": "session", "day": "day"}
_DAY_SECONDS = 86_400
_INVITED_SCOPES: tuple[Scope, ...] = ("read", "write")
_INVITED_DAYS = 7
_MAX_EVALUATIONS = 100
_MAX_ROWS = 500
_MAX_TEXT = 400
"""Maximum length of each text of an evaluation result."""


def add_methods(methods: Methods) -> None:
    methods.add("models.list", list_models)
    methods.add("audit.list", list_audit)
    methods.add("audit.subscribe", subscribe_audit)
    methods.add("audit.verify", verify_audit)
    methods.add("usage.summary", sum_usage)
    methods.add("usage.tools", count_tool_calls)
    methods.add("limits.get", get_limits)
    methods.add("health.check", check_health)
    methods.add("system.info", get_system_info)
    methods.add("config.get", get_config)
    methods.add("tokens.list", list_tokens)
    methods.add("tokens.create", create_token)
    methods.add("tokens.revoke", revoke_token)
    methods.add("tokens.rotate", rotate_token)
    methods.add("devices.list", list_devices)
    methods.add("devices.revoke", revoke_device)
    methods.add("users.list", list_users)
    methods.add("users.put", put_user)
    methods.add("users.remove", remove_user)
    methods.add("users.invite", invite_user)
    methods.add("plans.list", list_plans)
    methods.add("plans.put", put_plan)
    methods.add("tenants.get", get_tenant)
    methods.add("tenants.update", update_tenant)
    methods.add("tenants.list", list_tenants)
    add_tool_methods(methods)
    add_setup_methods(methods)
    add_operations_methods(methods)
    methods.add("evaluations.list", list_evaluation_runs)
    methods.add("evaluations.get", get_evaluation)


def add_operations_methods(methods: Methods) -> None:
    methods.add("ops.status", get_operations)
    methods.add("ops.backup", back_up)
    methods.add("ops.doctor", run_checks)
    methods.add("ops.logs", list_log)


def add_tool_methods(methods: Methods) -> None:
    methods.add("tools.invoke", invoke_tool)
    methods.add("tools.list", list_tools)
    methods.add("tools.matrix", get_permission_matrix)


def add_setup_methods(methods: Methods) -> None:
    methods.add("setup.status", get_setup_status)
    methods.add("providers.list", list_providers)
    methods.add("providers.test", check_provider)
    methods.add("secrets.put", put_secret)
    methods.add("secrets.remove", remove_secret)
    methods.add("models.select", select_model)
    methods.add("models.offer", offer_models)
    methods.add("models.download", download_model)
    methods.add("models.pause", pause_download)


async def list_models(caller: ClientConnection, _: NoParams) -> wire.ModelsResult:
    """List every model that the caller can choose, with the agents that use it."""
    hub = caller.hub
    users = {**dict.fromkeys(hub.offered_models, ()), **list_model_users(hub.atlas.agents, hub.atlas.registry)}
    shapes = [
        ModelShape(name, name.partition("/")[0], _is_available(hub, name), tuple(agents))
        for name, agents in users.items()
    ]
    return wire.ModelsResult(tuple(shapes))


def _setup(caller: ClientConnection) -> ModelSetupPort:
    setup = caller.hub.services.setup
    if setup is None:
        raise ProtocolError("UNAVAILABLE", "this gateway was started without a set-up of models")
    return setup


async def get_setup_status(caller: ClientConnection, _: NoParams) -> wire.SetupStatus:
    return await _setup(caller).status()


async def list_providers(caller: ClientConnection, _: NoParams) -> wire.ProvidersResult:
    return await _setup(caller).providers()


async def check_provider(caller: ClientConnection, params: wire.ProvidersTest) -> wire.ProviderTested:
    return await _setup(caller).test(params)


async def put_secret(caller: ClientConnection, params: wire.SecretsPut) -> wire.ProviderResult:
    return await _setup(caller).put_key(params, caller.grant.principal.id, caller.hub.edits)


async def remove_secret(caller: ClientConnection, params: wire.SecretsRemove) -> wire.ProviderResult:
    return await _setup(caller).remove_key(params, caller.grant.principal.id, caller.hub.edits)


async def select_model(caller: ClientConnection, params: wire.ModelsSelect) -> wire.ModelSelected:
    setup = _setup(caller)
    if params.agent_id is None:
        return await setup.select(params, caller.grant.principal.id, caller.hub.edits)
    ref = setup.usable_ref(params.model)
    effort = await set_agent_model(caller, params.agent_id, ref, params.effort)
    return wire.ModelSelected(ref, ref, effort, (params.agent_id,))


async def offer_models(caller: ClientConnection, params: wire.ModelsOffer) -> wire.ModelsOffered:
    return await _setup(caller).offer(params, caller.grant.principal.id, caller.hub.edits)


async def download_model(caller: ClientConnection, params: wire.ModelsDownload) -> wire.LocalModelResult:
    return await _setup(caller).download(params, caller.grant.principal.id, caller.hub.edits)


async def pause_download(caller: ClientConnection, params: wire.OneLocalModel) -> wire.LocalModelResult:
    return await _setup(caller).pause(params)


async def list_tools(caller: ClientConnection, params: wire.ToolsList) -> wire.ToolsResult:
    """List the tools of one agent, of all agents, or all that an agent could have."""
    hub = caller.hub
    if params.all and hub.services.agent_editor is not None:
        registry = hub.services.agent_editor.tools
        return wire.ToolsResult(tuple([_known_tool_shape(tool, registry.source(tool.name)) for tool in registry]))
    wanted = params.agent_id
    if wanted is None and params.session_key is not None:
        current = hub.atlas.get_agent()
        assigned = await hub.assignments.get(caller.grant.prefix + params.session_key)
        wanted = assigned.agent_id or (current.id if current else None)
    agents = [require_agent(hub, wanted)] if wanted else list(hub.atlas.agents)
    return wire.ToolsResult(tuple([shape for agent in agents for shape in _tool_shapes(caller, agent)]))


async def get_permission_matrix(caller: ClientConnection, _: NoParams) -> wire.Matrix:
    atlas, user = caller.hub.atlas, caller.grant.principal.id
    rows = [
        wire.MatrixRow(agent.id, agent.role, {tool.name: atlas.verdict(agent, tool, user).cell for tool in agent.tools})
        for agent in atlas.agents
    ]
    return wire.Matrix(tuple(sorted({name for row in rows for name in row.cells})), tuple(rows))


async def list_audit(caller: ClientConnection, params: wire.AuditList) -> wire.AuditPage:
    _require_all_sessions(caller)
    if params.since is not None and params.to is not None and params.since >= params.to:
        raise ProtocolError("INVALID_PARAMS", "invalid range: 'from' is not earlier than 'to'")
    return await caller.hub.audit.page(params)


async def subscribe_audit(caller: ClientConnection, _: NoParams) -> Ack:
    _require_all_sessions(caller)
    await caller.hub.audit.subscribe(caller)
    caller.on_close.add(lambda: caller.hub.audit.unsubscribe(caller))
    return Ack(True)


async def verify_audit(caller: ClientConnection, _: NoParams) -> wire.AuditVerified:
    _require_all_sessions(caller)
    return await caller.hub.audit.verify(caller)


async def count_tool_calls(caller: ClientConnection, params: wire.UsageTools) -> wire.ToolsUsed:
    _require_all_sessions(caller)
    since, until = _day_range(params.since, params.to)
    return await caller.hub.audit.count_calls(since, min(until, params.cursor or until), params.limit)


async def sum_usage(caller: ClientConnection, params: wire.UsageSummary) -> wire.UsageResult:
    """Sum tokens and cost of the caller's sessions, grouped by one key."""
    since, until = _day_range(params.since, params.to)
    hub, prefix, key = caller.hub, caller.grant.prefix, _USAGE_KEYS[params.group_by]
    limit = params.limit + 1 if key == "session" else None
    wanted = {"since": since, "until": until, "owner": prefix}
    if params.session_key is not None:
        wanted["session"] = prefix + params.session_key
    found = await hub.store.sum_usage(hub.atlas.tenant, key, by_day=params.by_day, limit=limit, **wanted)
    rows = [_usage_shape(getattr(row, key).removeprefix(prefix), row, params.by_day) for row in found]
    shown = rows if limit is None else rows[: params.limit]
    return wire.UsageResult(tuple(shown), complete=len(shown) == len(rows))


async def get_limits(caller: ClientConnection, _: NoParams) -> wire.LimitsResult:
    return await read_limits(caller.hub, caller.grant.principal.id)


async def read_limits(hub: Hub, user: str) -> wire.LimitsResult:
    limits, day = hub.atlas.limits, utc_day(SYSTEM_CLOCK.time())
    usage_by_agent = {
        agent.id: await hub.store.call_count(hub.atlas.tenant, agent.id, day) for agent in hub.atlas.agents
    }
    budgets = tuple([budget_shape(each) for each in await hub.atlas.budget_status(user=user)])
    return wire.LimitsResult(
        limits.per_tick, limits.tick, limits.per_day, limits.at_once, limits.repeats, usage_by_agent, budgets
    )


def _tool_shapes(caller: ClientConnection, agent: Agent) -> list[ToolShape]:
    shapes: list[ToolShape] = []
    for tool in agent.tools:
        cell = caller.hub.atlas.verdict(agent, tool, caller.grant.principal.id).cell
        source = "mcp" if "/" in tool.name else "custom"
        asks = cell == "ask" or bool(tool.confirm)
        shapes.append(
            ToolShape(
                tool.name,
                tool.description,
                tool.parameters,
                source,
                asks,
                cell != "no",
                agent.id,
                tool.effect == "pure",
            )
        )
    return shapes


def _known_tool_shape(tool: Tool, source: str) -> ToolShape:
    asks, pure = bool(tool.confirm), tool.effect == "pure"
    return ToolShape(tool.name, tool.description, tool.parameters, source, asks, True, pure=pure)


def _is_available(hub: Hub, name: str) -> bool:
    """Return whether a provider can be used: it was passed as an object, or its API key is configured."""
    refs = {model for agent in hub.atlas.agents for model in agent.models if isinstance(model, str)}
    if name not in refs and name not in (hub.atlas.registry.default_model, *hub.offered_models):
        return True
    try:
        hub.atlas.registry.provider(parse_model_ref(name).provider)
    except ConfigError:
        return False
    return True


def _require_all_sessions(caller: ClientConnection, what: str = "the audit log") -> None:
    """Require access to all sessions, because the requested data covers all of them."""
    if caller.grant.prefix:
        verb = "require" if what == "the plans" else "requires"
        raise ProtocolError("FORBIDDEN", f"{what} {verb} a token with access to all sessions")


def _day_range(since: str | None, to: str | None) -> tuple[str, str]:
    """Return the bounds of a range of days: the first day, and a text that sorts after the last day `to`."""
    for day in (since, to):
        try:
            date.fromisoformat(day or "0001-01-01")
        except ValueError:
            raise ProtocolError("INVALID_PARAMS", f"invalid day {day!r}: expected a date such as 2026-11-30") from None
    return since or "", f"{to or '9999-12-31'}~"  # later than this day, and earlier than the next one


def _usage_shape(name: str, row: UsageRow, by_day: bool) -> wire.UsageSum:
    return wire.UsageSum(
        name,
        row.turns,
        row.input_tokens,
        row.output_tokens,
        row.cached_tokens,
        row.cost_microcents,
        row.day if by_day else "",
        row.cache_write_tokens,
        row.reasoning_tokens,
        row.saved_microcents,
    )


async def check_health(caller: ClientConnection, _: NoParams) -> wire.Health:
    return wire.Health("ok", caller.hub.uptime)


async def get_system_info(caller: ClientConnection, _: NoParams) -> wire.SystemInfo:
    hub = caller.hub
    principal = caller.grant.principal
    limits = await read_limits(hub, principal.id)
    return wire.SystemInfo(hub.server, principal, hub.features, hub.policy, limits, hub.uptime)


async def get_config(caller: ClientConnection, _: NoParams) -> wire.ConfigResult:
    """Return the effective settings, without secrets, and the names of the tokens."""
    hub = caller.hub
    return wire.ConfigResult(
        {**hub.settings.to_public_dict(), **hub.services.settings, "principals": list(hub.tokens.principals)}
    )


def _operations(caller: ClientConnection) -> OperationsPort:
    operations = caller.hub.services.operations
    if operations is None:
        raise ProtocolError(
            "UNAVAILABLE", "not available: this gateway is embedded in a program, which manages its own data"
        )
    return operations


async def get_operations(caller: ClientConnection, _: NoParams) -> wire.OpsStatus:
    """Return live figures, with the budgets of all users."""
    _require_all_sessions(caller, "the status of the gateway")
    hub, storage = caller.hub, await _operations(caller).storage()
    own = (hub.server.version, platform.python_version(), hub.uptime, len(hub.connections))
    return wire.OpsStatus(*own, storage, await hub.monitor.live())


async def back_up(caller: ClientConnection, _: NoParams) -> wire.BackupMade:
    operations, made = _operations(caller), list[wire.BackupShape]()
    target = operations.new_backup()

    async def write() -> str | None:
        made.append(await operations.back_up(target))
        return version_of(made[0])

    await caller.hub.edits.apply(
        EditTarget("backup", target.name, None), caller.grant.principal.id, write, scope="admin"
    )
    return wire.BackupMade(made[0])


async def run_checks(caller: ClientConnection, _: NoParams) -> wire.ChecksResult:
    return wire.ChecksResult(await _operations(caller).check())


async def list_log(caller: ClientConnection, params: wire.OpsLogs) -> wire.LogLines:
    """Return lines of this process; other members of a cluster have their own."""
    _require_all_sessions(caller, "the log")
    hub = caller.hub
    found = hub.log.latest(params.limit, logging.getLevelNamesMapping()[params.level.upper()])
    return wire.LogLines(
        tuple(
            wire.LogLine(
                int(line.time * 1000),
                logging.getLevelName(line.level).lower(),
                line.source,
                escape(hub.atlas.hide(line.text)[:MAX_MESSAGE]),
            )
            for line in found
        )
    )


async def list_tokens(caller: ClientConnection, _: NoParams) -> wire.TokensResult:
    main = wire.TokenShape("owner", "owner", ALL, "all", "owner", main=True)
    entries = await run_in_thread(caller.hub.tokens.entries)
    return wire.TokensResult((main, *[_token_shape(name, entry) for name, entry in entries.items()]))


async def create_token(caller: ClientConnection, params: wire.TokensCreate) -> wire.TokenCreated:
    """Create a token, with at most the rights of the caller's own."""
    hub, grant = caller.hub, caller.grant
    entry = _granted_entry(caller, params.scopes, params.sessions, params.role, params.user)
    shape, created = _token_shape(params.name, entry), list[Secret]()
    diff = describe_change(None, _describe_rights(shape), f"token {params.name}")
    if params.dry_run:
        await run_in_thread(hub.tokens.check_new, params.name, entry)
        return wire.TokenCreated(shape, "", diff)

    async def write() -> str | None:
        created.append(await run_in_thread(hub.tokens.create, params.name, entry))
        return version_of(entry)

    await hub.edits.apply(EditTarget("token", params.name, None), grant.principal.id, write, diff=diff, scope="admin")
    hub.atlas.keep_secret(*created)
    return wire.TokenCreated(shape, created[0].reveal(), diff)


def _granted_entry(
    caller: ClientConnection, wanted: Sequence[Scope], sessions: Literal["own", "all"], role: str, user: str = ""
) -> TokenEntry:
    """Return the properties of a new token; FORBIDDEN if it would have more rights than the caller's."""
    missing = [scope for scope in wanted if not caller.grant.allows(scope)]
    if missing or (sessions == "all" and caller.grant.prefix):
        what = f"the scope {missing[0]!r}" if missing else "access to all sessions"
        raise ProtocolError("FORBIDDEN", f"your token lacks {what} and cannot grant it to another token")
    scopes: tuple[Scope, ...] = tuple([scope for scope in ALL if scope in wanted])
    return TokenEntry(scopes, sessions=sessions, role=role, user=user)


def _describe_rights(token: wire.TokenShape) -> dict[str, str]:
    return {"scopes": ", ".join(token.scopes), "sessions": token.sessions, "user": token.user}


async def revoke_token(caller: ClientConnection, params: wire.TokensRevoke) -> RemovalResult:
    hub = caller.hub
    entry = (await run_in_thread(hub.tokens.entries)).get(params.name)
    rights = _describe_rights(_token_shape(params.name, entry)) if entry is not None else None
    diff = describe_change(rights, None, f"token {params.name}")
    if params.dry_run:
        if entry is None:
            raise ProtocolError("INVALID_PARAMS", f"token not found: {params.name!r}")
        return RemovalResult(True, diff, ("Anything using it stops working now.",))

    await _remove_token(hub, params.name, caller.grant.principal.id, diff)
    return RemovalResult(True, diff)


async def _remove_token(hub: Hub, name: str, by: str, diff: str) -> None:
    async def write() -> str | None:
        await run_in_thread(hub.tokens.remove, name)
        return None

    await hub.edits.apply(EditTarget("token", name, "valid"), by, write, diff=diff, scope="admin")
    asyncio.get_running_loop().call_soon(hub.close_unauthorized)  # after the response is sent


def _token_shape(name: str, entry: TokenEntry) -> wire.TokenShape:
    return wire.TokenShape(name, entry.user or name, entry.scopes, entry.sessions, entry.role)


async def rotate_token(caller: ClientConnection, _: NoParams) -> wire.TokenMade:
    hub = caller.hub

    async def write() -> str | None:
        await run_in_thread(hub.tokens.rotate)
        return "valid"

    await hub.edits.apply(EditTarget("token", "owner", "valid"), caller.grant.principal.id, write, scope="admin")
    asyncio.get_running_loop().call_soon(hub.close_unauthorized)  # after the response is sent
    return wire.TokenMade(str(hub.tokens.path))


async def list_devices(caller: ClientConnection, _: NoParams) -> wire.DevicesResult:
    user = caller.grant.principal.id
    devices = [
        wire.DeviceShape(each.id, each.name, each.created_at, each.seen_at, each.expires_at, each.id == caller.device)
        for each in await caller.hub.devices.list(user)
    ]
    for name, entry in (await _apps_of(caller.hub, user)).items():
        renewed_at = entry.expires_at - OAUTH_SECONDS * 1000
        devices.append(wire.DeviceShape(name, f"{entry.client} (app)", renewed_at, renewed_at, entry.expires_at, False))
    return wire.DevicesResult(tuple(sorted(devices, key=lambda each: -each.seen_at)))


async def _apps_of(hub: Hub, user: str) -> dict[str, TokenEntry]:
    """Return the tokens of the OAuth clients that a user allowed, by name."""
    entries = await run_in_thread(hub.tokens.entries)
    return {name: entry for name, entry in entries.items() if entry.client and entry.user == user}


async def revoke_device(caller: ClientConnection, params: wire.OneDevice) -> Ack:
    hub, user = caller.hub, caller.grant.principal.id
    if params.id in await _apps_of(hub, user):
        await _remove_token(hub, params.id, user, "signed out by the user")
        return Ack(True)
    device = next((each for each in await hub.devices.list(user) if each.id == params.id), None)
    if device is None:
        raise ProtocolError("INVALID_PARAMS", f"unknown device {params.id!r}")

    async def remove() -> None:
        await hub.devices.remove(device)

    await hub.edits.apply(EditTarget("device", device.id, str(device.created_at)), user, remove, diff=device.name)
    asyncio.get_running_loop().call_soon(hub.close_device, device.id)  # after the response is sent
    return Ack(True)


async def list_users(caller: ClientConnection, _: NoParams) -> wire.UsersResult:
    """List users; guests see only themselves."""
    hub, grant = caller.hub, caller.grant
    seen: dict[str, int] = {}
    for _agent, user, at in await hub.store.last_turns(hub.atlas.tenant):
        seen[user] = max(at, seen.get(user, 0))
    users = await hub.atlas.tenancy.users()
    if grant.prefix:
        users = [each for each in users if each.name == grant.principal.id]
    invited = await run_in_thread(hub.authenticator.invitations.open) if grant.allows("admin") else {}
    stamps = await hub.edits.stamps("user", {each.name: _user_version(each) for each in users})
    shapes: list[wire.UserShape] = []
    for each in users:
        shape = replace(_stamped_shape(each, stamps[each.name]), last_active=seen.get(each.name))
        if (invitation := invited.get(each.name)) is not None:
            shape = replace(shape, invited_until=invitation.expires_at, invited_scopes=invitation.scopes)
        shapes.append(shape)
    return wire.UsersResult(tuple(shapes))


async def put_user(caller: ClientConnection, params: wire.UsersPut) -> wire.UserResult:
    hub = caller.hub
    async with hub.edits.exclusive():
        before = await _find_user(hub, params.name)
        target = EditTarget("user", params.name, _user_version(before), before and msgspec.to_builtins(before))
        await hub.edits.check(target, params.expected_version)
        wanted = User(params.name, params.role, params.status, before.created_at if before is not None else 0)
        diff = _user_diff(before, wanted)
        tokens = await _tokens_of(hub, params.name) if params.status == "suspended" else []
        warnings = (f"tokens that stop working: {', '.join(tokens)}",) if tokens else ()
        if params.dry_run:
            await hub.atlas.tenancy.check_seat(params.name)
            return wire.UserResult(await _user_shape(hub, wanted), diff, warnings)

        async def write() -> str | None:
            saved = await hub.atlas.tenancy.put_user(wanted)
            await apply_suspensions(hub)
            return _user_version(saved)

        await hub.edits.apply(target, caller.grant.principal.id, write, diff=diff, scope="admin")
        return wire.UserResult(await _user_shape(hub, wanted), diff, warnings)


async def _find_user(hub: Hub, name: str) -> User | None:
    return next((each for each in await hub.atlas.tenancy.users() if each.name == name), None)


def _user_diff(before: User | None, after: User | None) -> str:
    old, new = (each and {"role": each.role, "status": each.status} for each in (before, after))
    name = (before or after or User("")).name
    return describe_change(old, new, f"user {name}")


async def _tokens_of(hub: Hub, user: str) -> list[str]:
    """Return the names of the tokens of a user."""
    entries = await run_in_thread(hub.tokens.entries)
    return [name for name, entry in entries.items() if (entry.user or name) == user]


async def remove_user(caller: ClientConnection, params: wire.UsersRemove) -> RemovalResult:
    hub = caller.hub
    check_not_owner(params.name)
    before = await _find_user(hub, params.name)
    if before is None:
        known = list_known("users", [each.name for each in await hub.atlas.tenancy.users()])
        raise ProtocolError("INVALID_PARAMS", f"not found: user {params.name!r}; {known}")
    diff, tokens = _user_diff(before, None), await _tokens_of(hub, params.name)
    suspended = before.status == "suspended"  # their tokens must not work again
    effect = "tokens that are revoked" if suspended else "tokens that keep working until you revoke them"
    warnings = (f"{effect}: {', '.join(tokens)}",) if tokens else ()
    diff = "\n".join([diff, *(f"-token {token}" for token in tokens if suspended)])
    if params.dry_run:
        return RemovalResult(True, diff, warnings)

    async def write() -> str | None:
        await run_in_thread(hub.authenticator.invitations.take, params.name)
        for token in tokens if suspended else ():
            await run_in_thread(hub.tokens.remove, token)
        try:
            await hub.atlas.tenancy.remove_user(params.name)
        except NotFound:
            raise ProtocolError("INVALID_PARAMS", f"not found: user {params.name!r}") from None
        await apply_suspensions(hub)
        return None

    target = EditTarget("user", params.name, "present")
    await hub.edits.apply(target, caller.grant.principal.id, write, diff=diff, scope="admin")
    return RemovalResult(True, diff, warnings)


async def invite_user(caller: ClientConnection, params: wire.UsersInvite) -> wire.UserInvited:
    """Add a user who gets a token by accepting the invitation.

    Inviting again makes the earlier code invalid. What is not given stays as it was: the role, the rights, and the days
    for which the invitation is still valid.
    """
    hub, invitations = caller.hub, caller.hub.authenticator.invitations
    async with hub.edits.exclusive():
        before = await _find_user(hub, params.name)
        if before is not None and before.status != "invited":
            raise ProtocolError("INVALID_PARAMS", f"{params.name} is a user already; create a token for them instead")
        role = params.role or (before.role if before is not None else "member")
        wanted = User(params.name, role, "invited", before.created_at if before is not None else 0)
        earlier = (await run_in_thread(invitations.open)).get(params.name)
        scopes = params.scopes or (earlier.scopes if earlier is not None else _INVITED_SCOPES)
        sessions = params.sessions or (earlier.sessions if earlier is not None else "own")
        days = params.days or _remaining_days(earlier) or _INVITED_DAYS
        entry = _granted_entry(caller, scopes, sessions, role)
        warnings = ("the earlier invitation becomes invalid",) if earlier is not None else ()
        rights = {"role": role, "scopes": ", ".join(entry.scopes), "sessions": sessions}
        diff = describe_change(None, {**rights, "valid for days": days}, f"invitation {params.name}")
        shape = await _user_shape(hub, wanted)
        if params.dry_run:
            await hub.atlas.tenancy.check_seat(params.name)
            return wire.UserInvited(shape, diff=diff, warnings=warnings)
        made: list[tuple[Secret, Invitation]] = []

        async def write() -> str | None:
            saved = await hub.atlas.tenancy.put_user(wanted)
            made.append(await run_in_thread(invitations.create, params.name, entry, days * _DAY_SECONDS))
            return _user_version(saved)

        target = EditTarget("user", params.name, _user_version(before))
        await hub.edits.apply(target, caller.grant.principal.id, write, diff=diff, scope="admin")
    code, invitation = made[0]
    hub.atlas.keep_secret(code)
    shown = replace(shape, version=_user_version(wanted), invited_until=invitation.expires_at)
    return wire.UserInvited(shown, code.reveal(), f"/#invite={code.reveal()}", diff, warnings)


def _remaining_days(invitation: Invitation | None) -> int:
    """Return for how many days an invitation is still valid, rounded up."""
    return math.ceil((invitation.expires_at / 1000 - SYSTEM_CLOCK.time()) / _DAY_SECONDS) if invitation else 0


async def accept_invitation(hub: Hub, name: str) -> Secret | None:
    """Make the token of an invited user and activate them; None if the invitation is no longer valid."""
    made: list[Secret] = []
    async with hub.edits.exclusive():
        user = await _find_user(hub, name)
        invitation = await run_in_thread(hub.authenticator.invitations.take, name)
        if user is None or user.status != "invited" or invitation is None:
            return None
        taken = await run_in_thread(hub.tokens.entries)
        token = next(each for each in (name, *(f"{name}-{number}" for number in range(2, 1000))) if each not in taken)
        rights = (invitation.scopes, "", "", invitation.sessions, invitation.role, name if token != name else "")
        active = replace(user, status="active")

        async def write() -> str | None:
            made.append(await run_in_thread(hub.tokens.create, token, TokenEntry(*rights)))
            return _user_version(await hub.atlas.tenancy.put_user(active))

        diff = f"{_user_diff(user, active)}\ntoken {token}"
        await hub.edits.apply(EditTarget("user", name, _user_version(user)), name, write, diff=diff, scope="admin")
    hub.atlas.keep_secret(*made)
    return made[0]


def _user_version(user: User | None) -> str | None:
    return version_of([user.role, user.status]) if user is not None else None


async def _user_shape(hub: Hub, user: User) -> wire.UserShape:
    return _stamped_shape(user, await hub.edits.stamp("user", user.name, _user_version(user)))


def _stamped_shape(user: User, stamp: EditStamp) -> wire.UserShape:
    shape = wire.UserShape(user.name, user.role, user.status, version=stamp.version)
    return replace(shape, changed_by=stamp.changed_by, changed_at=stamp.changed_at)


async def list_plans(caller: ClientConnection, _: NoParams) -> wire.PlansResult:
    _require_all_sessions(caller, "the plans")
    plans = await caller.hub.atlas.tenancy.plans()
    return wire.PlansResult(tuple([replace(_plan_shape(each), version=version_of(each)) for each in plans]))


async def put_plan(caller: ClientConnection, params: wire.PlansPut) -> wire.PlanResult:
    hub, plan = caller.hub, Plan(params.name, params.tokens, params.agents, params.storage, params.seats)
    async with hub.edits.exclusive():
        before = next((each for each in await hub.atlas.tenancy.plans() if each.name == params.name), None)
        target = EditTarget("plan", params.name, version_of(before), before and msgspec.to_builtins(before))
        await hub.edits.check(target, params.expected_version)
        diff = describe_change(before, plan, f"plan {params.name}")
        in_use = (await hub.atlas.tenancy.about()).plan == params.name
        warnings = await _exceeded_limits(hub, plan) if in_use else ()
        if params.dry_run:
            check_plan_name(plan.name)
            return wire.PlanResult(_plan_shape(plan), diff, warnings)

        async def write() -> str | None:
            return version_of(await hub.atlas.tenancy.put_plan(plan))

        await hub.edits.apply(target, caller.grant.principal.id, write, diff=diff, scope="admin")
    return wire.PlanResult(replace(_plan_shape(plan), version=version_of(plan)), diff, warnings)


async def _exceeded_limits(hub: Hub, plan: Plan) -> tuple[str, ...]:
    """Describe the limits of a plan that the current usage exceeds, one sentence each."""
    used = await hub.atlas.tenancy.used()
    counts = {"tokens": used.tokens, "agents": len(hub.atlas.agents), "storage": used.storage, "seats": used.seats}
    limits = {name: getattr(plan, name) for name in counts}
    return tuple(
        [
            f"{name}: {counts[name]:,} are used, the limit is {limit:,}"
            for name, limit in limits.items()
            if limit is not None and counts[name] > limit
        ]
    )


async def get_tenant(caller: ClientConnection, _: NoParams) -> wire.TenantResult:
    _require_all_sessions(caller, "the usage of all users")
    atlas = caller.hub.atlas
    plan, used = await atlas.tenancy.plan(), await atlas.tenancy.used()
    return wire.TenantResult(
        atlas.tenant,
        _plan_shape(plan),
        used.tokens,
        used.storage,
        len(atlas.agents),
        used.seats,
    )


async def update_tenant(caller: ClientConnection, params: wire.TenantsUpdate) -> wire.TenantResult:
    hub, tenancy = caller.hub, caller.hub.atlas.tenancy
    about, plans = await tenancy.about(), {plan.name: plan for plan in await tenancy.plans()}
    before = about.plan
    warnings = await _exceeded_limits(hub, plans[params.plan]) if params.plan in plans else ()
    diff = describe_change({"plan": before}, {"plan": params.plan}, f"tenant {hub.atlas.tenant}")
    if params.dry_run:
        if params.plan not in plans:
            raise ConfigError(f"unknown plan {params.plan!r}; known plans: {', '.join(plans)}")
        return replace(await get_tenant(caller, NoParams()), diff=diff, warnings=warnings)

    async def write() -> str | None:
        await tenancy.use_plan(params.plan)
        return version_of(params.plan)

    target = EditTarget("tenant", hub.atlas.tenant, version_of(before))
    await hub.edits.apply(target, caller.grant.principal.id, write, diff=diff, scope="admin")
    return replace(await get_tenant(caller, NoParams()), diff=diff, warnings=warnings)


async def list_tenants(caller: ClientConnection, _: NoParams) -> wire.TenantsResult:
    return wire.TenantsResult(tuple(await caller.hub.store.tenants()))


async def apply_suspensions(hub: Hub) -> None:
    """Refuse the tokens of suspended users and close their connections."""
    users = await hub.atlas.tenancy.users()
    hub.authenticator.suspended = frozenset(each.name for each in users if each.status == "suspended")
    hub.close_unauthorized()


def _plan_shape(plan: Plan) -> wire.PlanShape:
    return wire.PlanShape(plan.name, plan.tokens, plan.agents, plan.storage, plan.seats)


async def invoke_tool(caller: ClientConnection, params: wire.ToolsInvoke) -> wire.Called:
    """Call a tool with the agent's permissions and wait for its result, including any approval."""
    hub = caller.hub
    agent = hub.agent(params.agent_id) if params.agent_id else hub.atlas.get_agent()
    if agent is None:
        raise hub.unknown_agent(params.agent_id or "")
    key = params.idempotency_key or ""
    trace = read_trace_context(params.traceparent, params.tracestate)
    stream = await hub.call_tool(
        caller.grant, agent, params.name, params.arguments, idempotency_key=key, trace_context=trace
    )
    result = tool_call_result(await stream.reply())
    return wire.Called(stream.stream_id, result.status, result.result, result.error)


# Evaluations


async def list_evaluation_runs(caller: ClientConnection, _: NoParams) -> wire.EvaluationsResult:
    _require_all_sessions(caller, "the list of evaluations")
    found = await run_in_thread(list_evaluations, _evaluations_folder(caller), _MAX_EVALUATIONS)
    return wire.EvaluationsResult(tuple([_evaluation_shape(each) for each in found]))


async def get_evaluation(caller: ClientConnection, params: wire.OneEvaluation) -> wire.EvaluationDetails:
    """Return an evaluation with the results of its cases, and compare it with an earlier one if one is named."""
    _require_all_sessions(caller, "an evaluation")
    folder = _evaluations_folder(caller)
    found = await run_in_thread(_read_evaluation, folder, params.id)
    earlier = await run_in_thread(_read_evaluation, folder, params.compare) if params.compare else None
    report = await run_in_thread(make_report, found, earlier)
    before = {
        (each.agent, each.model, change.case): change.before for each in report.comparisons for change in each.changes
    }
    return wire.EvaluationDetails(
        _evaluation_shape(found),
        tuple([_evaluation_column(each) for each in report.columns]),
        tuple([_evaluation_row(each, before) for each in found.results[:_MAX_ROWS]]),
        tuple([_evaluation_comparison(each) for each in report.comparisons]),
    )


def _evaluations_folder(caller: ClientConnection) -> Path:
    return caller.hub.settings.home / "evaluations"


def _read_evaluation(folder: Path, id: str) -> Evaluation:
    path = folder / f"{id}{SUFFIX}"
    if not re.fullmatch(r"[\w-]{1,100}", id) or not path.is_file():
        raise ConfigError(f"evaluation not found: {id!r}")
    return ResultFile.read(path).evaluation


def _evaluation_shape(found: Evaluation) -> wire.EvaluationShape:
    results = found.results
    return wire.EvaluationShape(
        found.id,
        found.name,
        found.file,
        found.started_at,
        found.agents,
        found.models,
        len(results),
        found.total,
        sum(result.status == "passed" for result in results),
        sum(result.score for result in results) / len(results) if results else 0.0,
    )


def _evaluation_column(column: ColumnSummary) -> wire.EvaluationColumn:
    return wire.EvaluationColumn(
        agent=column.agent,
        model=column.model,
        results=column.results,
        passed=column.passed,
        errors=column.errors,
        low=column.interval.low,
        high=column.interval.high,
        score=column.mean_score,
        tokens=column.tokens,
        dollars=column.dollars,
        seconds=column.median_seconds,
    )


def _evaluation_row(result: Result, before: Mapping[tuple[str, str, str], float]) -> wire.EvaluationRow:
    return wire.EvaluationRow(
        case=result.case,
        agent=result.agent,
        model=result.model,
        repeat=result.repeat,
        status=result.status,
        score=result.score,
        reason="" if result.status == "passed" else one_line(explain(result), _MAX_TEXT),
        answer=result.answer[:_MAX_TEXT],
        calls=tuple([one_line(f"{call.name}({encode(call.arguments).decode()})", _MAX_TEXT) for call in result.calls]),
        seconds=result.seconds,
        before=before.get((result.agent, result.model, result.case)),
    )


def _evaluation_comparison(found: ScoreComparison) -> wire.EvaluationComparison:
    return wire.EvaluationComparison(
        agent=found.agent,
        model=found.model,
        earlier_model=found.earlier_model,
        cases=found.cases,
        difference=found.difference,
        low=found.interval.low if found.interval else None,
        high=found.interval.high if found.interval else None,
    )
