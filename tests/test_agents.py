"""Agents: frozen settings, their context, and which agent of an Atlas answers."""

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from atlas_agents import (
    Agent,
    Atlas,
    BadModelRef,
    ConfigError,
    Context,
    DuplicateTool,
    Interceptor,
    Metadata,
    MissingKey,
    OpenAIProvider,
    ProviderError,
    Request,
    Rule,
    Tool,
    UnknownAgent,
    agent,
    assistant,
    parse_model_ref,
    tool,
    user,
)
from atlas_agents.testing import Environment, Registry, Scripted, calls, fails, in_memory_atlas, says


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"seen {at}"


@tool(name="look")
async def look_again(at: str) -> str:
    """Look at something else."""
    return f"seen {at} again"


def offline(**values: str) -> Registry:
    return Registry(Environment(values, dotenv=None))


# Agent: its settings


def test_agent_constructor_has_the_specified_parameters() -> None:
    parameters = inspect.signature(Agent).parameters
    promised = {"name", "description", "model", "provider", "providers", "system_prompt", "temperature", "max_tokens"}
    promised |= {"tools", "rules", "contexts", "metadata", "role", "mode", "parallel_tools", "max_rounds"}
    assert next(iter(parameters)) == "id"
    assert {parameters[name].kind for name in promised} == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters["parallel_tools"].default is True
    assert parameters["max_rounds"].default == 10


def test_agent_exposes_its_settings() -> None:
    made = Agent(
        "a",
        name="Ada",
        description="Counts.",
        model="openai/gpt-x",
        system_prompt="Be brief.",
        temperature=0.5,
        max_tokens=100,
        tools=[look],
        rules=["Be kind."],
        metadata={"k": 1},
        role="admin",
        mode="tools",
        parallel_tools=False,
        max_rounds=3,
    )
    assert (made.id, made.name, made.description, made.role, made.mode) == ("a", "Ada", "Counts.", "admin", "tools")
    assert (made.models, made.system_prompt) == (("openai/gpt-x",), "Be brief.")
    assert (made.temperature, made.max_tokens, made.parallel_tools, made.max_rounds) == (0.5, 100, False, 3)
    assert [rule.text for rule in made.rules] == ["Be kind."]
    assert (made.tools, made.metadata.all(), made.messages) == ((look,), {"k": 1}, [])


def test_agent_name_defaults_to_its_id() -> None:
    assert Agent("ada", model="openai/x").name == "ada"


@pytest.mark.parametrize(
    "field", ["id", "name", "description", "models", "system_prompt", "temperature", "max_tokens", "role", "max_rounds"]
)
def test_identity_and_model_settings_are_frozen(field: str) -> None:
    made = Agent("a", model="openai/gpt-x")
    with pytest.raises(AttributeError):
        setattr(made, field, "other")
    with pytest.raises(AttributeError):
        setattr(made.settings, field, "other")


def test_provider_and_model_equal_a_model_reference() -> None:
    assert Agent("a", provider="openai", model="gpt-x").models == Agent("a", model="openai/gpt-x").models
    assert Agent("a", provider="http", model="org/llama").models == ("http/org/llama",)


async def test_provider_object_can_be_combined_with_a_model() -> None:
    model = Scripted(says("hi"))
    async with Atlas([Agent("a", provider=model, model="small")]) as atlas:
        await atlas.ask("hello")
    assert model.requests[0].model == "small"


