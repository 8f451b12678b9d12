"""The calls that a server has under way: whom it means when it asks something in the middle of one."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from atlas_agents.core.events import Usage
from atlas_agents.core.forms import Filled, Form


class Caller(Protocol):
    """Whose call it is, as far as a server's questions concern them; a ToolContext is one."""

    run_id: str
    tenant_id: str

    def progress(self, message: str) -> None: ...

    async def ask(self, form: Form) -> Filled: ...

    async def check_budget(self) -> None: ...

    async def spend(self, model: str, usage: Usage) -> None: ...


_own: ContextVar[Caller | None] = ContextVar("atlas_mcp_call", default=None)


class Underway:
    """The calls of one conversation."""

    def __init__(self) -> None:
        self._callers: list[Caller] = []

    @contextmanager
    def of(self, caller: Caller) -> Generator[None, None, None]:
        self._callers.append(caller)
        before = _own.set(caller)
        try:
            yield
        finally:
            _own.reset(before)
            self._callers.remove(caller)

    def asked(self) -> Caller | None:
        """Who is meant: whose call it came with where that can be seen, over HTTP, else the one turn that has calls
        under way. None if there is none, or several: what one was to be asked must not be shown to another."""
        own = _own.get()
        if own is not None and own in self._callers:
            return own
        turns = {(each.tenant_id, each.run_id) for each in self._callers}
        return self._callers[-1] if len(turns) == 1 else None
