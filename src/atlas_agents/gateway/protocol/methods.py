"""The methods of the protocol: scope, parameters, result and description of each."""

import msgspec

from atlas_agents.gateway.protocol import admin, chat, jobs, knowledge, sessions
from atlas_agents.gateway.protocol import chat as chat_module
from atlas_agents.gateway.protocol import jobs as jobs_module
from atlas_agents.gateway.protocol.types import Done, Nothing, Scope, WireStruct


class Method(msgspec.Struct, frozen=True):
    """One method. `waits` if its response may take long, so that it must not block other requests on the socket."""

    name: str
    scope: Scope
    params: type[WireStruct]
    result: type[WireStruct]
    purpose: str
    waits: bool = False


_ALL = (
    Method("health.check", "read", Nothing, admin.Health, "Check that the server is healthy."),
    Method("system.info", "read", Nothing, admin.SystemInfo, "Server version, features and limits."),
    Method("chat.send", "write", chat.ChatSend, chat.Sent, "Send a message; the answer follows as events."),
    Method("chat.abort", "write", chat.ChatAbort, chat.Aborted, "Cancel a run, or all runs of a session."),
    Method("chat.history", "read", chat.ChatHistory, chat.ChatHistoryPage, "Messages of a session."),
    Method("chat.wait", "read", chat.ChatWait, chat.Waited, "Wait until a run has ended.", waits=True),
    Method("sessions.create", "write", sessions.SessionsCreate, sessions.Created, "Create a session."),
    Method("sessions.list", "read", sessions.SessionsList, sessions.SessionPage, "List sessions, latest change first."),
    Method("sessions.get", "read", sessions.OneSession, sessions.SessionFound, "A session and its last messages."),
    Method("sessions.update", "write", sessions.SessionsUpdate, sessions.SessionChanged, "Update a session."),
    Method("sessions.delete", "write", sessions.OneSession, Done, "Delete a session and its contents."),
    Method(
        "sessions.subscribe",
        "read",
        sessions.SessionsSubscribe,
        sessions.Subscribed,
        "Subscribe to the events of a session.",
    ),
    Method("sessions.unsubscribe", "read", sessions.OneSession, Done, "Unsubscribe from a session."),
    Method(
        "sessions.fork",
        "write",
        sessions.SessionsFork,
        sessions.Created,
        "Copy a session up to a message into a new one.",
    ),
    Method(
        "sessions.search",
        "read",
        sessions.SessionsSearch,
        sessions.Hits,
        "Search sessions by name and content.",
        waits=True,
    ),
    Method("sessions.export", "read", sessions.SessionsExport, sessions.Exported, "Export a session as JSON lines."),
    Method("sessions.import", "write", sessions.SessionsImport, sessions.Imported, "Import an exported session."),
    Method("runs.list", "read", chat_module.RunsList, chat_module.RunsFound, "List runs, latest first."),
    Method("runs.get", "read", chat_module.OneRun, chat_module.RunFound, "A run with its steps."),
    Method("jobs.list", "read", jobs.JobsList, jobs.JobPage, "List delegated and scheduled jobs, latest first."),
    Method("jobs.get", "read", jobs.OneJob, jobs.JobFound, "A job."),
    Method("jobs.cancel", "write", jobs.OneJob, jobs.JobFound, "Cancel a job and the jobs it created."),
    Method("jobs.retry", "write", jobs.OneJob, jobs.JobFound, "Retry a job that failed."),
    Method("schedules.add", "write", jobs_module.SchedulesAdd, jobs_module.ScheduleFound, "Create a recurring task."),
    Method("schedules.list", "read", Nothing, jobs_module.SchedulesFound, "List recurring tasks."),
    Method(
        "schedules.pause", "write", jobs_module.SchedulesPause, jobs_module.ScheduleFound, "Pause or resume a schedule."
    ),
    Method("schedules.run", "write", jobs_module.OneSchedule, jobs.JobFound, "Run the task of a schedule now."),
    Method("schedules.remove", "write", jobs_module.OneSchedule, Done, "Delete a schedule."),
    Method("approvals.list", "read", Nothing, sessions.ApprovalsFound, "List pending approvals."),
    Method("approvals.resolve", "approve", sessions.ApprovalsResolve, Done, "Resolve an approval."),
    Method("exec.approve", "approve", sessions.ExecAnswer, Done, "Approve a request once."),
    Method("exec.deny", "approve", sessions.ExecAnswer, Done, "Deny a request."),
    Method("agents.list", "read", Nothing, admin.AgentsFound, "List all agents."),
    Method("agents.get", "read", admin.OneAgent, admin.AgentFound, "An agent."),
    Method("models.list", "read", Nothing, admin.ModelsFound, "List the models that agents use."),
    Method("tools.list", "read", admin.ToolsList, admin.ToolsFound, "List tools and their permissions."),
    Method("tools.matrix", "read", Nothing, admin.Matrix, "Permissions by agent and tool: yes, no or ask."),
    Method("tools.invoke", "write", admin.ToolsInvoke, admin.Called, "Call a tool without a model.", waits=True),
    Method("mcp.servers", "read", Nothing, admin.ForeignServers, "List MCP servers and their status."),
    Method("audit.list", "read", admin.AuditList, admin.AuditPage, "List audit entries, latest first."),
    Method("audit.subscribe", "read", Nothing, Done, "Subscribe to new audit entries."),
    Method("audit.verify", "read", Nothing, admin.AuditVerified, "Verify the hash chain of the audit log.", waits=True),
    Method("usage.summary", "read", admin.UsageSummary, admin.UsageFound, "Sums of tokens and cost."),
    Method("usage.tools", "read", admin.UsageTools, admin.ToolsUsed, "Number of tool calls by day.", waits=True),
    Method(
        "knowledge.list",
        "read",
        knowledge.KnowledgeList,
        knowledge.DocumentsFound,
        "List the documents of the knowledge base.",
    ),
    Method(
        "knowledge.search",
        "read",
        knowledge.KnowledgeSearch,
        knowledge.PassagesFound,
        "Search for passages.",
        waits=True,
    ),
    Method("knowledge.add", "admin", knowledge.KnowledgeAdd, knowledge.Ingested, "Ingest files or a URL.", waits=True),
    Method(
        "knowledge.refresh",
        "admin",
        knowledge.KnowledgeRefresh,
        knowledge.Ingested,
        "Ingest changed documents again.",
        waits=True,
    ),
    Method("knowledge.remove", "admin", knowledge.KnowledgeRemove, knowledge.Removed, "Remove documents."),
    Method(
        "memories.list", "read", knowledge.MemoriesList, knowledge.MemoriesFound, "List an agent's memories about you."
    ),
    Method("memories.forget", "write", knowledge.MemoriesForget, Done, "Delete a memory of an agent."),
    Method("limits.get", "read", Nothing, admin.LimitsFound, "Limits of tool calls and current usage."),
    Method("users.list", "read", Nothing, admin.UsersFound, "List users."),
    Method("users.put", "admin", admin.UsersPut, admin.UserFound, "Create or update a user."),
    Method("users.remove", "admin", admin.OneUser, Done, "Remove a user."),
    Method("plans.list", "read", Nothing, admin.PlansFound, "List plans."),
    Method("plans.put", "admin", admin.PlansPut, admin.PlanFound, "Create or update a plan."),
    Method("tenants.get", "read", Nothing, admin.TenantFound, "The tenant's plan and usage."),
    Method("tenants.update", "admin", admin.TenantsUpdate, admin.TenantFound, "Switch to another plan."),
    Method("tenants.list", "admin", Nothing, admin.TenantsFound, "List the tenants of this store."),
    Method("config.get", "admin", Nothing, admin.ConfigFound, "The effective settings, without secrets."),
    Method(
        "tokens.rotate",
        "admin",
        Nothing,
        admin.TokenMade,
        "Replace the main token; the old one becomes invalid at once.",
    ),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