def test_providers_may_be_references_objects_and_callables() -> None:
    def mine(request: Request) -> object: ...

    remote = OpenAIProvider(base_url="http://127.0.0.1:1/v1", api_key="k", environment=Environment({}, dotenv=None))
    assert Agent("a", providers=["anthropic/claude-x", remote, mine]).models == ("anthropic/claude-x", remote, mine)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"providers": ["openai/x"], "model": "openai/y"}, "either providers=… or model=…"),
        ({"providers": ["openai/x"], "provider": "openai"}, "either providers=… or model=…"),
        ({"providers": []}, "providers=… is empty"),
        ({"provider": "openai"}, "provider=… requires model=…"),
        ({"model": "gpt-4"}, "invalid model reference 'gpt-4': expected 'provider/model'"),
        ({"model": "openai/"}, "invalid model reference 'openai/'"),
        ({"model": "/gpt"}, "invalid model reference '/gpt'"),
        ({"provider": "", "model": "gpt"}, "invalid model reference '/gpt'"),
        ({"providers": ["gpt-4"]}, "invalid model reference 'gpt-4'"),
        ({"max_rounds": 0}, "agent 'a': max_rounds must be at least 1, got 0"),
        ({"max_tokens": 0}, "agent 'a': max_tokens must be at least 1, got 0"),
        ({"temperature": 3}, "agent 'a': temperature must be between 0 and 2, got 3"),
        ({"mode": "magic"}, "agent 'a': unknown mode 'magic'"),
        ({"tools": [7]}, "7 is neither a tool nor a function"),
    ],
)
def test_invalid_settings_are_rejected_at_construction(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Agent("a", **options)


def test_agent_requires_an_id() -> None:
    with pytest.raises(ConfigError, match="an agent requires an id"):
        Agent(" ", model="openai/x")


def test_agent_factory_equals_the_constructor() -> None:
    made = agent("a", model="openai/gpt-x", tools=[look])
    assert isinstance(made, Agent)
    assert (made.id, made.models, made.tools) == ("a", ("openai/gpt-x",), (look,))


# Model refs


@pytest.mark.parametrize(
    ("ref", "provider", "model"),
    [
        ("anthropic/claude-opus-4-6", "anthropic", "claude-opus-4-6"),
        ("openai/gpt-5", "openai", "gpt-5"),
        ("local/smollm2", "local", "smollm2"),
        ("http/meta-llama/Llama-3", "http", "meta-llama/Llama-3"),
    ],
)
def test_model_reference_is_split_into_provider_and_model(ref: str, provider: str, model: str) -> None:
    parsed = parse_model_ref(ref)
    assert (parsed.provider, parsed.model, str(parsed)) == (provider, model, ref)


@pytest.mark.parametrize("ref", ["gpt-4", "", "/", "openai/", "/x", "  /x"])
def test_error_names_a_reference_without_a_slash(ref: str) -> None:
    with pytest.raises(BadModelRef) as caught:
        parse_model_ref(ref)
    assert repr(ref) in str(caught.value)


async def test_error_lists_the_known_providers() -> None:
    atlas = Atlas([Agent("a", model="acme/gpt")], registry=offline())
    with pytest.raises(BadModelRef, match=r"unknown provider 'acme'; known providers: .*anthropic.*openai"):
        await atlas.ask("hi")


@pytest.mark.parametrize(
    ("ref", "variable"), [("openai/gpt-x", "OPENAI_API_KEY"), ("anthropic/claude-x", "ANTHROPIC_API_KEY")]
)
async def test_missing_key_error_names_the_variable(ref: str, variable: str) -> None:
    atlas = Atlas([Agent("a", model=ref)], registry=offline())
    with pytest.raises(MissingKey, match=variable):
        await atlas.ask("hi")
    with pytest.raises(MissingKey, match=variable):
        atlas.send("hi")
    assert atlas.conversation().messages == []


async def test_agent_without_model_uses_atlas_model() -> None:
    atlas = Atlas([Agent("a")], registry=offline(ATLAS_MODEL="anthropic/claude-x"))
    with pytest.raises(MissingKey, match="ANTHROPIC_API_KEY"):
        await atlas.ask("hi")
    atlas = Atlas([Agent("a")], registry=offline())
    with pytest.raises(ConfigError, match=r"agent 'a' has no model: .* ATLAS_MODEL"):
        await atlas.ask("hi")


# Its own context


def test_agent_reads_and_assigns_its_context() -> None:
    made = Agent("a", model="openai/x")
    made.metadata = {"k": 1}
    made.rules = [Rule("One."), "Two."]
    made.tools = [look]
    made.messages = [user("before")]
    assert made.metadata.get("k") == 1
    assert [rule.text for rule in made.rules] == ["One.", "Two."]
    assert made.tools == (look,)
    assert [message.text for message in made.messages] == ["before"]
    assert made.context.rules == made.rules


def test_metadata_may_be_assigned_to_itself() -> None:
    made = Agent("a", model="openai/x", metadata={"old": 0})
    made.metadata = made.metadata.set("k", 1)
    assert made.metadata.all() == {"old": 0, "k": 1}


def test_assigned_metadata_object_stays_live() -> None:
    shared = Metadata(values={"k": 1})
    made = Agent("a", model="openai/x", metadata=shared)
    shared.set("k", 2)
    assert made.metadata.get("k") == 2
    made.metadata.set("k", 3)
    assert (made.metadata.get("k"), shared.get("k")) == (3, 2)


async def test_assigned_values_reach_the_model() -> None:
    model = Scripted(says("ok"))
    made = Agent("a", model=model)
    async with Atlas([made]) as atlas:
        made.rules = ["Rhyme."]
        made.tools = [look]
        made.messages = [user("before"), assistant("yes")]
        await atlas.ask("now")
    request = model.requests[0]
    assert request.system == "Rules:\n- Rhyme."
    assert [tool.name for tool in request.tools] == ["look"]
    assert [message.text for message in request.messages] == ["before", "yes", "now"]


def test_duplicate_tool_names_are_rejected_at_construction() -> None:
    with pytest.raises(DuplicateTool, match="'look'"):
        Agent("a", model="openai/x", tools=[look, look_again])
    made = Agent("a", model="openai/x", tools=[look])
    with pytest.raises(DuplicateTool, match="'look'"):
        made.tools = [look, look_again]
    assert made.tools == (look,)


def test_tool_names_with_the_same_wire_name_are_rejected() -> None:
    with pytest.raises(DuplicateTool, match="duplicate tool name"):
        Agent("a", model="openai/x", tools=[Tool("mail/send", print), Tool("mail__send", print)])


async def test_two_agents_may_use_the_same_tool_name() -> None:
    one = Agent("one", model=Scripted(calls("look", at="x"), says("ok")), tools=[look])
    two = Agent("two", model=Scripted(calls("look", at="x"), says("ok")), tools=[look_again])
    async with Atlas([one, two]) as atlas:
        results = [await atlas.run("go", agent_id=id) for id in ("one", "two")]
    assert [result.steps[0].output for result in results] == ["seen x", "seen x again"]


def test_worker_processes_get_an_agent_without_models_and_tools() -> None:
    made = Agent("a", name="Ada", role="admin", model="openai/x", tools=[look], metadata={"k": 1})
    copied = pickle.loads(pickle.dumps(made.worker_copy()))
    assert (copied.id, copied.name, copied.role, copied.metadata.all()) == ("a", "Ada", "admin", {"k": 1})
    assert (copied.models, copied.tools) == ((), ())


def test_agent_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="cannot pickle agent 'a': its models and functions belong to this process"):
        pickle.dumps(Agent("a", model="openai/x", tools=[look]))


