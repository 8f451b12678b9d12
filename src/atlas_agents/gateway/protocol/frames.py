"""The frames themselves: the first one, requests, answers, events."""

from typing import Any, Literal

import msgspec

from atlas_agents.gateway.protocol.faults import FaultShape
from atlas_agents.gateway.protocol.shapes import Features, PolicyShape, Principal, ServerShape, Wire

PROTOCOL = 1
"""The version that a client names to get more than the plain profile."""


class Client(Wire, frozen=True):
    """What a client says of itself; for the log only."""

    name: str = ""
    version: str = ""


class Auth(Wire, frozen=True):
    """The first frame of a client. With `protocol` it gets the full profile, without it the plain one."""

    type: Literal["auth"]
    token: str = ""
    protocol: int = 0
    client: Client | None = None


class Welcome(Wire, frozen=True):
    """The answer to a right token. A plain client sees only the first two."""

    type: Literal["auth"]
    ok: Literal[True]
    protocol: int = 0
    server: ServerShape | None = None
    principal: Principal | None = None
    features: Features | None = None
    policy: PolicyShape | None = None


class Unwelcome(Wire, frozen=True):
    """The answer to a wrong token, just before the socket is closed."""

    type: Literal["auth"]
    ok: Literal[False]
    error: str


class Request(Wire, frozen=True):
    """A client asks for a method; `id` comes back with the answer."""

    id: str | int | float
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class Answer(Wire, frozen=True):
    """A request has its result."""

    id: str | int | float
    result: Any


class Failure(Wire, frozen=True):
    """A request has none. `id` is null where the frame had none that could be read."""

    id: str | int | float | None
    error: FaultShape
