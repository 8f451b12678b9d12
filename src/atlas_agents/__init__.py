"""Atlas Agents: build, govern and run LLM agents. What is listed here is the public face; the rest may move."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atlas_agents.agents.agent import Agent, agent
    from atlas_agents.agents.atlas import Atlas
    from atlas_agents.agents.context import Context, Rule, TurnContext
    from atlas_agents.agents.history import Compaction, History
    from atlas_agents.agents.hooks import Interceptor
    from atlas_agents.agents.jobs import Jobs
    from atlas_agents.agents.run import Accepted, CallResult, RunResult, Step
    from atlas_agents.agents.sessions import Sessions
    from atlas_agents.agents.stream import AtlasStream
    from atlas_agents.core.approvals import Answer, Choice, Field, Filled, Form, Question
    from atlas_agents.core.budgets import Budget, BudgetStatus
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
    from atlas_agents.core.events import Event, PlanStep, Usage
    from atlas_agents.core.messages import (
        Conversation,
        File,
        Image,
        Message,
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
    from atlas_agents.core.store import JobRow
    from atlas_agents.core.tenancy import Delegation, Plan, Tenancy, User
    from atlas_agents.local.provider import LocalProvider
    from atlas_agents.providers.anthropic import AnthropicProvider
    from atlas_agents.providers.base import (
        Capabilities,
        Chunk,
        DoneChunk,
        Provider,
        Request,
        TextChunk,
        ThinkingChunk,
        ToolCallChunk,
    )
    from atlas_agents.providers.catalogue import Price, register_model
    from atlas_agents.providers.failover import RetryPolicy
    from atlas_agents.providers.gemini import GeminiProvider
    from atlas_agents.providers.http import Timeouts
    from atlas_agents.providers.openai import OpenAIProvider
    from atlas_agents.providers.openai_responses import OpenAIResponsesProvider
    from atlas_agents.providers.rate_limits import RateLimit
    from atlas_agents.providers.registry import Balanced, ModelRef, parse_model_ref
    from atlas_agents.providers.settings import ModelSettings
    from atlas_agents.providers.testing import Cassette
    from atlas_agents.tools.approvals import Approvals
    from atlas_agents.tools.audit import AuditLog, MemoryAudit, verify, what_if
    from atlas_agents.tools.context import ToolContext
    from atlas_agents.tools.limits import Limits
    from atlas_agents.tools.pipeline import Happened, NotHappened
    from atlas_agents.tools.policy import Actor, PermissionGrant, Policy, Verdict
    from atlas_agents.tools.registry import ToolRegistry
    from atlas_agents.tools.tool import Tool, tool

__all__ = [
    "Accepted",
    "Actor",
    "Agent",
    "Answer",
    "AnthropicProvider",
    "Approvals",
    "Atlas",
    "AtlasError",
    "AtlasStream",
    "AuditLog",
    "BadArguments",
    "BadModelRef",
    "BadOutput",
    "BadTool",
    "Balanced",
    "BrokenHistory",
    "Budget",
    "BudgetExceeded",
    "BudgetStatus",
    "CallResult",
    "Cancelled",
    "Capabilities",
    "Cassette",
    "Choice",
    "Chunk",
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
    "Event",
    "Field",
    "File",
    "Filled",
    "Form",
    "GeminiProvider",
    "Happened",
    "History",
    "Image",
    "Interceptor",
    "JobRow",
    "Jobs",
    "Limits",
    "LocalProvider",
    "MemoryAudit",
    "Message",
    "Metadata",
    "MissingKey",
    "ModelRef",
    "ModelSettings",
    "ModelUnavailable",
    "NotFound",
    "NotHappened",
    "NotPermitted",
    "Opaque",
    "OpenAIProvider",
    "OpenAIResponsesProvider",
    "Part",
    "PermissionGrant",
    "Plan",
    "PlanStep",
    "Policy",
    "Price",
    "PromptFailed",
    "Provider",
    "ProviderError",
    "Question",
    "QuotaExceeded",
    "RateLimit",
    "Refused",
    "Request",
    "RetryPolicy",
    "Rule",
    "RunResult",
    "SessionBusy",
    "Sessions",
    "Step",
    "StoreError",
    "Tenancy",
    "Text",
    "TextChunk",
    "Thinking",
    "ThinkingChunk",
    "Timeouts",
    "Tool",
    "ToolCall",
    "ToolCallChunk",
    "ToolContext",
    "ToolFailed",
    "ToolFault",
    "ToolRegistry",
    "ToolResult",
    "ToolSpec",
    "Transient",
    "TurnContext",
    "UnknownAgent",
    "Usage",
    "User",
    "Verdict",
    "agent",
    "assistant",
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
    "agents.hooks": "Interceptor",
    "agents.jobs": "Jobs",
    "agents.run": "Accepted CallResult RunResult Step",
    "agents.sessions": "Sessions",
    "agents.stream": "AtlasStream",
    "core.approvals": "Answer Choice Field Filled Form Question",
    "core.budgets": "Budget BudgetStatus",
    "core.errors": (
        "AtlasError BadArguments BadModelRef BadOutput BadTool BrokenHistory BudgetExceeded Cancelled ConfigError "
        "Conflict ContextCycle CrashLoop Declined DuplicateTool MissingKey ModelUnavailable NotFound NotPermitted "
        "PromptFailed ProviderError QuotaExceeded Refused SessionBusy StoreError ToolFailed ToolFault "
        "Transient UnknownAgent"
    ),
    "core.events": "Event PlanStep Usage",
    "core.messages": (
        "Conversation File Image Message Opaque Part Text Thinking ToolCall ToolResult ToolSpec assistant system "
        "tool:tool_message user"
    ),
    "core.metadata": "Metadata",
    "core.store": "JobRow",
    "core.tenancy": "Delegation Plan Tenancy User",
    "local.provider": "LocalProvider",
    "providers.anthropic": "AnthropicProvider",
    "providers.base": "Capabilities Chunk DoneChunk Provider Request TextChunk ThinkingChunk ToolCallChunk",
    "providers.catalogue": "Price register_model",
    "providers.failover": "RetryPolicy",
    "providers.gemini": "GeminiProvider",
    "providers.http": "Timeouts",
    "providers.openai": "OpenAIProvider",
    "providers.openai_responses": "OpenAIResponsesProvider",
    "providers.rate_limits": "RateLimit",
    "providers.registry": "Balanced ModelRef parse_model_ref",
    "providers.settings": "ModelSettings",
    "providers.testing": "Cassette",
    "tools.approvals": "Approvals",
    "tools.audit": "AuditLog MemoryAudit verify what_if",
    "tools.context": "ToolContext",
    "tools.limits": "Limits",
    "tools.pipeline": "Happened NotHappened",
    "tools.policy": "Actor PermissionGrant Policy Verdict",
    "tools.registry": "ToolRegistry",
    "tools.tool": "Tool tool",
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
