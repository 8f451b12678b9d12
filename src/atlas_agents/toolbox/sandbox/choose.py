"""Which sandbox holds here: the strongest that really ran something, or why there is none."""

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from atlas_agents.core.errors import SandboxUnavailable
from atlas_agents.toolbox.sandbox import bubblewrap, landlock
from atlas_agents.toolbox.sandbox.ports import Sandbox
from atlas_agents.toolbox.sandbox.unconfined import Unconfined

Kind: TypeAlias = Literal["auto", "bubblewrap", "landlock", "wasm", "none"]
_PROBES: dict[str, Callable[[], Awaitable[Sandbox]]] = {"bubblewrap": bubblewrap.probe, "landlock": landlock.probe}
_found: dict[str, Sandbox] = {}


async def choose(kind: Kind = "auto") -> Sandbox:
    """The sandbox of this kind; `auto` is the strongest that works. Never less than was asked for, and never none
    unless it was asked for by name. `wasm` holds code only; for commands it is `auto`. What works is remembered, what
    does not is tried again each time."""
    if kind == "none":
        return Unconfined()
    wanted = tuple(_PROBES) if kind in ("auto", "wasm") else (kind,)
    tried: list[SandboxUnavailable] = []
    for name in wanted:
        try:
            if name not in _found:
                _found[name] = await _PROBES[name]()
            return _found[name]
        except SandboxUnavailable as missing:
            tried.append(missing)
        except TimeoutError:
            tried.append(SandboxUnavailable(f"{name} did not answer", "look at what holds it up"))
    raise SandboxUnavailable("; ".join(each.reason for each in tried), ", or ".join(each.remedy for each in tried))
