"""Which agent a session talks to, remembered: it is asked for with every message."""

from collections import OrderedDict

from atlas_agents.core.store import Store

_MOST = 4096


class Assignments:
    """Read once per session; whoever changes one says so."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._agents: OrderedDict[str, str] = OrderedDict()

    async def agent_of(self, session: str) -> str:
        """The agent's id, or nothing if none was chosen."""
        found = self._agents.get(session)
        if found is None:
            row = await self._store.session(self._tenant, session)
            found = row.agent_id if row else ""
            self.put(session, found)
        return found

    def put(self, session: str, agent_id: str) -> None:
        self._agents[session] = agent_id
        self._agents.move_to_end(session)
        if len(self._agents) > _MOST:
            self._agents.popitem(last=False)

    def forget_all(self) -> None:
        """Others may have changed any of them."""
        self._agents.clear()

    def forget(self, session: str) -> None:
        self._agents.pop(session, None)
