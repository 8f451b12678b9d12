"""What can go wrong, and who is told.

AtlasError
├── ConfigError          the developer, at once: says what was wrong, where, and what to do
│   ├── BadModelRef      a model ref without provider or model, or of an unknown provider
│   ├── MissingKey       a provider whose key is not set; names the variable
│   ├── UnknownAgent     no agent of that id; lists the known ones
│   ├── DuplicateTool    two tools of one name in one agent
│   ├── BadTool          a tool whose parameters cannot be described
│   └── ContextCycle     a context that would inherit from itself
├── ProviderError        the caller of ask/send, once retries and failover have given up
│   └── ModelUnavailable the same: a local model that is not here or cannot run; says why and what to do
├── BrokenHistory        the caller: a call without its result was about to be sent; it was not
├── BadOutput            the caller: the answer did not fit the wanted schema, nor did its repair
├── Refused              the caller: an interceptor said no
├── Cancelled            who awaits the reply of a cancelled turn
├── ScriptExhausted      the author of a test: the scripted model has no reply left
├── PlanSpent            the caller: the tenant's plan does not allow it; the model was not asked
├── PoisonedRun          whoever listens: the turn ended the process again and again, and was given up
├── StoreError           whoever started or asked: the store cannot be used, in one clear line
│   ├── StoreBusy        the caller: another process holds the database; it may be tried again
│   ├── StoreFull        the caller: nothing more can be written; reading goes on
│   ├── StoreLost        the caller: the database cannot be reached; it may be tried again
│   ├── Fenced           a worker that lost its run: another one owns it now
│   ├── Conflict         the caller: it was done before, and otherwise
│   │   └── SessionBusy  the caller: the session has a turn under way, and this one was not to wait
│   ├── LimitSpent       the limiter: the day's count is used up
│   └── NotStored        the caller: there is no such row
├── GatewayError         who asked a gateway: it answered with an error, of which `kind` is the kind
│   ├── Unreachable      the same: no gateway answers there, or the line broke and stayed so
│   └── NotLetIn         the same: the token is wrong
└── ToolFault            the model, as a tool result; the caller never sees it
    ├── ToolNotFound     no such name among this agent's tools
    ├── BadArguments     the arguments do not fit the schema
    ├── NotPermitted     this agent may not use it
    ├── Declined         a person said no, or nobody could be asked
    ├── LimitReached     a budget is spent
    ├── ToolTimeout      it ran too long
    ├── ToolFailed       the tool itself says so; its message is shown to the model
    │   ├── Transient    the same, and nothing has happened: it may be tried again
    │   └── SandboxUnavailable  nothing here can confine code or commands; says why, and what to install
    └── OutcomeUnknown   it was interrupted while it acted; it may have happened
"""

from typing import ClassVar, Literal, TypeAlias, cast, get_args

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

_AGAIN: frozenset[str] = frozenset(
    ("rate_limit", "overloaded", "server", "network", "timeout", "incomplete", "empty_response", "protocol", "unknown")
)
_ELSEWHERE: frozenset[str] = _AGAIN | {"auth", "quota", "unavailable"}


class AtlasError(Exception):
    """The root of all errors of this package."""


class ConfigError(AtlasError, ValueError):
    """Something was set up wrongly."""


class BadModelRef(ConfigError):
    """A model ref that names no provider, no model, or an unknown provider."""


class MissingKey(ConfigError):
    """A provider was asked for whose key is not set."""


class UnknownAgent(ConfigError):
    """No agent has this id."""


class DuplicateTool(ConfigError):
    """Two tools of one agent have the same name."""


class BadTool(ConfigError):
    """A tool that cannot be described to a model."""


class ContextCycle(ConfigError):
    """A context would become its own ancestor."""


