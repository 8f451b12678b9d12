"""Methods `agents.*` and `policy.*`: list, edit and try the agents, and edit their permissions."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.aio import utc_day
from atlas_agents.core.errors import AtlasError
from atlas_agents.core.events import StreamChunk, StreamReset, ToolCalled
from atlas_agents.core.messages import Conversation, assistant, user
from atlas_agents.core.text import list_known
from atlas_agents.core.trust import read_versions
from atlas_agents.gateway.connection import ClientConnection
from atlas_agents.gateway.convert import agent_model
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.edits import AgentEditor, FileEdit, FileEdited, PolicyEditor, version_of
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol import admin as wire
from atlas_agents.gateway.protocol.events import AgentTrial, encode_event
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.gateway.protocol.types import AgentShape, EditParams, EditStamp, NoParams
from atlas_agents.tools.audit import AuditEntry
from atlas_agents.tools.journal import add_usage
from atlas_agents.tools.policy import EVERYONE, Actor, Cell, Policy, Verdict, edit_cells
from atlas_agents.tools.tool import Tool
from atlas_agents.workspace.build import build_agent
from atlas_agents.workspace.files import default_text
from atlas_agents.workspace.workspace import KEYS, AgentSpec, AgentsText, SectionLine

_TRIAL_SECONDS = 300.0
_TRIAL_SESSION = "agent-trials"
"""Session key under which the tokens of trials are counted. There is no such stored session."""
_POLICY = "permissions"
_DAY_SECONDS = 86_400
_MAX_SIMULATED, _MAX_SHOWN = 20_000, 200
_RANKS: dict[Cell, int] = {"yes": 0, "ask": 1, "no": 2}


def add_methods(methods: Methods) -> None:
    methods.add("agents.list", list_agents)
    methods.add("agents.get", get_agent)
    methods.add("agents.put", put_agent)
    methods.add("agents.remove", remove_agent)
    methods.add("agents.tryDraft", try_draft)
    methods.add("policy.get", get_policy)
    methods.add("policy.simulate", simulate_policy)
    methods.add("policy.put", put_policy)


async def list_agents(caller: ClientConnection, _: NoParams) -> wire.AgentsResult:
    return wire.AgentsResult(tuple([_agent_shape(agent, caller) for agent in caller.hub.atlas.agents]))


async def get_agent(caller: ClientConnection, params: wire.OneAgent) -> wire.AgentResult:
    hub, agent = caller.hub, require_agent(caller.hub, params.agent_id)
    shape, editor = _agent_shape(agent, caller), caller.hub.services.agent_editor
    if editor is None or not caller.grant.allows("admin"):
        return wire.AgentResult(shape)
    text = _read_agents(editor)
    stamp = await hub.edits.stamp("agent", agent.id, version_of(text.section(agent.id)))
    draft = _to_draft(text.spec(agent.id) or AgentSpec(agent.id, name=agent.name, description=agent.description))
    if text.content == default_text("AGENTS.md").encode() and editor.chosen_model:
        draft = msgspec.structs.replace(draft, model="")  # saving must not send text to a vendor that was not chosen
    return wire.AgentResult(
        shape, draft, version=stamp.version, changed_by=stamp.changed_by, changed_at=stamp.changed_at
    )


async def put_agent(caller: ClientConnection, params: wire.AgentsPut) -> wire.AgentEdited:
    """Write an agent to AGENTS.md. New turns use it at once."""
    id, hub = params.agent.id, caller.hub
    is_first = not _read_agents(_require_editor(hub)).specs
    effects: list[str] = []
    if is_first and all(agent.id != id for agent in hub.atlas.agents):
        tools = "" if params.agent.tools else ", and it has no tools"
        effects.append(f"it replaces the built-in assistant, also in existing chats{tools}")
    edited = await _edit(caller, id, params, lambda text: text.put(_to_spec(params.agent, text)))
    edited = msgspec.structs.replace(edited, warnings=(*effects, *edited.warnings))
    if params.dry_run:
        return _to_result(edited)
    agent = _agent_shape(require_agent(hub, id), caller)
    written = AgentsText(edited.content).spec(id)
    return _to_result(edited, agent, _to_draft(written) if written is not None else None)


async def set_agent_model(
    caller: ClientConnection, id: str, model: str, effort: wire.Effort | None
) -> wire.Effort | None:
    """Write the model and the effort of an agent to AGENTS.md, and return the effort that it has now.

    The fallbacks and an omitted effort stay as they are; an empty model removes all of them.
    """
    text = _read_agents(_require_editor(caller.hub))
    spec = text.spec(id)
    if spec is None:
        raise ProtocolError("AGENT_NOT_FOUND", f"unknown agent {id!r}: AGENTS.md does not define it")
    fallbacks = [each for each in spec.models[1:] if each != model]
    kept = (effort or spec.effort) if model else effort
    changed = msgspec.structs.replace(spec, models=(model, *fallbacks) if model else (), effort=kept)
    params = EditParams(expected_version=version_of(text.section(id)))
    await _edit(caller, id, params, lambda current: current.put(changed))
    return kept if isinstance(kept, str) else None


async def remove_agent(caller: ClientConnection, params: wire.AgentsRemove) -> wire.AgentEdited:
    """Remove an agent and the hand-offs to it from AGENTS.md, and pause its schedules."""
    id, schedules = params.agent_id, caller.hub.atlas.jobs.schedules
    text = _read_agents(_require_editor(caller.hub))
    if text.spec(id) is None and params.expected_version is None:
        raise ProtocolError("AGENT_NOT_FOUND", f"unknown agent {id!r}: AGENTS.md does not define it")
    current = caller.hub.atlas.get_agent()
    running = [each.name for each in await schedules.list() if each.agent_id == id and not each.paused]
    edited = await _edit(caller, id, params, lambda text: text.remove(id))
    for name in () if params.dry_run else running:
        await schedules.pause(name)
    effects = [f"the schedule {name!r} uses it and will be paused" for name in running]
    effects += [f"{each.name or each.id} no longer hands off to it" for each in text.specs if id in each.hands_off_to]
    others = [each for each in text.specs if each.id != id]
    if not others:
        effects.append("it is the only agent; the built-in assistant replaces it")
    elif current is not None and current.id == id:
        effects.append(f"{others[0].name or others[0].id} becomes the default agent")
    return msgspec.structs.replace(_to_result(edited), warnings=(*effects, *edited.warnings))


async def try_draft(caller: ClientConnection, params: wire.AgentsTryDraft) -> wire.DraftAnswer:
    """Send a message to a draft. It has only tools that change nothing and need no approval.

    Only its usage is stored.
    """
    hub, editor = caller.hub, _require_editor(caller.hub)
    text = _read_agents(editor)
    spec = _to_spec(params.draft, text)
    state, built = editor.preview(text.put(spec))
    full = next(agent for agent in built.agents if agent.id == spec.id)
    by = caller.grant.principal.id
    offered = [
        tool
        for tool in full.tools
        if tool.effect == "pure" and not tool.confirm and hub.atlas.verdict(full, tool, by).cell == "yes"
    ]
    names = tuple([tool.name for tool in offered])
    own = msgspec.structs.replace(spec, tools=names, hands_off_to=())
    agent = build_agent(own, offered, models=list(full.models), prompt=state.prompt)
    answer, called = await _ask(caller, editor, agent, params)
    withheld = tuple([tool.name for tool in full.tools if tool.name not in names])
    model = agent_model(agent, hub.atlas.registry)
    return wire.DraftAnswer(answer, model, tuple(called), withheld, built.notices.get(spec.id, ""))


async def get_policy(caller: ClientConnection, _: NoParams) -> wire.PolicyResult:
    editor = _require_policy_editor(caller.hub)
    content, found = editor.read(), read_versions(editor.path, None)[0]
    stamp = await caller.hub.edits.stamp("policy", _POLICY, version_of(content or None))
    result = _policy_result(caller.hub, content, stamp)
    if (found or b"") != content:
        notice = f"{editor.path.name} has changed, and the change is not used until you agree; run: atlas trust"
        return msgspec.structs.replace(result, notice=notice)
    return result


async def simulate_policy(caller: ClientConnection, params: wire.PolicySimulate) -> wire.PolicySimulated:
    """Decide the recorded calls of the last days again, with the changed permissions."""
    hub, editor = caller.hub, _require_policy_editor(caller.hub)
    content = editor.read()
    before = editor.effective(content)
    after = editor.effective(_change_cells(hub, content, params.changes))
    since = int((time.time() - params.days * _DAY_SECONDS) * 1000)
    counts: Counter[str] = Counter()
    calls: list[wire.SimulatedCall] = []
    async for seq, entry in hub.audit.calls_since(since, _MAX_SIMULATED):
        counts["checked"] += 1
        if (changed := _decide_again(entry, before, after)) is not None:
            counts[changed[1].cell] += 1
            if len(calls) < _MAX_SHOWN:
                old, new = changed
                shown = (entry.entity_id, entry.actor_external_id, old.cell, new.cell, new.rule)
                calls.append(wire.SimulatedCall(seq, entry.timestamp, *shown))
    return wire.PolicySimulated(
        counts["yes"],
        counts["ask"],
        counts["no"],
        counts["checked"],
        tuple(calls),
        _find_wider(hub, before, after, params.changes),
        _effective_cells(hub, after),
        complete=counts["checked"] < _MAX_SIMULATED,
    )


async def put_policy(caller: ClientConnection, params: wire.PolicyPut) -> wire.PolicyEdited:
    """Save changed permissions. They apply at once, also to calls that wait for approval."""
    hub, editor = caller.hub, _require_policy_editor(caller.hub)
    wider: list[wire.CellChange] = []

    def change(content: bytes) -> bytes:
        changed = _change_cells(hub, content, params.changes)
        wider.extend(_find_wider(hub, editor.effective(content), editor.effective(changed), params.changes))
        if wider and not params.allow_wider and not params.dry_run:
            names = ", ".join([f"{each.tool} for {each.subject}" for each in wider[:5]])
            raise ProtocolError("INVALID_PARAMS", f"this allows more than now ({names}); confirm it with allowWider")
        return changed

    def check(content: bytes) -> list[str]:
        editor.effective(content)
        return [f"{each.subject} may call {each.tool} with fewer checks than now" for each in wider]

    edit = FileEdit(
        kind="policy",
        id=_POLICY,
        path=editor.path,
        section=lambda content: content or None,
        change=change,
        check=check,
        value=lambda content: {"cells": editor.effective(content).tools},
        apply=editor.reload,
        trust=editor.trust,
        expected_version=params.expected_version,
        dry_run=params.dry_run,
    )
    edited = await hub.edits.edit_file(edit, caller.grant.principal.id)
    stamp = edited.stamp
    return wire.PolicyEdited(
        None if params.dry_run else _policy_result(hub, edited.content, stamp),
        tuple(wider),
        version=stamp.version,
        changed_by=stamp.changed_by,
        changed_at=stamp.changed_at,
        diff=edited.diff,
        warnings=edited.warnings,
    )


def _decide_again(entry: AuditEntry, before: Policy, after: Policy) -> tuple[Verdict, Verdict] | None:
    """Return the verdicts of two policies about a recorded call; None if they agree, or the call was not checked."""
    meta = entry.meta
    if meta.get("verdict") is None:
        return None
    actor = Actor(entry.actor_external_id, meta.get("role", ""), meta.get("user", ""), entry.tenant_id)
    needs, acts = meta.get("needs", ()), meta.get("acts", True)
    old, new = (policy.verdict(entry.entity_id, actor, needs=needs, acts=acts) for policy in (before, after))
    return (old, new) if old.cell != new.cell else None


def _change_cells(hub: Hub, content: bytes, changes: Sequence[wire.CellChange]) -> bytes:
    """Return the policy file with changed cells.

    The first cell of a tool without an entry must not deny everyone else, so it gets an entry for everyone, too.
    """
    editor = _require_policy_editor(hub)
    known, subjects = _policy_tools(hub, editor.effective(content)), {subject.id for subject in _subjects(hub)}
    for each in changes:
        if each.tool not in known:
            raise ProtocolError("INVALID_PARAMS", f"unknown tool {each.tool!r}; {list_known('tools', known)}")
        if each.subject not in subjects:
            raise ProtocolError("INVALID_PARAMS", f"unknown agent, role or group {each.subject!r}")
    for name in dict.fromkeys([each.tool for each in changes]):
        effective, own = editor.effective(content), Policy.load(editor.path, content).tools.get(name)
        entry = effective.entry(name)
        cells: dict[str, Cell] = dict(own or {})
        if own is None and entry != name:
            tool = known.get(name)
            is_open = tool is not None and (tool.effect == "pure" or bool(tool.permissions))
            cells = effective.tools[entry] if entry else {EVERYONE: "yes" if is_open else "no"}
        for each in changes:
            if each.tool == name and each.cell is None:
                cells.pop(each.subject, None)
            elif each.tool == name and each.cell is not None:
                cells[each.subject] = each.cell
        content = edit_cells(content, name, cells, str(editor.path))
    return content


def _find_wider(
    hub: Hub, before: Policy, after: Policy, changes: Sequence[wire.CellChange]
) -> tuple[wire.CellChange, ...]:
    """Return the changes that widen the permissions of a subject."""
    old, new = _effective_cells(hub, before), _effective_cells(hub, after)
    tools = [
        tool
        for tool in dict.fromkeys([each.tool for each in changes])
        if any(_RANKS[cell.cell] < _RANKS[old[tool][id].cell] for id, cell in new.get(tool, {}).items())
    ]
    return tuple([each for each in changes if each.tool in tools])


def _policy_result(hub: Hub, content: bytes, stamp: EditStamp) -> wire.PolicyResult:
    editor = _require_policy_editor(hub)
    policy = editor.effective(content)
    registry = hub.services.agent_editor.tools if hub.services.agent_editor is not None else None
    tools = [
        wire.PolicyTool(
            name,
            registry.source(name) if registry is not None and tool is not None else "policy",
            tool.description if tool is not None else "",
            asks=bool(tool is not None and tool.confirm),
            pure=tool is not None and tool.effect == "pure",
        )
        for name, tool in _policy_tools(hub, policy).items()
    ]
    return wire.PolicyResult(
        str(editor.path),
        tuple(tools),
        _subjects(hub),
        policy.tools,
        _effective_cells(hub, policy),
        version=stamp.version,
        changed_by=stamp.changed_by,
        changed_at=stamp.changed_at,
    )


def _policy_tools(hub: Hub, policy: Policy | None = None) -> dict[str, Tool | None]:
    """Return all tools that an agent could have, and those that only the policy names."""
    editor = hub.services.agent_editor
    tools: dict[str, Tool | None] = {tool.name: tool for tool in (editor.tools if editor is not None else ())}
    tools |= {tool.name: tool for agent in hub.atlas.agents for tool in agent.tools if tool.name not in tools}
    return {**dict.fromkeys(policy.tools if policy is not None else ()), **tools}


def _subjects(hub: Hub) -> tuple[wire.PolicySubject, ...]:
    editor = _require_policy_editor(hub)
    policy = editor.effective(editor.read())
    agents = hub.atlas.agents
    ids = {agent.id for agent in agents}
    set_in_file = {name for cells in policy.tools.values() for name in cells}
    groups = {*policy.groups, *[agent.role for agent in agents if agent.role], *set_in_file} - ids - {EVERYONE}
    return (
        wire.PolicySubject(EVERYONE, "everyone", "Everyone"),
        *[wire.PolicySubject(name, "group") for name in sorted(groups)],
        *[wire.PolicySubject(agent.id, "agent", agent.name) for agent in agents],
    )


def _effective_cells(hub: Hub, policy: Policy) -> dict[str, dict[str, wire.PolicyCell]]:
    subjects, roles = _subjects(hub), {agent.id: agent.role for agent in hub.atlas.agents}
    result: dict[str, dict[str, wire.PolicyCell]] = {}
    for name, tool in _policy_tools(hub, policy).items():
        acts = tool is None or tool.effect != "pure"
        needs = tool.permissions if tool is not None else ()
        row = result[name] = {}
        for subject in subjects:
            is_agent = subject.kind == "agent"
            actor = Actor(subject.id if is_agent else "", roles.get(subject.id, "") if is_agent else subject.id)
            verdict = policy.verdict(name, actor, needs=needs, acts=acts)
            decides = policy.deciding_subject(name, actor.agent_id, actor.role)
            row[subject.id] = wire.PolicyCell(verdict.cell, verdict.rule, "" if decides == subject.id else decides)
    return result


def _require_policy_editor(hub: Hub) -> PolicyEditor:
    if hub.services.policy_editor is None:
        raise ProtocolError("UNAVAILABLE", "the permissions of this gateway are set in code and cannot be edited")
    return hub.services.policy_editor


async def _ask(
    caller: ClientConnection, editor: AgentEditor, agent: Agent, params: wire.AgentsTryDraft
) -> tuple[str, list[str]]:
    """Return the answer of a draft and the names of the tools that it called."""
    history = [(user if each.role == "user" else assistant)(each.text) for each in params.history]
    conversation, by = Conversation(messages=history), caller.grant.principal.id
    stream = editor.open_draft(agent).send(params.message, session=conversation, user=by, asks=False)
    called: list[str] = []
    try:
        async with asyncio.timeout(_TRIAL_SECONDS):
            async for event in stream:
                if isinstance(event, ToolCalled):
                    called.append(event.name)
                elif params.trial_id and isinstance(event, StreamChunk | StreamReset):
                    text = event.text if isinstance(event, StreamChunk) else ""
                    caller.send(encode_event(AgentTrial(params.trial_id, text, reset=not text)))
            return (await stream.reply()).text, called
    except TimeoutError:
        raise ProtocolError("UNAVAILABLE", f"the draft did not answer within {_TRIAL_SECONDS:.0f} s") from None
    except AtlasError as error:
        raise ProtocolError("UNAVAILABLE", caller.hub.atlas.hide(f"the draft could not answer: {error}")) from error
    finally:
        stream.cancel()
        await _count_trial(caller.hub, agent, stream)


async def _count_trial(hub: Hub, agent: Agent, stream: AtlasStream) -> None:
    """Add the usage of a trial to the usage sums. Its calls counted against the budgets when they were made."""
    usage, model = stream.usage, agent_model(agent, hub.atlas.registry)
    if usage.input_tokens or usage.output_tokens:
        row = add_usage(utc_day(time.time()), _TRIAL_SESSION, agent.id, model, usage, turns=1)
        await hub.store.commit(hub.atlas.tenant, [row])


async def _edit(
    caller: ClientConnection, id: str, params: EditParams, change: Callable[[AgentsText], bytes]
) -> FileEdited:
    """Change the section of an agent in AGENTS.md."""
    editor = _require_editor(caller.hub)
    file = str(editor.path)

    def check(content: bytes) -> list[str]:
        state, built = editor.preview(content)
        return [*map(str, state.findings), *([built.notices[id]] if id in built.notices else ())]

    def value(content: bytes) -> wire.AgentDraft | None:
        spec = AgentsText(content, file).spec(id)
        return _to_draft(spec) if spec is not None else None

    edit = FileEdit(
        kind="agent",
        id=id,
        path=editor.path,
        section=lambda content: AgentsText(content, file).section(id),
        change=lambda content: change(_without_unchosen_model(AgentsText(content, file), editor)),
        check=check,
        value=value,
        apply=editor.reload,
        trust=editor.trust,
        expected_version=params.expected_version,
        dry_run=params.dry_run,
    )
    return await caller.hub.edits.edit_file(edit, caller.grant.principal.id)


def require_agent(hub: Hub, agent_id: str) -> Agent:
    """Return an agent; raise AGENT_NOT_FOUND if there is none with this id."""
    agent = hub.agent(agent_id)
    if agent is None:
        raise hub.unknown_agent(agent_id)
    return agent


def _require_editor(hub: Hub) -> AgentEditor:
    if hub.services.agent_editor is None:
        raise ProtocolError("UNAVAILABLE", "the agents of this gateway are defined in code and cannot be edited")
    return hub.services.agent_editor


def _without_unchosen_model(text: AgentsText, editor: AgentEditor) -> AgentsText:
    """Remove the model from a generated AGENTS.md if a person chose another model.

    An edited file counts as written by a person, so its model would be used just because another agent was added.
    """
    if text.content != default_text("AGENTS.md").encode() or not editor.chosen_model:
        return text
    return AgentsText(text.put(msgspec.structs.replace(text.specs[0], models=())), str(editor.path))


def _read_agents(editor: AgentEditor) -> AgentsText:
    return AgentsText(editor.read(), str(editor.path))


def _to_draft(spec: AgentSpec) -> wire.AgentDraft:
    return wire.AgentDraft(
        spec.id,
        name=spec.name,
        description=spec.description,
        model=spec.models[0] if spec.models else "",
        fallbacks=spec.models[1:],
        effort="" if spec.effort is None else str(spec.effort),
        instructions=spec.prompt,
        tools=spec.tools,
        role=spec.role,
        hands_off_to=spec.hands_off_to,
    )


def _to_spec(draft: wire.AgentDraft, text: AgentsText) -> AgentSpec:
    """Return the agent of a draft; fields that a draft does not have stay as they are in the file."""
    before = text.spec(draft.id) or AgentSpec(draft.id)
    if draft.fallbacks and not draft.model.strip():
        names = ", ".join(draft.fallbacks)
        raise ProtocolError(
            "INVALID_PARAMS",
            f"agent {draft.id!r} has fallbacks ({names}), but no model; choose a model or remove the fallbacks",
        )
    models = (draft.model, *draft.fallbacks) if draft.model.strip() else ()
    effort = draft.effort.strip()
    read_effort = KEYS["effort"][1]
    return msgspec.structs.replace(
        before,
        name=draft.name.strip(),
        description=draft.description.strip(),
        models=tuple([model.strip() for model in models]),
        effort=cast(Any, read_effort(SectionLine(draft.id, 0, "Effort", effort))) if effort else None,
        prompt=draft.instructions,
        tools=draft.tools,
        role=draft.role.strip(),
        hands_off_to=draft.hands_off_to,
    )


def _to_result(
    edited: FileEdited, agent: AgentShape | None = None, draft: wire.AgentDraft | None = None
) -> wire.AgentEdited:
    stamp = edited.stamp
    return wire.AgentEdited(
        agent,
        draft,
        version=stamp.version,
        changed_by=stamp.changed_by,
        changed_at=stamp.changed_at,
        diff=edited.diff,
        warnings=edited.warnings,
    )


def _agent_shape(agent: Agent, caller: ClientConnection) -> AgentShape:
    hub, by = caller.hub, caller.grant.principal.id
    return AgentShape(
        agent.id,
        agent.name,
        agent_model(agent, hub.atlas.registry),
        agent.description,
        agent.role,
        tuple([tool.name for tool in agent.tools if hub.atlas.verdict(agent, tool, by).cell != "no"]),
        default=agent is hub.atlas.get_agent(),
        notice=hub.services.model_notice(agent.id),
        hands_off_to=agent.settings.hands_off_to,
        needs_key=hub.services.needs_key(agent.id),
    )
