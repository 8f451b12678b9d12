"""The table of methods: what each needs, takes and gives. What is not in here does not exist."""

import msgspec

from atlas_agents.gateway.protocol import admin, chat, jobs, knowledge, sessions
from atlas_agents.gateway.protocol import chat as chat_module
from atlas_agents.gateway.protocol import jobs as jobs_module
from atlas_agents.gateway.protocol.types import Done, Nothing, Scope, WireStruct


class Method(msgspec.Struct, frozen=True):
    """One method; `waits` if its answer may take long, so that others on the same socket must not wait for it."""

    name: str
    scope: Scope
    params: type[WireStruct]
    result: type[WireStruct]
    purpose: str
    waits: bool = False


_ALL = (
    Method("health.check", "read", Nothing, admin.Health, "Is the server well, and since when?"),
    Method("system.info", "read", Nothing, admin.SystemInfo, "What the server is and can do."),
    Method("chat.send", "write", chat.ChatSend, chat.Sent, "Say something; the answer follows as events."),
    Method("chat.abort", "write", chat.ChatAbort, chat.Aborted, "Stop a run, or all of a session."),
    Method("chat.history", "read", chat.ChatHistory, chat.ChatHistoryPage, "Messages of a session."),
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
    Method("runs.list", "read", chat_module.RunsList, chat_module.RunsFound, "Turns, the latest first."),
    Method("runs.get", "read", chat_module.OneRun, chat_module.RunFound, "A turn, step by step."),
    Method("jobs.list", "read", jobs.JobsList, jobs.JobPage, "Work that was handed on or is due, the latest first."),
    Method("jobs.get", "read", jobs.OneJob, jobs.JobFound, "One job."),
    Method("jobs.cancel", "write", jobs.OneJob, jobs.JobFound, "Stop a job, and what was asked for in it."),
    Method("jobs.retry", "write", jobs.OneJob, jobs.JobFound, "Try a job again that was not done."),
    Method(
        "schedules.add", "write", jobs_module.SchedulesAdd, jobs_module.ScheduleFound, "Have a task done over and over."
    ),
    Method("schedules.list", "read", Nothing, jobs_module.SchedulesFound, "Tasks that recur."),
    Method("schedules.pause", "write", jobs_module.SchedulesPause, jobs_module.ScheduleFound, "Let a schedule rest."),
    Method("schedules.run", "write", jobs_module.OneSchedule, jobs.JobFound, "Do the task of a schedule now."),
    Method("schedules.remove", "write", jobs_module.OneSchedule, Done, "Remove a schedule."),
    Method("approvals.list", "read", Nothing, sessions.ApprovalsFound, "Questions that wait for an answer."),
    Method("approvals.resolve", "approve", sessions.ApprovalsResolve, Done, "Answer a question."),
    Method("exec.approve", "approve", sessions.ExecAnswer, Done, "Say yes to a question, once."),
    Method("exec.deny", "approve", sessions.ExecAnswer, Done, "Say no to a question."),
    Method("agents.list", "read", Nothing, admin.AgentsFound, "All agents."),
    Method("agents.get", "read", admin.OneAgent, admin.AgentFound, "One agent."),
    Method("models.list", "read", Nothing, admin.ModelsFound, "The models that agents speak with."),
    Method("tools.list", "read", admin.ToolsList, admin.ToolsFound, "Tools, and whether they may be used."),
    Method("tools.matrix", "read", Nothing, admin.Matrix, "Agents and tools: yes, no or ask."),
    Method("tools.invoke", "write", admin.ToolsInvoke, admin.Called, "Call a tool, without a model.", waits=True),
    Method("mcp.servers", "read", Nothing, admin.ForeignServers, "MCP servers, and whether they may be used."),
    Method("audit.list", "read", admin.AuditList, admin.AuditPage, "Lines of the audit log, the latest first."),
    Method("audit.subscribe", "read", Nothing, Done, "Hear new lines of the audit log."),
    Method("audit.verify", "read", Nothing, admin.AuditVerified, "Is the audit log's chain whole?", waits=True),
    Method("usage.summary", "read", admin.UsageSummary, admin.UsageFound, "Tokens and cost, summed."),
    Method("usage.tools", "read", admin.UsageTools, admin.ToolsUsed, "Calls of tools, counted.", waits=True),
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
    Method("limits.get", "read", Nothing, admin.LimitsFound, "The limits of tool calls, and what is used."),
    Method("users.list", "read", Nothing, admin.UsersFound, "Who belongs here."),
    Method("users.put", "admin", admin.UsersPut, admin.UserFound, "Add somebody, or change them."),
    Method("users.remove", "admin", admin.OneUser, Done, "Remove somebody."),
    Method("plans.list", "read", Nothing, admin.PlansFound, "The plans that there are."),
    Method("plans.put", "admin", admin.PlansPut, admin.PlanFound, "Make a plan, or change one."),
    Method("tenants.get", "read", Nothing, admin.TenantFound, "The plan, and how much of it is used."),
    Method("tenants.update", "admin", admin.TenantsUpdate, admin.TenantFound, "Have another plan."),
    Method("tenants.list", "admin", Nothing, admin.TenantsFound, "The tenants of this store."),
    Method("config.get", "admin", Nothing, admin.ConfigFound, "The settings in force, without secrets."),
    Method("tokens.rotate", "admin", Nothing, admin.TokenMade, "Make a new token; the old one ends at once."),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