class ProviderError(AtlasError):
    """A model could not be heard to the end. `kind` says why; the two flags say what is worth trying."""

    def __init__(
        self,
        message: str,
        kind: ProviderFault = "unknown",
        *,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: ProviderFault = kind
        self.status = status
        self.retry_after = retry_after

    @property
    def retryable(self) -> bool:
        """The same provider may be asked again."""
        return self.kind in _AGAIN

    @property
    def failover(self) -> bool:
        """Another provider may do better; a bad request is bad everywhere."""
        return self.kind in _ELSEWHERE


class ModelUnavailable(ProviderError):
    """A local model could not be fetched or started: asking again at once is no use, another provider may do."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "unavailable")


class BrokenHistory(AtlasError):
    """A request would have carried a tool call without its result, or a result without its call."""


class BadOutput(AtlasError):
    """The answer does not fit the wanted schema."""


class Refused(AtlasError):
    """An interceptor refused a message or a request."""


class Cancelled(AtlasError):
    """The turn was cancelled before it had an answer."""


class ScriptExhausted(AtlasError):
    """A scripted model was asked more often than it has replies."""


class QuotaExceeded(AtlasError):
    """The tenant's plan does not allow it."""


class CrashLoop(AtlasError):
    """A turn that ended the process every time it went on; it was given up."""


class StoreError(AtlasError):
    """The store cannot be used; one line that says why and what to do."""


class StoreBusy(StoreError):
    """Somebody else holds the database; nothing was written, and it may be tried again."""


class StoreFull(StoreError):
    """The disk or the database is full; nothing was written."""


class StoreLost(StoreError):
    """The database cannot be reached. `unclear` if that happened in the middle of committing: it may be written."""

    def __init__(self, message: str, *, unclear: bool = False) -> None:
        super().__init__(message)
        self.unclear = unclear


class StaleOwner(StoreError):
    """The run has a new owner; whoever holds the old epoch must stop."""


class Conflict(StoreError):
    """The same thing was written before, with other content."""


class SessionBusy(Conflict):
    """The session has a turn under way, and this one was not to wait for it."""


class DailyLimitExceeded(StoreError):
    """A counter has reached its limit."""


class NotFound(StoreError):
    """There is no such row for this tenant."""


class GatewayError(AtlasError):
    """A gateway said no. `kind` is the protocol's word for why; `retryable` if the same may succeed later."""

    def __init__(
        self, message: str, kind: str = "INTERNAL", *, retryable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.retry_after = retry_after


class Unreachable(GatewayError):
    """There is no line to the gateway. `unclear` if it broke when a request that acts was on its way."""

    def __init__(self, message: str, *, retryable: bool = True, unclear: bool = False) -> None:
        super().__init__(message, "UNREACHABLE", retryable=retryable)
        self.unclear = unclear


class Unauthorized(GatewayError):
    """The gateway refuses the token."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "NOT_LET_IN")


class ToolFault(AtlasError):
    """A call that did not succeed; the model reads the message."""

    kind: ClassVar[ErrorKind] = "failed"


class ToolNotFound(ToolFault):
    """There is no such tool."""

    kind = "not_found"


class BadArguments(ToolFault):
    """The arguments do not fit."""

    kind = "bad_arguments"


class NotPermitted(ToolFault):
    """The agent may not do this."""

    kind = "not_permitted"


class Declined(ToolFault):
    """A person said no, or there was nobody to ask. `reason` is what the person gave as one; the model reads it."""

    kind = "declined"

    def __init__(self, message: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class LimitExceeded(ToolFault):
    """A budget is spent."""

    kind = "limit"


class ToolTimeout(ToolFault):
    """The tool ran longer than it may."""

    kind = "timeout"


class ToolFailed(ToolFault):
    """Raise it in a tool: the model reads the message."""

    kind = "failed"


class Transient(ToolFailed):
    """Raise it in a tool when nothing has happened and another try may succeed."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SandboxUnavailable(ToolFailed):
    """There is nothing to run it in: why, after all was tried, and what to do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"no sandbox: {reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class OutcomeUnknown(ToolFault):
    """The tool was interrupted while it acted."""

    kind = "unknown"


_BY_NAME: dict[str, type[AtlasError]] = {
    error.__name__: error
    for error in (BrokenHistory, BadOutput, Refused, ScriptExhausted, QuotaExceeded, CrashLoop, ConfigError, MissingKey)
}


def kind_of(failure: BaseException) -> str:
    """In one word what became of a turn: the fault of a provider, or the name of the error."""
    return failure.kind if isinstance(failure, ProviderError) else type(failure).__name__


def failure_of(kind: str, message: str) -> AtlasError:
    """The error again, out of what was written down of it where it happened."""
    if kind in get_args(ProviderFault):
        return ProviderError(message, cast(ProviderFault, kind))
    return _BY_NAME.get(kind, AtlasError)(message)
