"""Methods `agents.*`: list, edit and try the agents of the workspace."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.core.errors import AtlasError
from atlas_agents.core.events import StreamChunk, StreamReset, ToolCalled
from atlas_agents.core.messages import Conversation, assistant, user
from atlas_agents.gateway.connection import ClientConnection
from atlas_agents.gateway.convert import agent_model
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.edits import AgentEditor, FileEdit, FileEdited, version_of
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol import admin as wire
from atlas_agents.gateway.protocol.events import AgentTrial, encode_event
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.gateway.protocol.types import AgentShape, EditParams, NoParams
from atlas_agents.workspace.build import build_agent
from atlas_agents.workspace.files import default_text
from atlas_agents.workspace.workspace import KEYS, AgentSpec, AgentsText, SectionLine

_TRIAL_SECONDS = 300.0


def add_methods(methods: Methods) -> None:
    methods.add("agents.list", list_agents)
    methods.add("agents.get", get_agent)
    methods.add("agents.put", put_agent)
    methods.add("agents.remove", remove_agent)
    methods.add("agents.tryDraft", try_draft)


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
    id = params.agent.id
    edited = await _edit(caller, id, params, lambda text: text.put(_to_spec(params.agent, text)))
    if params.dry_run:
        return _to_result(edited)
    agent = _agent_shape(require_agent(caller.hub, id), caller)
    written = AgentsText(edited.content).spec(id)
    return _to_result(edited, agent, _to_draft(written) if written is not None else None)


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
    """Send a message to a draft. It has only tools that change nothing and need no approval, and nothing is stored."""
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
        change=lambda content: change(AgentsText(content, file)),
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
        raise ProtocolError("AGENT_NOT_FOUND", f"unknown agent {agent_id!r}")
    return agent


def _require_editor(hub: Hub) -> AgentEditor:
    if hub.services.agent_editor is None:
        raise ProtocolError("UNAVAILABLE", "the agents of this gateway are defined in code and cannot be edited")
    return hub.services.agent_editor


def _read_agents(editor: AgentEditor) -> AgentsText:
    content = editor.path.read_bytes() if editor.path.exists() else b""
    return AgentsText(content, str(editor.path))


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
    """Return the agent of a draft; what a draft does not have stays as it is in the file."""
    before = text.spec(draft.id) or AgentSpec(draft.id)
    models = (draft.model, *draft.fallbacks) if draft.model else draft.fallbacks
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
