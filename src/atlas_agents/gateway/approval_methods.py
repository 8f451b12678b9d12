"""`approvals.*` and `exec.*`: questions to a person, and their answers."""

from atlas_agents.core.errors import Conflict, NotStored
from atlas_agents.core.questions import Answer
from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.protocol.faults import Fault, not_found
from atlas_agents.gateway.protocol.sessions import ApprovalsFound, ApprovalsResolve, ExecAnswer
from atlas_agents.gateway.protocol.shapes import Done, Nothing
from atlas_agents.gateway.translate import ANSWERS, approval_shape


def add_approval_methods(methods: Methods) -> None:
    methods.add("approvals.list")(list_approvals)
    methods.add("approvals.resolve")(resolve)

    @methods.add("exec.approve")
    async def _(caller: Connection, params: ExecAnswer) -> Done:
        return await resolve(caller, ApprovalsResolve(params.approval_id, "allow-once", params.reason))

    @methods.add("exec.deny")
    async def _(caller: Connection, params: ExecAnswer) -> Done:
        return await resolve(caller, ApprovalsResolve(params.approval_id, "deny", params.reason))


async def list_approvals(caller: Connection, _: Nothing) -> ApprovalsFound:
    """The questions of the caller's own sessions, the oldest first."""
    prefix = caller.who.prefix
    found = [each for each in await caller.hub.atlas.pending() if each.session.startswith(prefix)]
    return ApprovalsFound(tuple([approval_shape(each, each.session.removeprefix(prefix)) for each in found]))


async def resolve(caller: Connection, params: ApprovalsResolve) -> Done:
    """Answer a question, once. Only who holds a token with that right does; an agent has none."""
    hub = caller.hub
    row = await hub.store.approval(hub.atlas.tenant, params.approval_id)
    if row is None or not row.session.startswith(caller.who.prefix):
        raise not_found("APPROVAL")
    answer = Answer(ANSWERS[params.decision], params.arguments, caller.who.principal.id, params.reason)
    try:
        await hub.atlas.answer(params.approval_id, answer)
    except NotStored:
        raise not_found("APPROVAL") from None
    except Conflict as late:
        raise Fault("APPROVAL_NOT_FOUND", f"already resolved: {late}") from None
    return Done(True)