async def test_plain_tool_that_uses_an_agent_runs_in_this_process() -> None:
    helper = Agent("helper", model=Scripted(says("From the helper.")))

    @tool
    def ask_helper() -> str:
        """Ask."""
        return helper.ask_sync("Hi").text

    made = Agent("a", model=Scripted(calls("ask_helper"), says("ok")), tools=[ask_helper])
    (step,) = (await made.run("go")).steps
    assert (step.status, step.output) == ("ok", "From the helper.")
    await made.close()


@pytest.mark.parametrize("copy_agent", [copy.copy, copy.deepcopy])
async def test_copied_agent_has_everything_and_is_independent(copy_agent: Callable[[Agent], Agent]) -> None:
    shared, live = Context(rules=["Be polite."], metadata={"team": "red"}), Metadata(values={"live": 1})
    model = Scripted(calls("look", at="x"), says("ok"), says("and you?"))
    made = Agent(
        "a",
        model=model,
        tools=[look],
        rules=["Be brief."],
        contexts=[shared],
        metadata=live,
        interceptors=[Interceptor(request=lambda request: request)],
    )
    made.messages = [user("old"), assistant("yes")]
    made.metadata.set("k", [1])
    copied = copy_agent(made)
    assert (copied.settings, copied.models, copied.tools) == (made.settings, made.models, made.tools)
    assert (copied.rules, copied.interceptors, copied.messages) == (made.rules, made.interceptors, made.messages)
    assert copied.metadata.all() == made.metadata.all() == {"team": "red", "live": 1, "k": [1]}
    shared.metadata.set("team", "blue")
    live.set("live", 2)
    assert (copied.metadata["team"], copied.metadata["live"]) == ("blue", 2)
    copied.metadata.set("new", 1)
    assert (await copied.call("Hi")).success
    copied.rules, copied.tools = [], []
    assert (len(made.messages), len(made.rules), made.metadata.has("new")) == (2, 2, False) and made.tools
    assert (copied.metadata["k"] is made.metadata["k"]) == (copy_agent is copy.copy)


# Agent.call


async def test_standalone_agent_runs_a_turn_in_its_own_context() -> None:
    model = Scripted(calls("look", at="it"), says("Seen."), says("Still there."))
    made = Agent("a", model=model, tools=[look])
    messages, success, error = await made.call("Look!")
    assert (success, error) == (True, None)
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages == made.messages
    again = await made.call("And now?")
    assert [message.text for message in again.messages] == ["Look!", "", "", "Seen.", "And now?", "Still there."]
    assert len(messages) == 4
    await made.close()


