"""Updates of session lists: notifies clients when a session changes and names unnamed sessions."""

import asyncio
import logging
from collections import OrderedDict

import msgspec

from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.errors import StoreError
from atlas_agents.core.messages import Message
from atlas_agents.core.store import Session
from atlas_agents.gateway.convert import session_shape
from atlas_agents.gateway.hub import Hub, Peer
from atlas_agents.gateway.protocol.events import ApprovalsUpdated, SessionUpdated, body_of

logger = logging.getLogger(__name__)
_LONGEST_LABEL = 60
_MOST_KNOWN = 10_000


class SessionUpdates:
    """Notifies clients of changed sessions, reading each session once per batch of changes."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._due: set[str] = set()
        self._named: OrderedDict[str, None] = OrderedDict()
        self._tasks = BackgroundTasks("session updates", expected=StoreError)

    def changed(self, session: str) -> None:
        """Report that a session has changed."""
        if session not in self._due and (session not in self._named or self._curious(session)):
            self._due.add(session)
            self._tasks.spawn(self._look(session))

    def asked(self, session: str) -> None:
        """Report that an approval was requested or resolved in a session."""
        for peer in self._curious(session):
            prefix = peer.grant.prefix if peer.grant else ""
            peer.put(body_of(ApprovalsUpdated(session.removeprefix(prefix))))

    def tell(self, session: Session, *, deleted: bool = False) -> None:
        """Send the session to the clients that subscribe to it or to the list it is on."""
        if deleted:
            self._named.pop(session.key, None)
        running = self._hub.runs.running(session.key)
        made: dict[str, bytes] = {}
        for peer in self._curious(session.key):
            prefix = peer.grant.prefix if peer.grant else ""
            if prefix not in made:
                shape = session_shape(session, session.key.removeprefix(prefix), running=running)
                made[prefix] = body_of(SessionUpdated(shape, deleted))
            peer.put(made[prefix])

    def _curious(self, key: str) -> list[Peer]:
        """Return the connections that subscribe to the session or to a list it is on."""
        return [
            peer
            for peer in self._hub.readers()
            if key in peer.sessions or (peer.lists and peer.grant is not None and key.startswith(peer.grant.prefix))
        ]

    async def _look(self, key: str) -> None:
        await asyncio.sleep(0)  # changes in the same tick are one update
        self._due.discard(key)
        hub = self._hub
        session = await hub.store.session(hub.atlas.tenant, key)
        if session is None:
            self.tell(Session(key), deleted=True)  # deleted by another gateway
        else:
            self.tell(await self._name(session))

    async def _name(self, session: Session) -> Session:
        """Name an unnamed session after the first words of its first message."""
        if session.label or session.key in self._named:
            self._know(session.key)
            return session
        rows = await self._hub.store.messages(self._hub.atlas.tenant, session.key, limit=1)
        if not rows:
            return session
        self._know(session.key)
        words = " ".join(Message.from_json(rows[0].body).text.split())
        label = words if len(words) <= _LONGEST_LABEL else words[: _LONGEST_LABEL - 1] + "…"
        if label:
            await self._hub.atlas.sessions.put(session.key, label=label)
        return msgspec.structs.replace(session, label=label)

    def _know(self, key: str) -> None:
        self._named[key] = None
        if len(self._named) > _MOST_KNOWN:
            self._named.popitem(last=False)
