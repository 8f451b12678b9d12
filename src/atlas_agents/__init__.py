"""Atlas Agents: build, govern and run LLM agents. The names that are listed here are public and stay compatible.

The stores are not in `__all__`, because `import *` would load their database drivers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atlas_agents.agents.agent import Agent, agent
    from atlas_agents.agents.atlas import Atlas
    from atlas_agents.agents.context import Context, Rule, TurnContext
    from atlas_agents.agents.history import Compaction, History
    from atlas_agents.agents.hooks import Interceptor, Listener, offered_on
    from atlas_agents.agents.jobs import Jobs
    from atlas_agents.agents.options import AgentSettings, Mode, WhenBusy
    from atlas_agents.agents.run import Accepted, CallResult, RunResult, Step
    from atlas_agents.agents.schedules import next_due_times
    from atlas_agents.agents.sessions import Sessions
    from atlas_agents.agents.stream import AtlasStream, SyncStream
    from atlas_agents.core.approvals import Answer, Choice, Field, Filled, Form, Question
    from atlas_agents.core.budgets import Budget, BudgetLike, BudgetStatus
    from atlas_agents.core.errors import (
        AtlasError,
        BadArguments,
        BadModelRef,
        BadOutput,
        BadTool,
        BrokenHistory,
        BudgetExceeded,
        Cancelled,
        ConfigError,
        Conflict,
        ContextCycle,
        CrashLoop,
        Declined,
        DuplicateTool,
        MissingKey,
        ModelUnavailable,
        NotFound,
        NotPermitted,
        PromptFailed,
        ProviderError,
        QuotaExceeded,
        Refused,
        SessionBusy,
        StoreError,
        ToolFailed,
        ToolFault,
        Transient,
        UnknownAgent,
    )
    from atlas_agents.core.events import (
        ApprovalAnswered,
        ApprovalAsked,
        ClientToolsCalled,
        ErrorRaised,
        Event,
        EventName,
        HandedOff,
        MessageReceived,
        MessageSent,
        MessageSteered,
        MessageStored,
        PlanStep,
        PlanUpdated,
        SessionCompacted,
        StateChanged,
        StreamChunk,
        StreamEnd,
        StreamReset,
        StreamStart,
        StreamThinking,
        ToolAnswered,
        ToolCalled,
        ToolProgress,
        Usage,
    )
    from atlas_agents.core.messages import (
        Conversation,
        File,
        Image,
        Message,
        MessageLike,
        Opaque,
        Part,
        Text,
        Thinking,
        ToolCall,
        ToolResult,
        ToolSpec,
        assistant,
        system,
        user,
    )
    from atlas_agents.core.messages import tool as tool_message
    from atlas_agents.core.metadata import Metadata
    from atlas_agents.core.store import JobRow, Schedule, Session, Store
    from atlas_agents.core.telemetry import OpenTelemetry
    from atlas_agents.core.tenancy import Delegation, Plan, Tenancy, User
    from atlas_agents.local.provider import LocalProvider
    from atlas_agents.providers.anthropic import AnthropicProvider
    from atlas_agents.providers.base import (
        BaseProvider,
        Capabilities,
        Chunk,
        DoneChunk,
        OpaqueChunk,
        Provider,
        Request,
        ResetChunk,
        TextChunk,
        ThinkingChunk,
        ToolCallChunk,
    )
    from atlas_agents.providers.catalogue import (
        ModelProfile,
        ModelRef,
        Price,
        find_price,
        find_profile,
        parse_model_ref,
        register_model,
    )
    from atlas_agents.providers.failover import RetryPolicy
    from atlas_agents.providers.gemini import GeminiProvider
    from atlas_agents.providers.http import Timeouts
    from atlas_agents.providers.openai import OpenAIProvider
    from atlas_agents.providers.openai_responses import OpenAIResponsesProvider
    from atlas_agents.providers.rate_limits import RateLimit
    from atlas_agents.providers.registry import Balanced, Model, Registry
    from atlas_agents.providers.settings import GivenSettings, ModelSettings
    from atlas_agents.providers.testing import Cassette
    from atlas_agents.storage.hash_chain import AuditSigner
    from atlas_agents.storage.postgres import PostgresStore as PostgresStore
    from atlas_agents.storage.sqlite import MemoryStore as MemoryStore
    from atlas_agents.storage.sqlite import SqliteStore as SqliteStore
    from atlas_agents.tools.approvals import Approvals
    from atlas_agents.tools.audit import AuditLog, MemoryAudit, verify, what_if
    from atlas_agents.tools.client_tools import ClientResult, ClientTool, ClientTools
    from atlas_agents.tools.context import ToolContext
    from atlas_agents.tools.limits import Limits
    from atlas_agents.tools.pipeline import Happened, NotHappened
    from atlas_agents.tools.policy import Actor, PermissionGrant, Policy, Verdict
    from atlas_agents.tools.registry import ToolRegistry
    from atlas_agents.tools.tool import Tool, Toolset, tool

__all__ = [
    "Accepted",
    "Actor",
    "Agent",
    "AgentSettings",
    "Answer",
    "AnthropicProvider",
    "ApprovalAnswered",
    "ApprovalAsked",
    "Approvals",
    "Atlas",
    "AtlasError",
    "AtlasStream",
    "AuditLog",
    "AuditSigner",
    "BadArguments",
    "BadModelRef",
    "BadOutput",
    "BadTool",
    "Balanced",
    "BaseProvider",
    "BrokenHistory",
    "Budget",
    "BudgetExceeded",
    "BudgetLike",
    "BudgetStatus",
    "CallResult",
    "Cancelled",
    "Capabilities",
    "Cassette",
    "Choice",
    "Chunk",
    "ClientResult",
    "ClientTool",
    "ClientTools",
    "ClientToolsCalled",
    "Compaction",
    "ConfigError",
    "Conflict",
    "Context",
    "ContextCycle",
    "Conversation",
    "CrashLoop",
    "Declined",
    "Delegation",
    "DoneChunk",
    "DuplicateTool",
    "ErrorRaised",
    "Event",
    "EventName",
    "Field",
    "File",
    "Filled",
    "Form",
    "GeminiProvider",
    "GivenSettings",
    "HandedOff",
    "Happened",
    "History",
    "Image",
    "Interceptor",
    "JobRow",
    "Jobs",
    "Limits",
    "Listener",
    "LocalProvider",
    "MemoryAudit",
    "Message",
    "MessageLike",
    "MessageReceived",
    "MessageSent",
    "MessageSteered",
    "MessageStored",
    "Metadata",
    "MissingKey",
    "Mode",
    "Model",
    "ModelProfile",
    "ModelRef",
    "ModelSettings",
    "ModelUnavailable",
    "NotFound",
    "NotHappened",
    "NotPermitted",
    "Opaque",
    "OpaqueChunk",
    "OpenAIProvider",
    "OpenAIResponsesProvider",
    "OpenTelemetry",
    "Part",
    "PermissionGrant",
    "Plan",
    "PlanStep",
    "PlanUpdated",
    "Policy",
    "Price",
    "PromptFailed",
    "Provider",
    "ProviderError",
    "Question",
    "QuotaExceeded",
    "RateLimit",
    "Refused",
    "Registry",
    "Request",
    "ResetChunk",
    "RetryPolicy",
    "Rule",
    "RunResult",
    "Schedule",
    "Session",
    "SessionBusy",
    "SessionCompacted",
    "Sessions",
    "StateChanged",
    "Step",
    "Store",
    "StoreError",
    "StreamChunk",
    "StreamEnd",
    "StreamReset",
    "StreamStart",
    "StreamThinking",
    "SyncStream",
    "Tenancy",
    "Text",
    "TextChunk",
    "Thinking",
    "ThinkingChunk",
    "Timeouts",
    "Tool",
    "ToolAnswered",
    "ToolCall",
    "ToolCallChunk",
    "ToolCalled",
    "ToolContext",
    "ToolFailed",
    "ToolFault",
    "ToolProgress",
    "ToolRegistry",
    "ToolResult",
    "ToolSpec",
    "Toolset",
    "Transient",
    "TurnContext",
    "UnknownAgent",
    "Usage",
    "User",
    "Verdict",
    "WhenBusy",
    "agent",
    "assistant",
    "find_price",
    "find_profile",
    "next_due_times",
    "offered_on",
    "parse_model_ref",
    "register_model",
    "system",
    "tool",
    "tool_message",
    "user",
    "verify",
    "what_if",
]

_HOMES = {
    "agents.agent": "Agent agent",
    "agents.atlas": "Atlas",
    "agents.context": "Context Rule TurnContext",
    "agents.history": "Compaction History",
    "agents.hooks": "Interceptor Listener offered_on",
    "agents.jobs": "Jobs",
    "agents.options": "AgentSettings Mode WhenBusy",
    "agents.run": "Accepted CallResult RunResult Step",
    "agents.schedules": "next_due_times",
    "agents.sessions": "Sessions",
    "agents.stream": "AtlasStream SyncStream",
    "core.approvals": "Answer Choice Field Filled Form Question",
    "core.budgets": "Budget BudgetLike BudgetStatus",
    "core.errors": (
        "AtlasError BadArguments BadModelRef BadOutput BadTool BrokenHistory BudgetExceeded Cancelled ConfigError "
        "Conflict ContextCycle CrashLoop Declined DuplicateTool MissingKey ModelUnavailable NotFound NotPermitted "
        "PromptFailed ProviderError QuotaExceeded Refused SessionBusy StoreError ToolFailed ToolFault Transient "
        "UnknownAgent"
    ),
    "core.events": (
        "ApprovalAnswered ApprovalAsked ClientToolsCalled ErrorRaised Event EventName HandedOff MessageReceived "
        "MessageSent MessageSteered MessageStored PlanStep PlanUpdated SessionCompacted StateChanged StreamChunk "
        "StreamEnd StreamReset StreamStart StreamThinking ToolAnswered ToolCalled ToolProgress Usage"
    ),
    "core.messages": (
        "Conversation File Image Message MessageLike Opaque Part Text Thinking ToolCall ToolResult ToolSpec assistant "
        "system tool:tool_message user"
    ),
    "core.metadata": "Metadata",
    "core.store": "JobRow Schedule Session Store",
    "core.telemetry": "OpenTelemetry",
    "core.tenancy": "Delegation Plan Tenancy User",
    "local.provider": "LocalProvider",
    "providers.anthropic": "AnthropicProvider",
    "providers.base": (
        "BaseProvider Capabilities Chunk DoneChunk OpaqueChunk Provider Request ResetChunk TextChunk ThinkingChunk "
        "ToolCallChunk"
    ),
    "providers.catalogue": "ModelProfile ModelRef Price find_price find_profile parse_model_ref register_model",
    "providers.failover": "RetryPolicy",
    "providers.gemini": "GeminiProvider",
    "providers.http": "Timeouts",
    "providers.openai": "OpenAIProvider",
    "providers.openai_responses": "OpenAIResponsesProvider",
    "providers.rate_limits": "RateLimit",
    "providers.registry": "Balanced Model Registry",
    "providers.settings": "GivenSettings ModelSettings",
    "providers.testing": "Cassette",
    "storage.hash_chain": "AuditSigner",
    "storage.postgres": "PostgresStore",
    "storage.sqlite": "MemoryStore SqliteStore",
    "tools.approvals": "Approvals",
    "tools.audit": "AuditLog MemoryAudit verify what_if",
    "tools.client_tools": "ClientResult ClientTool ClientTools",
    "tools.context": "ToolContext",
    "tools.limits": "Limits",
    "tools.pipeline": "Happened NotHappened",
    "tools.policy": "Actor PermissionGrant Policy Verdict",
    "tools.registry": "ToolRegistry",
    "tools.tool": "Tool Toolset tool",
}
"""Where each name lives. A module is loaded when one of its names is first used: the command, a client or a worker that
needs a little of the package does not pay for all of it."""


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        for each in names.split():
            there, _, here = each.partition(":")
            if name == (here or there):
                found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), there)
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
