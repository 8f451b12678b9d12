"""`schedules.*`: tasks that recur, kept and seen by those whose they are."""

import time

from atlas_agents.core.errors import Conflict, NotStored
from atlas_agents.core.schedules import Schedule
from atlas_agents.engine.schedules import after
from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.job_methods import job_shape
from atlas_agents.gateway.protocol.faults import Fault
from atlas_agents.gateway.protocol.jobs import JobFound
from atlas_agents.gateway.protocol.schedules import (
    OneSchedule,
    ScheduleFound,
    SchedulesAdd,
    SchedulesFound,
    ScheduleShape,
    SchedulesPause,
)
from atlas_agents.gateway.protocol.shapes import Done, Nothing
from atlas_agents.gateway.turns import agent_for


def add_schedule_methods(methods: Methods) -> None:
    methods.add("schedules.add")(add)
    methods.add("schedules.list")(list_schedules)
    methods.add("schedules.pause")(pause)
    methods.add("schedules.run")(run)
    methods.add("schedules.remove")(remove)


async def add(caller: Connection, params: SchedulesAdd) -> ScheduleFound:
    agent = await agent_for(caller.hub, "", params.agent_id)
    schedule = Schedule(
        params.name,
        params.cron.strip(),
        agent.id,
        params.task,
        params.zone,
        params.missed,
        params.priority,
        user=caller.who.principal.id,
        prefix=caller.who.prefix,
    )
    try:
        return ScheduleFound(_shape(await caller.hub.atlas.jobs.schedules.add(schedule)))
    except Conflict:
        raise Fault("CONFLICT", "there is a schedule of this name already") from None


async def list_schedules(caller: Connection, _: Nothing) -> SchedulesFound:
    """The caller's own, by name."""
    found = await caller.hub.atlas.jobs.schedules.list()
    return SchedulesFound(tuple([_shape(each) for each in found if each.prefix.startswith(caller.who.prefix)]))


async def pause(caller: Connection, params: SchedulesPause) -> ScheduleFound:
    await _visible(caller, params.name)
    return ScheduleFound(_shape(await caller.hub.atlas.jobs.schedules.pause(params.name, paused=params.paused)))


async def run(caller: Connection, params: OneSchedule) -> JobFound:
    await _visible(caller, params.name)
    return JobFound(job_shape(await caller.hub.atlas.jobs.schedules.run(params.name), caller.who.prefix))


async def remove(caller: Connection, params: OneSchedule) -> Done:
    await _visible(caller, params.name)
    await caller.hub.atlas.jobs.schedules.remove(params.name)
    return Done(True)


async def _visible(caller: Connection, name: str) -> None:
    """It is there, and the caller's; the same words if it is somebody else's."""
    try:
        found = await caller.hub.atlas.jobs.schedules.get(name)
    except NotStored:
        found = None
    if found is None or not found.prefix.startswith(caller.who.prefix):
        raise Fault("INVALID_PARAMS", "there is no such schedule")


def _shape(schedule: Schedule) -> ScheduleShape:
    return ScheduleShape(
        name=schedule.name,
        cron=schedule.cron,
        zone=schedule.zone,
        agent_id=schedule.agent_id,
        task=schedule.task,
        missed=schedule.missed,
        priority=schedule.priority,
        paused=schedule.paused,
        created_at=schedule.created_at,
        user=schedule.user,
        next_at=None if schedule.paused else after(schedule, int(time.time() * 1000)),
    )
