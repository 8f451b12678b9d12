"""`users.*`, `plans.*`, `tenants.*`: who belongs here, and how much may be used."""

from atlas_agents.core.errors import NotStored
from atlas_agents.core.tenancy import Plan, User
from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol.faults import Fault
from atlas_agents.gateway.protocol.shapes import Done, Nothing
from atlas_agents.gateway.protocol.tenants import (
    OneUser,
    PlanFound,
    PlansFound,
    PlanShape,
    PlansPut,
    TenantFound,
    TenantsFound,
    TenantsUpdate,
    UserFound,
    UsersFound,
    UserShape,
    UsersPut,
)


def add_tenant_methods(methods: Methods) -> None:
    methods.add("users.list")(list_users)
    methods.add("users.put")(put_user)
    methods.add("users.remove")(remove_user)
    methods.add("plans.list")(list_plans)
    methods.add("plans.put")(put_plan)
    methods.add("tenants.get")(get)
    methods.add("tenants.update")(update)
    methods.add("tenants.list")(list_tenants)


async def list_users(caller: Connection, _: Nothing) -> UsersFound:
    hub = caller.hub
    seen: dict[str, int] = {}
    for _agent, user, at in await hub.store.active(hub.atlas.tenant):
        seen[user] = max(at, seen.get(user, 0))
    users = await hub.atlas.tenancy.users()
    return UsersFound(tuple([UserShape(each.name, each.role, each.status, seen.get(each.name)) for each in users]))


async def put_user(caller: Connection, params: UsersPut) -> UserFound:
    kept = await caller.hub.atlas.tenancy.put_user(User(params.name, params.role, params.status))
    await look_who_may_not(caller.hub)
    return UserFound(UserShape(kept.name, kept.role, kept.status))


async def remove_user(caller: Connection, params: OneUser) -> Done:
    try:
        await caller.hub.atlas.tenancy.remove_user(params.name)
    except NotStored:
        raise Fault("INVALID_PARAMS", "there is no such user") from None
    await look_who_may_not(caller.hub)
    return Done(True)


async def list_plans(caller: Connection, _: Nothing) -> PlansFound:
    return PlansFound(tuple(map(_shape, await caller.hub.atlas.tenancy.plans())))


async def put_plan(caller: Connection, params: PlansPut) -> PlanFound:
    plan = Plan(params.name, params.tokens, params.agents, params.storage, params.seats)
    return PlanFound(_shape(await caller.hub.atlas.tenancy.put_plan(plan)))


async def get(caller: Connection, _: Nothing) -> TenantFound:
    atlas = caller.hub.atlas
    plan, used = await atlas.tenancy.plan(), await atlas.tenancy.used()
    return TenantFound(atlas.tenant, _shape(plan), used.tokens, used.storage, len(atlas.agents), used.seats)


async def update(caller: Connection, params: TenantsUpdate) -> TenantFound:
    await caller.hub.atlas.tenancy.use_plan(params.plan)
    return await get(caller, Nothing())


async def list_tenants(caller: Connection, _: Nothing) -> TenantsFound:
    return TenantsFound(tuple(await caller.hub.store.tenants()))


async def look_who_may_not(hub: Hub) -> None:
    """Users who are suspended are let in no more, and sent away if they are in."""
    users = await hub.atlas.tenancy.users()
    hub.porch.suspended = frozenset(each.name for each in users if each.status == "suspended")
    hub.close_strangers()


def _shape(plan: Plan) -> PlanShape:
    return PlanShape(plan.name, plan.tokens, plan.agents, plan.storage, plan.seats)
