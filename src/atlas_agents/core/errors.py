"""Exception hierarchy, and who receives each exception.

AtlasError
├── ConfigError          the developer, at once: names the bad value, where it is and what to do
│   ├── BadModelRef      invalid model reference, or an unknown provider
│   ├── MissingKey       the provider's API key is not set; names the variable
│   ├── UnknownAgent     no agent with that id; lists the known ones
│   ├── DuplicateTool    two tools of one agent share a name
│   ├── BadTool          a tool whose parameters cannot be described as a JSON schema
│   └── ContextCycle     a context that would inherit from itself
├── ProviderError        the caller of ask/send, once retries and failover are exhausted
│   └── ModelUnavailable the caller: a local model is not installed or cannot run
├── BrokenHistory        the caller: a request would have sent a tool call without its result; it was not sent
├── BadOutput            the caller: the answer does not match the schema, even after a repair
├── PromptFailed         the caller: a rule's condition, a dynamic prompt or a deps function failed; names it
├── Refused              the caller: an interceptor refused the message or request
├── Cancelled            the caller awaiting the reply of a cancelled turn
├── ScriptExhausted      the author of a test: the scripted model has no reply left
├── QuotaExceeded        the caller: the tenant's plan does not allow the turn; no model was called
│   └── BudgetExceeded   the caller: a budget is used up; has the answer so far
├── UnreadableRow        the caller: a stored row cannot be decoded; its run has failed
├── CrashLoop            subscribers: the turn crashed the process repeatedly and was abandoned
├── StoreError           the caller: the store is unusable
│   ├── StoreBusy        the caller: another process holds the database; retry later
│   ├── StoreInUse       the caller: another process runs turns on the database; names it
│   ├── StoreFull        the caller: nothing more can be written; reads still work
│   ├── StoreLost        the caller: the database is unreachable; retry later
│   ├── StaleOwner       a worker whose run was reassigned to another owner
│   ├── Conflict         the caller: the same key was already written with different content
│   │   └── SessionBusy  the caller: the session has a running turn, and this one must not queue
│   ├── DailyLimitExceeded  the limiter: today's count is used up
│   ├── BudgetUnavailable   the turn: the rest of a budget is too small, at least for now
│   └── NotFound         the caller: the row does not exist
├── GatewayError         a gateway client: the gateway returned an error of kind `kind`
│   ├── Unreachable      a gateway client: no gateway responds, or the connection was lost for good
│   └── Unauthorized     a gateway client: the token is invalid
└── ToolFault            the model, as a tool result; the caller never sees it
    ├── ToolNotFound     the agent has no tool of that name
    ├── BadArguments     the arguments do not match the schema
    ├── NotPermitted     the agent may not use the tool
    ├── Declined         a person declined, or no person could be asked
    ├── LimitExceeded    a limit is used up
    ├── ToolTimeout      the tool exceeded its timeout
    ├── ToolFailed       raised by the tool itself; the model reads its message
    │   ├── Transient    the same, with no side effect so far: safe to retry
    │   └── SandboxUnavailable  no sandbox works on this machine; says why and what to install
    └── OutcomeUnknown   the tool was interrupted while it ran; its side effect may have happened
"""

from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

ErrorKind: TypeAlias = Literal[
    "not_found",
    "bad_arguments",
    "not_permitted",
    "declined",
    "limit",
    "timeout",
    "failed",
    "unknown",
    "internal",
]

ProviderFault: TypeAlias = Literal[
    "auth",
    "bad_request",
    "model_not_found",
    "context_length",
    "rate_limit",
    "quota",
    "overloaded",
    "server",
    "network",
    "timeout",
    "incomplete",
    "empty_response",
    "protocol",
    "unavailable",
    "unknown",
]

_RETRYABLE: frozenset[str] = frozenset(
    ("rate_limit", "overloaded", "server", "network", "timeout", "incomplete", "empty_response", "protocol", "unknown")
)
_FAILOVER: frozenset[str] = _RETRYABLE | {"auth", "quota", "unavailable", "model_not_found"}


class AtlasError(Exception):
    """Base class of all exceptions of this package.

    `result` is the partial `RunResult` if `Atlas.run` raised this exception; otherwise None.
    """

    result: Any = None


class ConfigError(AtlasError, ValueError):
    """Invalid configuration or arguments."""


class BadModelRef(ConfigError):
    """Invalid model reference: no provider, no model or an unknown provider."""


