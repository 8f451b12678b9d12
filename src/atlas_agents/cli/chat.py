"""`atlas chat`: a conversation at the prompt."""

import sys

from atlas_agents.cli import options as given
from atlas_agents.cli.ask import is_terminal
from atlas_agents.cli.border import DONE, quiet, run
from atlas_agents.cli.commands import Place
from atlas_agents.cli.options import Talking
from atlas_agents.cli.reach import Here, for_talking
from atlas_agents.cli.talk import Talk
from atlas_agents.cli.who import agents, pick
from atlas_agents.core.errors import ConfigError, GatewayError
from atlas_agents.core.messages import new_id


def chat(talking: Talking) -> int:
    """Talk until the person leaves; the result is the exit code."""
    quiet()
    return run(lambda: _chat(talking))


async def _chat(talking: Talking) -> int:
    settings = None if talking.alone else given.settings()
    if not is_terminal(sys.stdin) or not is_terminal(sys.stdout):
        raise ConfigError("there is no terminal here to talk in: atlas ask answers one message, also in a pipe")
    async with for_talking(settings, talking) as here:
        await Talk(here, await _place(here, talking)).run()
    return DONE


async def _place(here: Here, talking: Talking) -> Place:
    """The session that was asked for, or a new one."""
    if talking.agent:
        pick(await agents(here), talking.agent)
    if talking.latest:
        found = (await here.client.call("sessions.list", limit=1))["sessions"]
        if not found:
            raise ConfigError("there is no session yet to go on with: leave --continue out")
        return Place(found[0]["sessionKey"], known=True, agent=talking.agent)
    if talking.session:
        return Place(talking.session, known=await _exists(here, talking.session), agent=talking.agent)
    return Place(new_id(), known=False, agent=talking.agent)


async def _exists(here: Here, key: str) -> bool:
    try:
        await here.client.call("sessions.get", session_key=key)
    except GatewayError as error:
        if error.kind != "SESSION_NOT_FOUND":
            raise
        return False
    return True
