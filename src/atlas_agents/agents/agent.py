"""Agent: identity, models, instructions and tools. It owns no transport, user interface or storage."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, cast

import msgspec

from atlas_agents.agents.context import Context, DynamicText, Rule
from atlas_agents.agents.hooks import Interceptor, read_interceptors
from atlas_agents.agents.loop import run_turn
from atlas_agents.agents.options import AgentSettings, Mode, TurnOptions
from atlas_agents.agents.run import CallResult, Run, RunResult, T, describe_answer, read_options, session_lock
from atlas_agents.agents.runtime import AgentRuntime, choose_turn_function
from atlas_agents.agents.stream import AtlasStream, stream_method
from atlas_agents.core.aio import BackgroundTasks, sync_method
from atlas_agents.core.budgets import Budget, BudgetLike, read_budgets
from atlas_agents.core.errors import BudgetExceeded, ConfigError, LimitExceeded, ProviderError, ToolFailed
from atlas_agents.core.messages import (
    UNTRUSTED,
    Conversation,
    Message,
    MessageLike,
    new_ordered_id,
    read_prompt,
    split_messages,
    user,
)
from atlas_agents.core.metadata import Metadata
from atlas_agents.core.store import Chain
from atlas_agents.core.tenancy import Delegation
from atlas_agents.providers.base import Provider
from atlas_agents.providers.failover import RetryPolicy, Route
from atlas_agents.providers.registry import Model, check_model
from atlas_agents.providers.settings import GivenSettings, ModelSettings, read_settings
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Tool, ToolLike

ASK_PARAMETERS = {"request": {"type": "string", "description": "Everything it needs to know; it sees nothing else."}}
"""JSON schema of the parameters of an agent tool."""
ASK_TIMEOUT = 300.0


class Agent:
    """An agent. Identity and model settings are frozen; metadata, rules, tools and messages live in its context.

    Args:
        id: Unique name of the agent.
        name: Display name; the id by default.
        description: What the agent is for. Other agents and users read it.
        model: A reference such as `"anthropic/claude-opus-4-6"`, a provider, or a callable. `ATLAS_MODEL` by default.
        provider: Provider id or provider, if `model` is only the model's name.
        providers: Several models for failover, instead of `model`.
        retry: Retries and failover between the providers.
        system_prompt: Instructions that precede every conversation.
        settings: Model settings such as `{"effort": "high"}`: a `ModelSettings` or a mapping of its fields.
        temperature: Sampling temperature; the same as in `settings`.
        max_tokens: Maximum number of tokens in one reply; the same as in `settings`.
        stop: Sequences that end a reply; the same as in `settings`.
        tool_choice: `"auto"`, `"none"`, `"required"`, or the name of a tool.
        reset_tool_choice: Whether a forced tool is only forced until the first call of a turn, so that the model can
            answer.
        tools: Tools, or typed functions that become tools.
        rules: Sentences of the system prompt, always present or under a condition.
        contexts: Contexts from which the agent inherits metadata, rules, tools and messages.
        metadata: Values for prompts, rules and tools.
        role: Role under which a policy knows the agent.
        mode: `"tools"`, `"react"` or `"plan"`.
        parallel_tools: Whether the calls of one reply run concurrently.
        max_rounds: Maximum number of model calls in one turn.
        output_retries: How often an answer that does not match the requested output type may be corrected.
        budget: Limits of each turn such as `Budget(tokens=50_000)`; with a scope, of each session or of the agent.
        hands_off_to: Ids of agents that may take over the turn.
        tool_search: Number of tools above which the model is shown the tool `search_tools` in place of all of them.
            Tools that it finds stay offered for the session. By default all tools are shown.
        interceptors: Hooks and guardrails of this agent's turns; in an Atlas they run after those of the Atlas.
    """

    __slots__ = ("__weakref__", "_context", "_interceptors", "_runtime", "_settings", "_turns")

    def __init__(
        self,
        id: str,
        *,
        name: str = "",
        description: str = "",
        model: Model | None = None,
        provider: str | Provider | None = None,
        providers: Sequence[Model] | None = None,
        retry: RetryPolicy | None = None,
        system_prompt: str | DynamicText = "",
        settings: GivenSettings | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        tool_choice: str = "auto",
        reset_tool_choice: bool = True,
        tools: Iterable[ToolLike] = (),
        rules: Iterable[Rule | str] = (),
        contexts: Iterable[Context] = (),
        metadata: Metadata | Mapping[str, Any] | None = None,
        role: str = "",
        mode: Mode = "tools",
        parallel_tools: bool = True,
        max_rounds: int = 10,
        output_retries: int = 1,
        budget: BudgetLike | Sequence[BudgetLike] | None = None,
        hands_off_to: Sequence[str] = (),
        tool_search: int | None = None,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        self._settings = AgentSettings(
            id=id,
            name=name or id,
            description=description,
            models=_normalize_models(id, model, provider, providers),
            retry=retry or RetryPolicy(),
            system_prompt=system_prompt,
            model_settings=_combine_settings(id, settings, temperature, max_tokens, stop),
            tool_choice=tool_choice,
            reset_tool_choice=reset_tool_choice,
            role=role,
            mode=mode,
            parallel_tools=parallel_tools,
            max_rounds=max_rounds,
            output_retries=output_retries,
            hands_off_to=_read_ids(id, hands_off_to),
            budget=_read_agent_budgets(id, budget),
            tool_search=tool_search,
        )
        if not isinstance(cast(object, tools), Iterable):
            raise ConfigError(f"agent {id!r}: tools=… takes a list of tools, got {tools!r}")
        try:
            self._interceptors = read_interceptors(interceptors)
            self._context = Context(*contexts, name=id, metadata=metadata, rules=rules, tools=tools)
        except ConfigError as error:
            raise type(error)(f"agent {id!r}: {error}") from error
        self._runtime: AgentRuntime | None = None
        self._turns = BackgroundTasks("turns of an agent")

    @property
    def settings(self) -> AgentSettings:
        """All frozen settings as one value."""
        return self._settings

    @property
    def id(self) -> str:
        return self._settings.id

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def description(self) -> str:
        return self._settings.description

    @property
    def role(self) -> str:
        return self._settings.role

    @property
    def mode(self) -> str:
        return self._settings.mode

    @property
    def models(self) -> tuple[Model, ...]:
        return self._settings.models

    @property
    def system_prompt(self) -> str | DynamicText:
        return self._settings.system_prompt

    @property
    def temperature(self) -> float | None:
        return self._settings.model_settings.temperature

    @property
    def max_tokens(self) -> int | None:
        return self._settings.model_settings.max_tokens

    @property
    def parallel_tools(self) -> bool:
        return self._settings.parallel_tools

    @property
    def max_rounds(self) -> int:
        return self._settings.max_rounds

    @property
    def interceptors(self) -> tuple[Interceptor, ...]:
        """The hooks of this agent's turns."""
        return self._interceptors

    @property
    def context(self) -> Context:
        """The agent's own context, a child of the contexts passed to the constructor."""
        return self._context

    @property
    def metadata(self) -> Metadata:
        return self._context.metadata

    @metadata.setter
    def metadata(self, values: Metadata | Mapping[str, Any]) -> None:
        self._context.metadata = values

    @property
    def rules(self) -> tuple[Rule, ...]:
        return self._context.rules

    @rules.setter
    def rules(self, rules: Iterable[Rule | str]) -> None:
        self._context.rules = rules

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self._context.tools

    @tools.setter
    def tools(self, tools: Iterable[ToolLike]) -> None:
        self._context.tools = tools

    @property
    def messages(self) -> list[Message]:
        return self._context.messages

    @messages.setter
    def messages(self, messages: Iterable[Message]) -> None:
        self._context.messages = messages

    async def run(
        self,
        messages: MessageLike | Sequence[MessageLike],
        *,
        session: Conversation | None = None,
        output: type[T] | object | None = None,
        output_retries: int | None = None,
        user: str = "",
        model: str = "",
        max_rounds: int | None = None,
        settings: GivenSettings | None = None,
        budget: BudgetLike | Sequence[BudgetLike] | None = None,
        deps: Any = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> RunResult[T]:
        """Run one turn without an Atlas and return everything it produced.

        Nothing is stored: the agent itself has no memory of the turn. Pass a `Conversation` to continue one.

        Args:
            messages: Text or a message of the user, or without a session a whole history.
            session: The conversation to which the turn belongs; a new one if None.
            output: JSON Schema or Python type that the answer must match; `result.output` is its value.
            output_retries: How often an answer that does not match may be corrected; the agent's number if None.
            user: The user for whom the turn runs.
            model: Reference of a model to use in this turn instead of the agent's.
            max_rounds: Maximum number of model calls in this turn; the agent's number if None.
            settings: Model settings such as `{"effort": "high"}`, which take precedence over the agent's.
            budget: Limits of this turn such as `Budget(tokens=20_000)`, in addition to the agent's.
            deps: A value for tools (`ToolContext.deps`), rules and dynamic prompts. It is not sent to a model.
            metadata: Values that only this turn has, over those of the conversation and the agent.
        """
        past, last = split_messages(messages)
        if session is not None and (past or last is None):
            raise ConfigError("run takes either session=… and one message of the user, or a whole history")
        options = read_options(
            output=output,
            output_retries=output_retries,
            model=model,
            max_rounds=max_rounds,
            settings=settings,
            budget=budget,
            deps=deps,
            metadata=metadata,
        )
        run = self._create_run(Conversation(past) if session is None else session, options, user)
        return await run.collect(run_turn(run, last, choose_turn_function(run)))

    async def ask(
        self,
        message: MessageLike,
        *,
        session: Conversation | None = None,
        output: Any = None,
        output_retries: int | None = None,
        user: str = "",
        model: str = "",
        max_rounds: int | None = None,
        settings: GivenSettings | None = None,
        budget: BudgetLike | Sequence[BudgetLike] | None = None,
        deps: Any = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Message:
        """Run one turn without an Atlas and return the answer; for the options see `run`.

        With `output`, the value is in `message.output`.
        """
        prompt = read_prompt(message)
        options = read_options(
            output=output,
            output_retries=output_retries,
            model=model,
            max_rounds=max_rounds,
            settings=settings,
            budget=budget,
            deps=deps,
            metadata=metadata,
        )
        run = self._create_run(session or Conversation(), options, user)
        return await run_turn(run, prompt, choose_turn_function(run))

    def send(
        self,
        message: MessageLike,
        *,
        session: Conversation | None = None,
        output: Any = None,
        output_retries: int | None = None,
        user: str = "",
        model: str = "",
        max_rounds: int | None = None,
        settings: GivenSettings | None = None,
        budget: BudgetLike | Sequence[BudgetLike] | None = None,
        deps: Any = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AtlasStream:
        """Start one turn without an Atlas and return its stream; for the options see `run`."""
        prompt = read_prompt(message)
        options = read_options(
            output=output,
            output_retries=output_retries,
            model=model,
            max_rounds=max_rounds,
            settings=settings,
            budget=budget,
            deps=deps,
            metadata=metadata,
        )
        return self._start_turn(prompt, session or Conversation(), options, user)

    @sync_method(run)
    def run_sync() -> None:
        """Run `run` without an event loop, in a script or a thread, and wait for its result."""

    @sync_method(ask)
    def ask_sync() -> None:
        """Run `ask` without an event loop, in a script or a thread, and wait for its result."""

    @stream_method(send)
    def stream_sync() -> None:
        """Start a turn like `send` without an event loop, and return an iterator over its events."""

    def as_tool(self, *, name: str = "", description: str = "") -> Tool:
        """Return the agent as a tool for other agents; each call is a conversation of its own, without an Atlas.

        `atlas_agents.team.agent_tool` runs it as a turn of an Atlas instead, which its store, policy and events see.

        Args:
            name: Name of the tool; `ask_` and the agent's id by default.
            description: What the model reads about the tool; the agent's name and description by default.
        """
        return Tool(
            name or f"ask_{self.id}",
            self._answer_call,
            description=description or f"Ask {self.name}. {self.description}".strip(),
            parameters=ASK_PARAMETERS,
            effect="unsafe",
            timeout=ASK_TIMEOUT,
        )

    def with_tools(self, tools: Iterable[ToolLike], model: Model | None = None) -> "Agent":
        """Internal: return a copy of this agent with these tools in place of its tools of the same names.

        With `model`, that also replaces the agent's models.
        """
        copied = Agent(self.id, contexts=[self._context], tools=tools, interceptors=self._interceptors)
        settings = self._settings
        copied._settings = settings if model is None else msgspec.structs.replace(settings, models=(model,))
        return copied

    async def _answer_call(self, request: str, context: ToolContext) -> str:
        """Answer another agent; the usage counts as that of its turn."""
        conversation, options = Conversation(), read_options(chain=chain_of_call(context, self.id))
        message = user(request, **({UNTRUSTED: list(context.untrusted)} if context.untrusted else {}))
        stream = self._start_turn(message, conversation, options, context.user, context.delegation)
        try:
            return read_answer(self.id, await stream.reply())
        except asyncio.CancelledError:
            stream.cancel()
            raise
        finally:
            context.add_turn(stream.usage)
            for source in dict.fromkeys(source for each in conversation for source in each.untrusted):
                context.mark_untrusted(f"agent: {source}")

    def _start_turn(
        self,
        message: Message,
        session: Conversation,
        options: TurnOptions,
        user: str,
        delegation: Delegation | None = None,
    ) -> AtlasStream:
        stream = AtlasStream(new_ordered_id())
        run = self._create_run(session, options, user, stream, delegation)
        self._turns.adopt(stream.start(run, run_turn(run, message, choose_turn_function(run))))
        return stream

    def _create_run(
        self,
        session: Conversation,
        options: TurnOptions,
        user: str,
        stream: AtlasStream | None = None,
        delegation: Delegation | None = None,
    ) -> Run:
        if not isinstance(cast(object, session), Conversation):
            raise ConfigError(
                f"invalid session {session!r}: an agent takes a Conversation; sessions with a key require an Atlas"
            )
        return self._own_runtime().create_run(
            self,
            self._context,
            session,
            options=options,
            user=user,
            log=stream.log if stream else None,
            id=stream.stream_id if stream else None,
            delegation=delegation,
        )

    def _own_runtime(self) -> AgentRuntime:
        if self._runtime is None:
            self._runtime = AgentRuntime(find_agent=dict[str, Agent]().get)
        return self._runtime

    async def call(self, prompt: MessageLike, *, settings: GivenSettings | None = None) -> CallResult:
        """Run a turn without an Atlas and add its messages to `agent.messages`.

        `settings` are model settings that take precedence over the agent's. A provider error is not raised: `success`
        is False and `error` has the reason.
        """
        conversation, inherited = self._context.as_conversation()
        lock = session_lock(self._context)
        options = read_options(settings=settings)
        run = self._own_runtime().create_run(
            self,
            self._context,
            conversation,
            options=options,
            lock=lock,
            inherited_messages=inherited,
            own_metadata=False,
        )
        try:
            await run_turn(run, read_prompt(prompt))
        except (ProviderError, BudgetExceeded) as error:
            return CallResult([*self.messages], False, str(error))
        error = "Max iterations reached" if run.rounds_exhausted else None
        return CallResult([*self.messages], not run.rounds_exhausted, error)

    async def close(self) -> None:
        """Cancel running turns, and close connections and processes that they opened."""
        await self._turns.close()
        if self._runtime is not None:
            await self._runtime.close()

    def __repr__(self) -> str:
        return f"Agent({self.id!r})"

    def __copy__(self) -> "Agent":
        """Return an agent with the same settings, models, tools, rules, hooks, messages and metadata of its own."""
        return self._copy(self._context.copy())

    def __deepcopy__(self, memo: dict[int, Any]) -> "Agent":
        """Return a copy with deep copies of its messages and metadata; models, tools, rules and hooks are shared."""
        copied = memo[id(self)] = self._copy(self._context.copy(lambda value: deepcopy(value, memo)))
        return copied

    def _copy(self, context: Context) -> "Agent":
        copied = object.__new__(type(self))
        copied._settings, copied._interceptors, copied._context = self._settings, self._interceptors, context
        copied._runtime, copied._turns = None, BackgroundTasks("turns of an agent")
        for name, value in getattr(self, "__dict__", {}).items():  # of a subclass
            setattr(copied, name, value)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"cannot pickle agent {self.id!r}: its models and functions belong to this process. Create the agent in "
            "the other process, for example with a function that both import"
        )

    def worker_copy(self) -> "WorkerCopy":
        """Internal: return what is pickled in place of the agent for a tool in a worker process."""
        return WorkerCopy(self)


class WorkerCopy:
    """Unpickled as a copy of an agent without models and headers, which hold keys, and without functions."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def __reduce__(self) -> tuple[Any, ...]:
        fields = msgspec.structs.asdict(self._agent.settings)
        del fields["models"]
        if callable(fields["system_prompt"]):
            del fields["system_prompt"]
        settings = msgspec.structs.replace(fields.pop("model_settings"), extra_headers={})
        return partial(Agent, **fields, settings=settings, metadata=self._agent.metadata.all()), ()


def agent(id: str, **options: Any) -> Agent:
    """Create an agent, like `Agent(…)`."""
    return Agent(id, **options)


def chain_of_call(context: ToolContext, agent_id: str) -> Chain:
    """Return the delegation chain of the turn in which an agent answers a call of its tool.

    Raises LimitExceeded if the agent waits for the result of that call, or the chain is too long.
    """
    waiting = (*context.chain.agents, context.agent.id)
    if agent_id in waiting:
        raise LimitExceeded(f"{agent_id} is waiting for your result, so you cannot ask it: answer without it.")
    context.delegation.check_depth(context.chain)
    return msgspec.structs.replace(context.chain, root="", agents=waiting, job="")  # budgets and jobs count the caller


def read_answer(agent_id: str, answer: Message) -> str:
    """Return the answer of an agent to a call of its tool; raises ToolFailed if its turn ended before it was done."""
    if answer.is_unfinished:
        so_far = f" Its text so far:\n\n{answer.text}" if answer.text else ""
        raise ToolFailed(f"{agent_id} did not finish: {answer.incomplete}.{so_far}")
    return describe_answer(answer)


def _combine_settings(
    agent_id: str,
    settings: GivenSettings | None,
    temperature: float | None,
    max_tokens: int | None,
    stop: Sequence[str],
) -> ModelSettings:
    try:
        given = {
            "temperature": temperature,
            "max_tokens": max_tokens,
            "stop": (stop,) if isinstance(stop, str) else tuple(stop),
        }
        set_here = {name: value for name, value in given.items() if value not in (None, ())}
        found = read_settings(settings)
        return msgspec.structs.replace(found, **set_here) if set_here else found
    except ConfigError as error:
        raise ConfigError(f"agent {agent_id!r}: {error}") from error


def _read_ids(agent_id: str, given: Sequence[str]) -> tuple[str, ...]:
    ids = () if isinstance(given, str) or not isinstance(cast(object, given), Iterable) else tuple(given)
    if (given and not ids) or not all([isinstance(cast(object, each), str) for each in ids]):
        raise ConfigError(f"agent {agent_id!r}: hands_off_to=… takes a list of agent ids, got {given!r}")
    return ids


def _read_agent_budgets(agent_id: str, budget: BudgetLike | Sequence[BudgetLike] | None) -> tuple[Budget, ...]:
    try:
        return read_budgets(budget, ("turn", "session", "agent"))
    except ConfigError as error:
        raise ConfigError(f"agent {agent_id!r}: {error}") from error


def _normalize_models(
    id: str, model: Model | None, provider: str | Provider | None, providers: Sequence[Model] | None
) -> tuple[Model, ...]:
    """Convert the three ways to specify models into one tuple."""
    if providers is not None:
        if model is not None or provider is not None:
            raise ConfigError(f"agent {id!r}: pass either providers=… or model=…, not both")
        if isinstance(providers, str):
            raise ConfigError(f"agent {id!r}: providers=… takes a list of models, got {providers!r}")
        if not providers:
            raise ConfigError(f"agent {id!r}: providers=… is empty")
        return tuple(_check_model(id, each) for each in providers)
    if provider is None:
        return () if model is None else (_check_model(id, model),)
    if not isinstance(model, str):
        raise ConfigError(f"agent {id!r}: provider=… requires model=… with the name of a model")
    return (_check_model(id, f"{provider}/{model}") if isinstance(provider, str) else Route(provider, model),)


def _check_model(agent_id: str, model: Model) -> Model:
    try:
        return check_model(model)
    except ConfigError as error:
        raise type(error)(f"agent {agent_id!r}: {error}") from error