async def test_call_starts_with_inherited_messages() -> None:
    model = Scripted(says("ok"))
    made = Agent("a", model=model, contexts=[Context(messages=[user("old"), assistant("yes")])])
    result = await made.call("new")
    assert [message.text for message in model.requests[0].messages] == ["old", "yes", "new"]
    assert [message.text for message in result.messages] == ["old", "yes", "new", "ok"]


async def test_call_without_an_answer_is_unsuccessful() -> None:
    made = Agent("a", model=Scripted(fails(ProviderError("bad key", "auth"))))
    messages, success, error = await made.call("hi")
    assert (success, error) == (False, "bad key")
    assert [message.text for message in messages] == ["hi"]


async def test_call_at_the_round_limit_is_unsuccessful() -> None:
    made = Agent("a", model=Scripted(calls("look", at="it")), tools=[look], max_rounds=1)
    messages, success, error = await made.call("hi")
    assert (success, error) == (False, "Max iterations reached")
    assert [message.role for message in messages] == ["user", "assistant", "tool"]


# Atlas: which agent answers


def test_atlas_constructor_has_the_specified_parameters() -> None:
    parameters = inspect.signature(Atlas).parameters
    assert list(parameters)[:2] == ["agents", "default_agent"]
    named = {"system_prompt", "history", "store", "policy", "approve", "interceptors", "tenant"}
    assert {parameters[name].kind for name in named} == {inspect.Parameter.KEYWORD_ONLY}
    assert (parameters["default_agent"].default, parameters["store"].default) == (None, None)
    assert {"session", "agent_id"} <= set(inspect.signature(Atlas.ask).parameters)
    assert {"session", "agent_id"} <= set(inspect.signature(Atlas.send).parameters)


async def test_atlas_without_agents_raises_when_used() -> None:
    atlas = Atlas()
    assert atlas.get_agent() is None
    with pytest.raises(ConfigError, match="this Atlas has no agent"):
        await atlas.ask("hi")


async def test_current_agent_is_the_default_or_the_first() -> None:
    one, two = Agent("one", model=Scripted(says("1"))), Agent("two", model=Scripted(says("2")))
    assert Atlas([one, two]).get_agent() is one
    assert Atlas([one, two], "two").get_agent() is two
    assert Atlas([one, two], default_agent=two).get_agent() is two
    assert (await Atlas([one, two], "two").ask("hi")).text == "2"


async def test_agent_is_set_by_object_or_id() -> None:
    one, two, three = (Agent(id, model=Scripted(says(id), says(id))) for id in ("one", "two", "three"))
    atlas = Atlas([one, two])
    assert atlas.set_agent_by_id("two") is atlas
    assert (await atlas.ask("hi")).text == "two"
    assert atlas.set_agent(three) is atlas
    assert (await atlas.ask("hi")).text == "three"
    assert atlas.agents == (one, two, three)


async def test_agent_id_applies_to_one_message_only() -> None:
    one, two = Agent("one", model=Scripted(says("1"), says("1"))), Agent("two", model=Scripted(says("2"), says("2")))
    async with Atlas([one, two]) as atlas:
        assert (await atlas.ask("hi", agent_id="two")).text == "2"
        assert (await atlas.ask("hi")).text == "1"
        assert (await atlas.send("hi", agent_id="two").reply()).text == "2"
        assert atlas.get_agent() is one


@pytest.mark.parametrize("ids", [("one", "two"), ()])
async def test_unknown_agent_error_lists_the_known_ids(ids: tuple[str, ...]) -> None:
    atlas = Atlas([Agent(id, model=Scripted()) for id in ids])
    complaint = f"not found: agent 'three' .known agents: {', '.join(ids) or 'none'}."
    with pytest.raises(UnknownAgent, match=complaint):
        atlas.set_agent_by_id("three")
    with pytest.raises(UnknownAgent, match=complaint):
        await atlas.ask("hi", agent_id="three")
    with pytest.raises(UnknownAgent, match=complaint):
        atlas.send("hi", agent_id="three")
    with pytest.raises(UnknownAgent, match=complaint):
        Atlas([Agent(id, model=Scripted()) for id in ids], "three")


def test_duplicate_agent_ids_are_rejected() -> None:
    with pytest.raises(ConfigError, match="duplicate agent id 'a'"):
        Atlas([Agent("a", model="openai/x"), Agent("a", model="openai/y")])


async def test_agent_with_another_model_replaces_the_old_one() -> None:
    atlas = in_memory_atlas(Scripted(says("old")))
    await atlas.ask("hi")
    atlas.set_agent(Agent("assistant", model=Scripted(says("new"))))
    assert (await atlas.ask("hi", agent_id="assistant")).text == "new"
    assert [message.text for message in atlas.conversation().messages] == ["hi", "old", "hi", "new"]
