"""The table of methods: what each needs, takes and gives. What is not in here does not exist."""

import msgspec

from atlas_agents.gateway.protocol import calls, chat, jobs, knowledge, records, runs, schedules, sessions, tenants
from atlas_agents.gateway.protocol.shapes import Done, Nothing, Scope, Wire


class Method(msgspec.Struct, frozen=True):
    """One method; `waits` if its answer may take long, so that others on the same socket must not wait for it."""

    name: str
    scope: Scope
    params: type[Wire]
    result: type[Wire]
    purpose: str
    waits: bool = False


_ALL = (
    Method("health.check", "read", Nothing, records.Health, "Is the server well, and since when?"),
    Method("system.info", "read", Nothing, records.SystemInfo, "What the server is and can do."),
    Method("chat.send", "write", chat.ChatSend, chat.Sent, "Say something; the answer follows as events."),
    Method("chat.abort", "write", chat.ChatAbort, chat.Aborted, "Stop a run, or all of a session."),
    Method("chat.history", "read", chat.ChatHistory, chat.History, "Messages of a session."),
    Method("chat.wait", "read", chat.ChatWait, chat.Waited, "Wait until a run has ended.", waits=True),
    Method("sessions.create", "write", sessions.SessionsCreate, sessions.Created, "Begin a session."),
    Method("sessions.list", "read", sessions.SessionsList, sessions.SessionPage, "Sessions, the latest first."),
    Method("sessions.get", "read", sessions.OneSession, sessions.SessionFound, "A session and its last messages."),
    Method("sessions.update", "write", sessions.SessionsUpdate, sessions.SessionChanged, "Change a session."),
    Method("sessions.delete", "write", sessions.OneSession, Done, "Remove a session and all it holds."),
    Method("sessions.subscribe", "read", sessions.SessionsSubscribe, sessions.Subscribed, "Hear a session."),
    Method("sessions.unsubscribe", "read", sessions.OneSession, Done, "Hear a session no more."),
    Method(
        "sessions.fork", "write", sessions.SessionsFork, sessions.Created, "A new session that begins like another."
    ),
    Method(
        "sessions.search", "read", sessions.SessionsSearch, sessions.Hits, "Sessions where words were said.", waits=True
    ),
    Method("sessions.export", "read", sessions.SessionsExport, sessions.Exported, "A session as lines of text."),
    Method("sessions.import", "write", sessions.SessionsImport, sessions.Imported, "A session made of such lines."),
    Method("runs.list", "read", runs.RunsList, runs.RunsFound, "Turns, the latest first."),
    Method("runs.get", "read", runs.OneRun, runs.RunFound, "A turn, step by step."),
    Method("jobs.list", "read", jobs.JobsList, jobs.JobPage, "Work that was handed on or is due, the latest first."),
    Method("jobs.get", "read", jobs.OneJob, jobs.JobFound, "One job."),
    Method("jobs.cancel", "write", jobs.OneJob, jobs.JobFound, "Stop a job, and what was asked for in it."),
    Method("jobs.retry", "write", jobs.OneJob, jobs.JobFound, "Try a job again that was not done."),
    Method(
        "schedules.add", "write", schedules.SchedulesAdd, schedules.ScheduleFound, "Have a task done over and over."
    ),
    Method("schedules.list", "read", Nothing, schedules.SchedulesFound, "Tasks that recur."),
    Method("schedules.pause", "write", schedules.SchedulesPause, schedules.ScheduleFound, "Let a schedule rest."),
    Method("schedules.run", "write", schedules.OneSchedule, jobs.JobFound, "Do the task of a schedule now."),
    Method("schedules.remove", "write", schedules.OneSchedule, Done, "Remove a schedule."),
    Method("approvals.list", "read", Nothing, sessions.ApprovalsFound, "Questions that wait for an answer."),
    Method("approvals.resolve", "approve", sessions.ApprovalsResolve, Done, "Answer a question."),
    Method("exec.approve", "approve", sessions.ExecAnswer, Done, "Say yes to a question, once."),
    Method("exec.deny", "approve", sessions.ExecAnswer, Done, "Say no to a question."),
    Method("agents.list", "read", Nothing, records.AgentsFound, "All agents."),
    Method("agents.get", "read", records.OneAgent, records.AgentFound, "One agent."),
    Method("models.list", "read", Nothing, records.ModelsFound, "The models that agents speak with."),
    Method("tools.list", "read", records.ToolsList, records.ToolsFound, "Tools, and whether they may be used."),
    Method("tools.matrix", "read", Nothing, records.Matrix, "Agents and tools: yes, no or ask."),
    Method("tools.invoke", "write", calls.ToolsInvoke, calls.Called, "Call a tool, without a model.", waits=True),
    Method("mcp.servers", "read", Nothing, calls.ForeignServers, "MCP servers, and whether they may be used."),
    Method("audit.list", "read", records.AuditList, records.AuditPage, "Lines of the audit log, the latest first."),
    Method("audit.subscribe", "read", Nothing, Done, "Hear new lines of the audit log."),
    Method("audit.verify", "read", Nothing, records.AuditVerified, "Is the audit log's chain whole?", waits=True),
    Method("usage.summary", "read", records.UsageSummary, records.UsageFound, "Tokens and cost, summed."),
    Method("usage.tools", "read", records.UsageTools, records.ToolsUsed, "Calls of tools, counted.", waits=True),
    Method("knowledge.list", "read", knowledge.KnowledgeList, knowledge.DocumentsFound, "Documents that agents know."),
    Method(
        "knowledge.search", "read", knowledge.KnowledgeSearch, knowledge.PassagesFound, "Passages that fit.", waits=True
    ),
    Method(
        "knowledge.add", "admin", knowledge.KnowledgeAdd, knowledge.Ingested, "Read files or an address.", waits=True
    ),
    Method(
        "knowledge.refresh", "admin", knowledge.KnowledgeRefresh, knowledge.Ingested, "Read what changed.", waits=True
    ),
    Method("knowledge.remove", "admin", knowledge.KnowledgeRemove, knowledge.Removed, "Remove documents."),
    Method("memories.list", "read", knowledge.MemoriesList, knowledge.MemoriesFound, "What an agent remembers of you."),
    Method("memories.forget", "write", knowledge.MemoriesForget, Done, "Have an agent forget something."),
    Method("limits.get", "read", Nothing, records.LimitsFound, "The limits of tool calls, and what is used."),
    Method("users.list", "read", Nothing, tenants.UsersFound, "Who belongs here."),
    Method("users.put", "admin", tenants.UsersPut, tenants.UserFound, "Add somebody, or change them."),
    Method("users.remove", "admin", tenants.OneUser, Done, "Remove somebody."),
    Method("plans.list", "read", Nothing, tenants.PlansFound, "The plans that there are."),
    Method("plans.put", "admin", tenants.PlansPut, tenants.PlanFound, "Make a plan, or change one."),
    Method("tenants.get", "read", Nothing, tenants.TenantFound, "The plan, and how much of it is used."),
    Method("tenants.update", "admin", tenants.TenantsUpdate, tenants.TenantFound, "Have another plan."),
    Method("tenants.list", "admin", Nothing, tenants.TenantsFound, "The tenants of this store."),
    Method("config.get", "admin", Nothing, records.ConfigFound, "The settings in force, without secrets."),
    Method("tokens.rotate", "admin", Nothing, records.TokenMade, "Make a new token; the old one ends at once."),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