class MissingKey(ConfigError):
    """The API key of the requested provider is not set."""


class UnknownAgent(ConfigError):
    """No agent has this id."""


class DuplicateTool(ConfigError):
    """Two tools of one agent have the same name."""


class BadTool(ConfigError):
    """A tool whose parameters cannot be described as a JSON schema."""


class ContextCycle(ConfigError):
    """A context would become its own ancestor."""


class ProviderError(AtlasError):
    """A model's response could not be completed. `kind` classifies the error; `retryable` and `failover` suggest a
    remedy.

    `unreachable` is True if no connection was made.

    Args:
        message: What went wrong, without secrets.
        kind: Why, for example `rate_limit`, `auth` or `timeout`.
        status: HTTP status of the response, if there was one.
        retry_after: Seconds after which a retry may succeed, if the vendor says so.
        unreachable: Whether no connection was made.
        code: The vendor's own code of the error.
        param: The field of the request that the vendor refused.
    """

    def __init__(
        self,
        message: str,
        kind: ProviderFault = "unknown",
        *,
        status: int | None = None,
        retry_after: float | None = None,
        unreachable: bool = False,
        code: str = "",
        param: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        """The vendor's own name of the error."""
        self.param = param
        """The field of the request that the vendor refused."""
        self.unreachable = unreachable
        self.kind: ProviderFault = kind
        self.status = status
        self.retry_after = retry_after

    @property
    def retryable(self) -> bool:
        """Whether the same provider may be called again."""
        return self.kind in _RETRYABLE

    @property
    def failover(self) -> bool:
        """Whether another provider may succeed; an invalid request is invalid everywhere."""
        return self.kind in _FAILOVER


class ModelUnavailable(ProviderError):
    """A local model could not be downloaded or started; retrying at once does not help, another provider may.

    Args:
        message: Which model is unavailable, why, and what to do.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, "unavailable")


class BrokenHistory(AtlasError):
    """A request would have contained a tool call without its result, or a result without its call."""


class BadOutput(AtlasError):
    """The answer does not match the requested schema."""


class PromptFailed(AtlasError):
    """A function that the developer passed for a rule, a prompt or `deps` failed or took too long."""


class Refused(AtlasError):
    """An interceptor refused a message or a request."""


class Cancelled(AtlasError):
    """The turn was cancelled before it produced an answer."""


class ScriptExhausted(AtlasError):
    """A scripted model was called more often than it has replies."""


class QuotaExceeded(AtlasError):
    """The tenant's plan does not allow the turn."""


class BudgetExceeded(QuotaExceeded):
    """A budget is used up. The message names the budget, its limit, the amount used and when it resets.

    `partial` is the text that the turn had produced, and `resets_at` the time in seconds since 1970, None if never.

    Args:
        message: The budget, its limit, the amount used and when it resets.
        scope: Whose budget it is: `turn`, `session`, `agent`, `user` or `tenant`.
        measure: What is limited: `tokens`, `requests`, `tool_calls`, `dollars` or `seconds`.
        limit: The limit; None if it is not known.
        used: The amount used; None if it is not known.
        resets_at: When the budget resets, in seconds since 1970; None if never.
    """

    def __init__(
        self,
        message: str,
        *,
        scope: str = "",
        measure: str = "",
        limit: float | None = None,
        used: float | None = None,
        resets_at: float | None = None,
    ) -> None:
        super().__init__(message)
        self.scope = scope
        self.measure = measure
        self.limit = limit
        self.used = used
        self.resets_at = resets_at
        self.partial = ""


class UnreadableRow(AtlasError):
    """A stored row cannot be decoded; the message names it. Its run fails, and everything else is unaffected."""


class CrashLoop(AtlasError):
    """A turn was abandoned because it crashed the process every time it was resumed."""


class StoreError(AtlasError):
    """The store is unusable; the message says why and what to do."""


class StoreBusy(StoreError):
    """Another process holds the database. Nothing was written; retry later."""


class StoreInUse(StoreError):
    """Another process runs turns on the database: its turns and jobs must not be resumed here."""


class StoreFull(StoreError):
    """The disk or the database is full. Nothing was written."""


class StoreLost(StoreError):
    """The database is unreachable. `unclear` if the connection was lost during a commit, which may have succeeded."""

    def __init__(self, message: str, *, unclear: bool = False) -> None:
        super().__init__(message)
        self.unclear = unclear


class StaleOwner(StoreError):
    """The run has a new owner; the holder of the older epoch (fencing token) must stop."""


class Conflict(StoreError):
    """The same key was already written with different content."""


class SessionBusy(Conflict):
    """The session has a running turn, so this one cannot start."""


class DailyLimitExceeded(StoreError):
    """A counter has reached its limit."""


class BudgetUnavailable(StoreError):
    """The rest of a budget is too small. `pending` if enough may be left once other runs return their reservations."""

    def __init__(self, key: str, period: str, measure: int, used: int, *, pending: bool) -> None:
        super().__init__(f"the rest of the budget {key} {period}".rstrip() + " is too small")
        self.key = key
        self.period = period
        self.measure = measure
        """Index into `MEASURES`."""
        self.used = used
        self.pending = pending


class NotFound(StoreError):
    """The row does not exist for this tenant."""


class GatewayError(AtlasError):
    """The gateway returned an error. `kind` is the protocol's error kind; `retryable` if a retry may succeed.

    Args:
        message: What went wrong.
        kind: The protocol's kind of error.
        retryable: Whether a retry may succeed.
        retry_after: Seconds to wait before a retry, if the gateway says so.
    """

    def __init__(
        self, message: str, kind: str = "INTERNAL", *, retryable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.retry_after = retry_after


class Unreachable(GatewayError):
    """No connection to the gateway. `unclear` if it was lost while a request with side effects was in flight.

    Args:
        message: What went wrong.
        retryable: Whether a retry may succeed.
        unclear: Whether a request with side effects was in flight when the connection was lost.
    """

    def __init__(self, message: str, *, retryable: bool = True, unclear: bool = False) -> None:
        super().__init__(message, "UNREACHABLE", retryable=retryable)
        self.unclear = unclear


class Unauthorized(GatewayError):
    """The gateway rejected the token.

    Args:
        message: What went wrong.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, "NOT_LET_IN")


class ToolFault(AtlasError):
    """A tool call that did not succeed; the model reads the message.

    `untrusted` is False if the message contains nothing that the tool received from others.
    """

    kind: ClassVar[ErrorKind] = "failed"
    untrusted: bool = True


class ToolNotFound(ToolFault):
    """The agent has no tool of this name."""

    kind = "not_found"


class BadArguments(ToolFault):
    """The arguments do not match the tool's schema."""

    kind = "bad_arguments"


class NotPermitted(ToolFault):
    """The agent may not make this call."""

    kind = "not_permitted"


class Declined(ToolFault):
    """A person declined the call, or no person could be asked.

    Args:
        message: What the log and the audit row say.
        reason: What the person wrote; the model reads it.
        by: Name of the person; empty if no one answered.
    """

    kind = "declined"

    def __init__(self, message: str = "", reason: str = "", by: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.by = by


class LimitExceeded(ToolFault):
    """A limit is used up."""

    kind = "limit"


class ToolTimeout(ToolFault):
    """The tool exceeded its timeout."""

    kind = "timeout"


class ToolFailed(ToolFault):
    """Raise this in a tool to report a failure; the model reads the message."""

    kind = "failed"


class Transient(ToolFailed):
    """Raise this in a tool when nothing has happened yet and a retry may succeed.

    Args:
        message: What went wrong; the model reads it if no retry succeeds.
        retry_after: Seconds to wait before the next try; by default a backoff.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SandboxUnavailable(ToolFailed):
    """No sandbox works on this machine: why each one failed, and what to install."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"no sandbox available: {reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class OutcomeUnknown(ToolFault):
    """The tool was interrupted while it ran."""

    kind = "unknown"


_BY_NAME: dict[str, type[AtlasError]] = {
    error.__name__: error
    for error in (
        BrokenHistory,
        BadOutput,
        PromptFailed,
        Refused,
        ScriptExhausted,
        QuotaExceeded,
        BudgetExceeded,
        UnreadableRow,
        CrashLoop,
        ConfigError,
        MissingKey,
    )
}


def failure_kind(failure: BaseException) -> str:
    """Return the kind of a turn's failure: the provider error's kind, or the exception's class name."""
    return failure.kind if isinstance(failure, ProviderError) else type(failure).__name__


def to_failure(kind: str, message: str) -> AtlasError:
    """Recreate an exception from its recorded kind and message."""
    if kind in get_args(ProviderFault):
        return ProviderError(message, cast(ProviderFault, kind))
    return _BY_NAME.get(kind, AtlasError)(message)
