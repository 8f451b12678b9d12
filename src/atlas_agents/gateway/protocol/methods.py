"""The methods of the protocol: scope, parameters, result and description of each."""

import msgspec

from atlas_agents.gateway.protocol import admin, chat, jobs, knowledge, sessions
from atlas_agents.gateway.protocol.types import Ack, NoParams, RemovalResult, Scope, WireStruct


class Method(msgspec.Struct, frozen=True):
    """One method. `is_slow` if its response may take long, so that it must not block other requests on the socket."""

    name: str
    scope: Scope
    params: type[WireStruct]
    result: type[WireStruct]
    purpose: str
    is_slow: bool = False


_ALL = (
    Method("health.check", "read", NoParams, admin.Health, "Check that the server is healthy."),
    Method("system.info", "read", NoParams, admin.SystemInfo, "Server version, features and limits."),
    Method("chat.send", "write", chat.ChatSend, chat.Sent, "Send a message; the answer follows as events."),
    Method("chat.postResults", "write", chat.PostResults, Ack, "Post results of tools that the client of a turn ran."),
    Method("chat.abort", "write", chat.ChatAbort, chat.Aborted, "Cancel a run, or all runs of a session."),
    Method("chat.history", "read", chat.ChatHistory, chat.ChatHistoryPage, "Messages of a session."),
    Method("chat.wait", "read", chat.ChatWait, chat.Waited, "Wait until a run has ended.", is_slow=True),
    Method("sessions.create", "write", sessions.SessionsCreate, sessions.Created, "Create a session."),
    Method("sessions.list", "read", sessions.SessionsList, sessions.SessionPage, "List sessions, latest change first."),
    Method("sessions.get", "read", sessions.OneSession, sessions.SessionResult, "A session and its last messages."),
    Method("sessions.update", "write", sessions.SessionsUpdate, sessions.SessionChanged, "Update a session."),
    Method("sessions.delete", "write", sessions.OneSession, Ack, "Delete a session and its contents.", is_slow=True),
    Method(
        "sessions.subscribe",
        "read",
        sessions.SessionsSubscribe,
        sessions.Subscribed,
        "Subscribe to the events of a session.",
    ),
    Method("sessions.unsubscribe", "read", sessions.OneSession, Ack, "Unsubscribe from a session."),
    Method(
        "sessions.fork",
        "write",
        sessions.SessionsFork,
        sessions.Created,
        "Copy a session up to a message into a new one.",
        is_slow=True,
    ),
    Method(
        "sessions.branches",
        "read",
        sessions.OneSession,
        sessions.Branches,
        "List the versions of a session that editing a message has made, oldest first, with the session itself.",
        is_slow=True,
    ),
    Method(
        "sessions.search",
        "read",
        sessions.SessionsSearch,
        sessions.Hits,
        "Search sessions by name and content.",
        is_slow=True,
    ),
    Method("sessions.export", "read", sessions.SessionsExport, sessions.Exported, "Export a session as JSON lines."),
    Method(
        "sessions.import",
        "write",
        sessions.SessionsImport,
        sessions.Imported,
        "Import an exported session.",
        is_slow=True,
    ),
    Method("runs.list", "read", chat.RunsList, chat.RunsResult, "List runs, latest first.", is_slow=True),
    Method("runs.get", "read", chat.OneRun, chat.RunDetails, "A run with its steps."),
    Method("jobs.list", "read", jobs.JobsList, jobs.JobPage, "List jobs, latest first."),
    Method("jobs.get", "read", jobs.OneJob, jobs.JobResult, "A job."),
    Method("jobs.submit", "write", jobs.JobsSubmit, jobs.JobSubmitted, "Give an agent a task to do in the background."),
    Method("jobs.cancel", "write", jobs.OneJob, jobs.JobResult, "Cancel a job and the jobs it created."),
    Method("jobs.retry", "write", jobs.OneJob, jobs.JobResult, "Retry a job that failed."),
    Method("schedules.add", "write", jobs.SchedulesAdd, jobs.ScheduleResult, "Create a recurring task."),
    Method("schedules.list", "read", NoParams, jobs.SchedulesResult, "List recurring tasks."),
    Method("schedules.pause", "write", jobs.SchedulesPause, jobs.ScheduleResult, "Pause or resume a schedule."),
    Method("schedules.run", "write", jobs.OneSchedule, jobs.JobResult, "Run the task of a schedule now."),
    Method("schedules.remove", "write", jobs.OneSchedule, Ack, "Delete a schedule."),
    Method("approvals.list", "read", NoParams, sessions.ApprovalsResult, "List pending approvals."),
    Method("approvals.resolve", "approve", sessions.ApprovalsResolve, Ack, "Resolve an approval."),
    Method(
        "approvals.resolveMany",
        "approve",
        sessions.ApprovalsResolveMany,
        sessions.ApprovalsResolved,
        "Allow or deny several approvals that were seen.",
    ),
    Method("exec.approve", "approve", sessions.ExecAnswer, Ack, "Approve a request once."),
    Method("exec.deny", "approve", sessions.ExecAnswer, Ack, "Deny a request."),
    Method("agents.list", "read", NoParams, admin.AgentsResult, "List all agents."),
    Method("agents.get", "read", admin.OneAgent, admin.AgentResult, "An agent."),
    Method("agents.put", "admin", admin.AgentsPut, admin.AgentEdited, "Create or change an agent in AGENTS.md."),
    Method("agents.remove", "admin", admin.AgentsRemove, admin.AgentEdited, "Remove an agent from AGENTS.md."),
    Method(
        "agents.tryDraft",
        "admin",
        admin.AgentsTryDraft,
        admin.DraftAnswer,
        "Send a message to an unsaved agent; only tools without side effects are offered.",
        is_slow=True,
    ),
    Method("policy.get", "read", NoParams, admin.PolicyResult, "Permissions by tool, and who they apply to."),
    Method(
        "policy.simulate",
        "admin",
        admin.PolicySimulate,
        admin.PolicySimulated,
        "Try changed permissions with the recorded calls.",
        is_slow=True,
    ),
    Method("policy.put", "admin", admin.PolicyPut, admin.PolicyEdited, "Save changed permissions."),
    Method("models.list", "read", NoParams, admin.ModelsResult, "List the models that agents use or chats can choose."),
    Method("setup.status", "admin", NoParams, admin.SetupStatus, "The model in use, and what was found.", is_slow=True),
    Method(
        "providers.list",
        "admin",
        NoParams,
        admin.ProvidersResult,
        "Providers and the state of their keys.",
        is_slow=True,
    ),
    Method(
        "providers.test", "admin", admin.ProvidersTest, admin.ProviderTested, "Test a key or an address.", is_slow=True
    ),
    Method("secrets.put", "admin", admin.SecretsPut, admin.ProviderResult, "Store the API key of a provider."),
    Method("secrets.remove", "admin", admin.SecretsRemove, admin.ProviderResult, "Remove a stored API key."),
    Method("models.select", "admin", admin.ModelsSelect, admin.ModelSelected, "Choose the model of agents."),
    Method("models.offer", "admin", admin.ModelsOffer, admin.ModelsOffered, "Choose the models that chats can use."),
    Method("models.download", "admin", admin.ModelsDownload, admin.LocalModelResult, "Download a local model."),
    Method("models.pause", "admin", admin.OneLocalModel, admin.LocalModelResult, "Pause a download."),
    Method("tools.list", "read", admin.ToolsList, admin.ToolsResult, "List tools and their permissions."),
    Method("tools.matrix", "read", NoParams, admin.Matrix, "Permissions by agent and tool: yes, no or ask."),
    Method("tools.invoke", "write", admin.ToolsInvoke, admin.Called, "Call a tool without a model.", is_slow=True),
    Method("mcp.servers", "read", NoParams, admin.McpServersResult, "List MCP servers and their status."),
    Method("mcp.catalog", "admin", NoParams, admin.McpCatalog, "List well-known MCP servers."),
    Method("mcp.put", "admin", admin.McpPut, admin.McpServerResult, "Add or change an MCP server; starts nothing."),
    Method("mcp.remove", "admin", admin.McpRemove, admin.McpServerResult, "Remove an MCP server."),
    Method(
        "mcp.inspect",
        "admin",
        admin.McpInspect,
        admin.McpInspection,
        "Show what an MCP server runs; then start it and list its tools.",
        is_slow=True,
    ),
    Method(
        "mcp.approve",
        "admin",
        admin.McpApprove,
        admin.McpServerResult,
        "Approve tools of an MCP server as they were shown.",
        is_slow=True,
    ),
    Method("mcp.login", "admin", admin.OneMcpServer, admin.McpLogin, "Start a login to an MCP server.", is_slow=True),
    Method("mcp.logout", "admin", admin.OneMcpServer, Ack, "Log out of an MCP server, or cancel a login."),
    Method("channels.list", "admin", NoParams, admin.ChannelsResult, "List channels and the people paired with them."),
    Method("channels.put", "admin", admin.ChannelsPut, admin.ChannelResult, "Store the bot token of a channel."),
    Method("channels.test", "admin", admin.ChannelsTest, admin.ChannelTested, "Test a bot token.", is_slow=True),
    Method("channels.pair", "admin", admin.ChannelsPair, admin.PersonResult, "Pair the person who has a code."),
    Method("channels.unpair", "admin", admin.ChannelsUnpair, RemovalResult, "Remove a person from a channel."),
    Method("audit.list", "read", admin.AuditList, admin.AuditPage, "List audit entries, latest first.", is_slow=True),
    Method("audit.subscribe", "read", NoParams, Ack, "Subscribe to new audit entries."),
    Method(
        "audit.verify", "read", NoParams, admin.AuditVerified, "Verify the hash chain of the audit log.", is_slow=True
    ),
    Method("usage.summary", "read", admin.UsageSummary, admin.UsageResult, "Sums of tokens and cost.", is_slow=True),
    Method("usage.tools", "read", admin.UsageTools, admin.ToolsUsed, "Number of tool calls by day.", is_slow=True),
    Method(
        "knowledge.list",
        "read",
        knowledge.KnowledgeList,
        knowledge.DocumentPage,
        "List the documents of the knowledge base, latest first.",
    ),
    Method(
        "knowledge.search",
        "read",
        knowledge.KnowledgeSearch,
        knowledge.PassagesResult,
        "Search for passages.",
        is_slow=True,
    ),
    Method(
        "knowledge.add", "admin", knowledge.KnowledgeAdd, knowledge.Ingested, "Ingest files or a URL.", is_slow=True
    ),
    Method(
        "knowledge.refresh",
        "admin",
        knowledge.KnowledgeRefresh,
        knowledge.Ingested,
        "Ingest changed documents again.",
        is_slow=True,
    ),
    Method("knowledge.remove", "admin", knowledge.KnowledgeRemove, knowledge.Removed, "Remove documents."),
    Method(
        "memories.list", "read", knowledge.MemoriesList, knowledge.MemoriesResult, "List an agent's memories about you."
    ),
    Method(
        "memory.search", "read", knowledge.MemorySearch, knowledge.MemoryMatches, "Find an agent's memories about you."
    ),
    Method("memories.forget", "write", knowledge.MemoriesForget, Ack, "Delete a memory of an agent."),
    Method("memories.put", "write", knowledge.MemoriesPut, knowledge.MemoryResult, "Change the text of a memory."),
    Method("memories.clear", "write", knowledge.MemoriesClear, knowledge.Removed, "Delete an agent's memories of you."),
    Method("limits.get", "read", NoParams, admin.LimitsResult, "Limits of tool calls and current usage."),
    Method("users.list", "read", NoParams, admin.UsersResult, "List users.", is_slow=True),
    Method("users.put", "admin", admin.UsersPut, admin.UserResult, "Create or update a user."),
    Method("users.remove", "admin", admin.UsersRemove, RemovalResult, "Remove a user."),
    Method(
        "users.invite", "admin", admin.UsersInvite, admin.UserInvited, "Invite a user with a code that is valid once."
    ),
    Method("plans.list", "read", NoParams, admin.PlansResult, "List plans."),
    Method("plans.put", "admin", admin.PlansPut, admin.PlanResult, "Create or update a plan."),
    Method("tenants.get", "read", NoParams, admin.TenantResult, "The tenant's plan and usage.", is_slow=True),
    Method("tenants.update", "admin", admin.TenantsUpdate, admin.TenantResult, "Switch to another plan."),
    Method("tenants.list", "admin", NoParams, admin.TenantsResult, "List the tenants of this store."),
    Method(
        "evaluations.list", "admin", NoParams, admin.EvaluationsResult, "List evaluations, latest first.", is_slow=True
    ),
    Method(
        "evaluations.get",
        "admin",
        admin.OneEvaluation,
        admin.EvaluationDetails,
        "An evaluation with its results, compared with an earlier one.",
        is_slow=True,
    ),
    Method("ops.status", "admin", NoParams, admin.OpsStatus, "Version, uptime, storage and backups of this gateway."),
    Method(
        "ops.backup", "admin", NoParams, admin.BackupMade, "Back up the database and verify the copy.", is_slow=True
    ),
    Method("ops.doctor", "admin", NoParams, admin.ChecksResult, "Run the checks of `atlas doctor`.", is_slow=True),
    Method("ops.logs", "admin", admin.OpsLogs, admin.LogLines, "The latest lines of the log, newest first."),
    Method("config.get", "admin", NoParams, admin.ConfigResult, "The effective settings, without secrets."),
    Method("tokens.list", "admin", NoParams, admin.TokensResult, "List access tokens, without their values."),
    Method("tokens.create", "admin", admin.TokensCreate, admin.TokenCreated, "Create an access token; shown once."),
    Method(
        "tokens.revoke",
        "admin",
        admin.TokensRevoke,
        RemovalResult,
        "Revoke an access token; it becomes invalid at once.",
    ),
    Method(
        "tokens.rotate",
        "admin",
        NoParams,
        admin.TokenMade,
        "Replace the main token; the old one becomes invalid at once.",
    ),
    Method(
        "devices.list",
        "read",
        NoParams,
        admin.DevicesResult,
        "Your signed-in browsers, and the apps that you allowed with OAuth.",
    ),
    Method(
        "devices.revoke",
        "write",
        admin.OneDevice,
        Ack,
        "Sign out one of your browsers or apps and close its connections.",
    ),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
