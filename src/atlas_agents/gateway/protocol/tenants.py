"""Params and results of `users.*`, `plans.*` and `tenants.*`: who belongs here, and how much may be used."""

from typing import Annotated, Literal

from msgspec import Meta

from atlas_agents.gateway.protocol.shapes import Wire

Name = Annotated[str, Meta(pattern=r"^[a-z0-9_-]{1,64}$")]
Count = Annotated[int, Meta(ge=0, le=1 << 62)]


class UserShape(Wire, frozen=True):
    """Somebody who belongs here; `lastActive` is when a turn was last taken for them, in milliseconds since 1970."""

    name: str
    role: str
    status: Literal["active", "invited", "suspended"]
    last_active: int | None = None


class UsersFound(Wire, frozen=True):
    users: tuple[UserShape, ...]


class UsersPut(Wire, frozen=True):
    """Add somebody, or change them."""

    name: Name
    role: Annotated[str, Meta(min_length=1, max_length=64)] = "member"
    status: Literal["active", "invited", "suspended"] = "active"


class UserFound(Wire, frozen=True):
    user: UserShape


class OneUser(Wire, frozen=True):
    """Name a user."""

    name: Name


class PlanShape(Wire, frozen=True):
    """What may be used: tokens in a month, agents, bytes, users; null is no limit."""

    name: str
    tokens: int | None = None
    agents: int | None = None
    storage: int | None = None
    seats: int | None = None


class PlansFound(Wire, frozen=True):
    plans: tuple[PlanShape, ...]


class PlansPut(Wire, frozen=True):
    """Make a plan, or change one."""

    name: Name
    tokens: Count | None = None
    agents: Count | None = None
    storage: Count | None = None
    seats: Count | None = None


class PlanFound(Wire, frozen=True):
    plan: PlanShape


class TenantFound(Wire, frozen=True):
    """The tenant that is served here, its plan, and what it uses of it."""

    tenant: str
    plan: PlanShape
    tokens: int
    storage: int
    agents: int
    seats: int


class TenantsUpdate(Wire, frozen=True):
    """Have another plan from now on."""

    plan: Name


class TenantsFound(Wire, frozen=True):
    """The tenants that have said something of themselves in this store."""

    tenants: tuple[str, ...]
