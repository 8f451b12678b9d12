"""`jobs.*`: what agents have handed to each other, and what is due; looked at, stopped, tried again."""

from atlas_agents.core.errors import Conflict, NotStored
from atlas_agents.core.jobs import PRIORITIES, JobRow
from atlas_agents.engine.stream import AtlasStream
from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.models import model_of
from atlas_agents.gateway.protocol.events import JobUpdated, body_of
from atlas_agents.gateway.protocol.faults import Fault, not_found
from atlas_agents.gateway.protocol.jobs import JobFound, JobPage, JobShape, JobsList, OneJob

_PAGE = 200


def add_job_methods(methods: Methods) -> None:
    methods.add("jobs.list")(list_jobs)
    methods.add("jobs.get")(get)
    methods.add("jobs.cancel")(cancel)
    methods.add("jobs.retry")(retry)


async def list_jobs(caller: Connection, params: JobsList) -> JobPage:
    """The latest first; those of others are passed over. From now on the caller hears what changes."""
    caller.jobs = True
    before = int(params.cursor) if params.cursor is not None else None
    found: list[JobRow] = []
    while len(found) <= params.limit:
        page = await caller.hub.atlas.jobs.list(states=params.states, limit=_PAGE, before=before)
        found += [each for each in page if each.session.startswith(caller.who.prefix)]
        if len(page) < _PAGE:
            break
        before = page[-1].seq
    shown = found[: params.limit]
    more = str(shown[-1].seq) if len(found) > params.limit else None
    return JobPage(tuple([job_shape(each, caller.who.prefix) for each in shown]), more)


async def get(caller: Connection, params: OneJob) -> JobFound:
    return JobFound(job_shape(await _visible(caller, params.job_id), caller.who.prefix))


async def cancel(caller: Connection, params: OneJob) -> JobFound:
    job = await _visible(caller, params.job_id)
    try:
        ended = await caller.hub.atlas.jobs.cancel(job.id, by=caller.who.principal.id)
    except Conflict:
        raise Fault("CONFLICT", "the job has ended already") from None
    return JobFound(job_shape(ended, caller.who.prefix))


async def retry(caller: Connection, params: OneJob) -> JobFound:
    job = await _visible(caller, params.job_id)
    try:
        again = await caller.hub.atlas.jobs.retry(job.id)
    except Conflict:
        raise Fault("CONFLICT", "the job is open, or done: there is nothing to try again") from None
    return JobFound(job_shape(again, caller.who.prefix))


async def _visible(caller: Connection, id: str) -> JobRow:
    """A job that the caller may know of; to others it is not there."""
    try:
        job = await caller.hub.atlas.jobs.get(id)
    except NotStored:
        raise not_found("JOB") from None
    if not job.session.startswith(caller.who.prefix):
        raise not_found("JOB")
    return job


def job_shape(job: JobRow, prefix: str) -> JobShape:
    return JobShape(
        job_id=job.id,
        kind=job.kind,
        agent_id=job.agent_id,
        task=job.task,
        state=job.state,
        priority=PRIORITIES[job.priority],
        session_key=job.session.removeprefix(prefix),
        created_at=job.created_at,
        due_at=job.due_at,
        attempts=job.attempts,
        parent=job.parent,
        user=job.user,
        asked_by=job.asker_agent,
        asker_session=job.asker_session.removeprefix(prefix),
        deadline=job.deadline,
        result=job.result,
        error=job.error,
        ended_at=job.ended_at,
    )


def follow_jobs(hub: Hub) -> None:
    """What jobs say is logged and told like any turn, and that they change to those who keep a list of them."""

    def follow(stream: AtlasStream, agent_id: str) -> None:
        agent = hub.agent(agent_id)
        hub.runs.follow(stream, model_of(agent, hub.atlas.registry) if agent else "")

    def tell(job: JobRow) -> None:
        for peer in hub.readers():
            prefix = peer.grant.prefix if peer.grant else ""
            if peer.jobs and job.session.startswith(prefix):
                peer.put(body_of(JobUpdated(job_shape(job, prefix))))

    hub.atlas.jobs.on_turn(follow)
    hub.atlas.jobs.on_change = tell
