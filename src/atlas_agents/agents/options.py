"""Frozen settings of an agent, and the options of one turn."""

from typing import Any, Literal, TypeAlias, cast, get_args

import msgspec

from atlas_agents.agents.context import DynamicText
from atlas_agents.core.budgets import Budget
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.messages import Message, ToolCall
from atlas_agents.core.store import NO_CHAIN, Chain
from atlas_agents.providers.failover import RetryPolicy
from atlas_agents.providers.registry import Model
from atlas_agents.providers.settings import DEFAULT_SETTINGS, ModelSettings
from atlas_agents.tools.client_tools import ClientTools

Mode: TypeAlias = Literal["tools", "react", "plan"]
"""How a turn runs: with native tool calls, with tools as text (ReAct), or as plan-and-execute."""
MODES: tuple[Mode, ...] = get_args(Mode)
WhenBusy: TypeAlias = Literal["queue", "steer", "reject", "interrupt"]
"""Handling of a message that arrives while another turn of its session is running."""
WHEN_BUSY: tuple[WhenBusy, ...] = get_args(WhenBusy)


class AgentSettings(msgspec.Struct, frozen=True):
    """Identity and model settings of an agent, validated on construction.

    Attributes:
        id: Unique name of the agent.
        name: Display name.
        description: What the agent is for. Other agents and users read it.
        models: Models in the order in which they are tried.
        retry: Retries and failover between the models.
        system_prompt: Instructions that precede every conversation, or a function that returns them.
        model_settings: Sampling, effort, caching and other settings of the model.
        tool_choice: `"auto"`, `"none"`, `"required"`, or the name of a tool.
        reset_tool_choice: Whether a forced tool is only forced until the first call of a turn.
        role: Role under which a policy knows the agent.
        mode: `"tools"`, `"react"` or `"plan"`.
        parallel_tools: Whether the calls of one reply run concurrently.
        max_rounds: Maximum number of model calls in one turn.
        output_retries: How often an answer that does not match the requested output type may be corrected.
        hands_off_to: Ids of agents that may take over the turn.
        budget: Limits of each turn, of each session or of the agent.
        tool_search: Number of tools above which the model is shown `search_tools` in place of all of them; None for
            never.
    """

    id: str
    name: str = ""
    description: str = ""
    models: tuple[Model, ...] = ()
    retry: RetryPolicy = RetryPolicy()
    system_prompt: str | DynamicText = ""
    model_settings: ModelSettings = DEFAULT_SETTINGS
    tool_choice: str = "auto"
    reset_tool_choice: bool = True
    role: str = ""
    mode: Mode = "tools"
    parallel_tools: bool = True
    max_rounds: int = 10
    output_retries: int = 1
    hands_off_to: tuple[str, ...] = ()
    budget: tuple[Budget, ...] = ()
    tool_search: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.id), str):
            raise ConfigError(f"invalid agent id {self.id!r}: expected a text")
        if not isinstance(self.system_prompt, str) and not callable(cast(object, self.system_prompt)):
            raise ConfigError(
                f"agent {self.id!r}: invalid system_prompt {self.system_prompt!r}: expected a text or a function"
            )
        if not self.id.strip():
            raise ConfigError("an agent requires an id that is not blank")
        if not isinstance(cast(object, self.retry), RetryPolicy):
            raise ConfigError(f"agent {self.id!r}: retry=… takes a RetryPolicy, got {self.retry!r}")
        if self.max_rounds < 1:
            raise ConfigError(f"agent {self.id!r}: max_rounds must be at least 1, got {self.max_rounds}")
        if self.output_retries < 0:
            raise ConfigError(f"agent {self.id!r}: output_retries must not be negative, got {self.output_retries}")
        if self.tool_search is not None and self.tool_search < 1:
            raise ConfigError(f"agent {self.id!r}: tool_search must be at least 1, got {self.tool_search}")
        if self.mode not in MODES:
            raise ConfigError(f"agent {self.id!r}: unknown mode {self.mode!r}, expected one of {', '.join(MODES)}")


class HandoffPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Plan of the agents that take part in a turn.

    `agent_id` starts, or with `stays` the agent that answered last in the session. It may hand off to the agents in
    `hands_to`. The agents in `then` follow one after another, each with the answer of the one before.

    Attributes:
        agent_id: Agent that starts.
        hands_to: Ids of agents that it may hand off to.
        then: Ids of agents that follow one after another, each with the answer of the one before.
        stays: Whether the agent that answered last in the session starts instead.
    """

    agent_id: str = ""
    hands_to: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    stays: bool = False


class TurnOptions(msgspec.Struct, frozen=True):
    """Options of one turn. They are stored with the run, so that a resumed run has the same options.

    Fields are stored under their names, except those that matter only while the message is accepted. An option that
    is added later should default to UNSET: it is then absent from the rows of turns that do not use it.
    """

    output: Any = None
    """JSON schema or Python type that the answer must match; stored as JSON schema."""
    model: str = ""
    """Model reference to use instead of the agent's models."""
    asks: bool = True
    """Whether a person can be asked; if not, a call that requires approval is refused."""
    mode: Mode | Literal[""] = ""
    """Mode to use instead of the agent's."""
    team: HandoffPlan = HandoffPlan()
    chain: Chain = NO_CHAIN
    """The delegation that the turn belongs to, if another agent requested it."""
    call: ToolCall | msgspec.UnsetType = msgspec.UNSET
    """The only tool call of a turn without a model."""
    requested: ModelSettings | None = None
    """Model settings that a client of the gateway requests, applied as far as the agent's own allow."""
    settings: ModelSettings | msgspec.UnsetType = msgspec.UNSET
    """Model settings that take precedence over the agent's."""
    max_rounds: int | msgspec.UnsetType = msgspec.UNSET
    """Round limit to use instead of the agent's."""
    output_retries: int | msgspec.UnsetType = msgspec.UNSET
    """How often an answer that does not match `output` may be corrected, instead of the agent's number."""
    budget: tuple[Budget, ...] | msgspec.UnsetType = msgspec.UNSET
    """Budgets of this turn, in addition to the others that apply."""
    metadata: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """Values that only this turn has, over those of the session and the agent."""
    instructions: str | msgspec.UnsetType = msgspec.UNSET
    """Instructions of this turn only, after the agent's own."""
    deps: Any = None
    """Value for tools, rules and prompts that the caller passes: neither stored nor sent to a model."""
    client_tools: ClientTools | msgspec.UnsetType = msgspec.UNSET
    """Tools that the caller of the turn runs."""
    traceparent: str | msgspec.UnsetType = msgspec.UNSET
    """Trace context of the caller (W3C), so that the turn belongs to its trace; see `read_trace_context`."""
    has_deps: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the stored turn was sent with `deps`."""
    history: tuple[Message, ...] = ()
    """Messages that precede that of the user; they are stored with it as the first ones of the turn."""
    when_busy: WhenBusy = "queue"
    idempotency_key: str = ""
    """A message with a key that the session has seen before is not accepted again."""


DEFAULT_OPTIONS = TurnOptions()
