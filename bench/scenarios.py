"""Input of all adapters: scenarios, the ten tools and the texts. Standard library only."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Tool = Callable[..., Awaitable[str]]

MODEL = "bench-model"
SYSTEM = "You are a helpful assistant. Use the tools when they help and answer briefly."
PROMPT = "Find the open records about alpha and beta and summarise them."

HISTORY_MARK = "earlier message"  # once in each message of the history; the server counts it
RESULT_MARK = "tool-result:"  # once in each tool result; the server counts it to select the next reply

TOOL_NAMES = (
    "search_knowledge",
    "search_memories",
    "get_subscription",
    "get_team_members",
    "send_message",
    "publish_post",
    "search_posts",
    "delegate_task",
    "fetch_url",
    "read_file",
)
TOOL_ARGUMENTS = '{"query":"alpha beta","limit":3,"tags":["a","b"]}'


@dataclass(frozen=True)
class Scenario:
    """One kind of turn, and how many of them are measured."""

    note: str
    deltas: int = 20  # text deltas of the answer
    calls: tuple[int, ...] = ()  # tool calls in each model reply before the answer
    history: int = 0  # messages already in the conversation
    turns: int = 300  # maximum number of timed turns
    concurrency: int = 1  # concurrent turns
    pace_ms: float = 0  # if set, the server sends one delta every so many milliseconds
    gate: bool = False  # the server holds the answers until all concurrent turns wait for them
    fresh: bool = False  # every turn creates its own agent
    durable: bool = False  # the conversation and every step of the turn are stored in SQLite


SCENARIOS = {
    "S1": Scenario("an answer of 200 deltas", deltas=200),
    "S1p": Scenario("S1 with one delta every 2 ms", deltas=200, turns=8, pace_ms=2),
    "S2": Scenario("one tool call, then 20 deltas", calls=(1,)),
    "S2n": Scenario("S2 with a new agent per turn", calls=(1,), fresh=True),
    "S3": Scenario("ten rounds of one tool call", calls=(1,) * 10),
    "S4": Scenario("eight tool calls at once", calls=(8,)),
    "S5": Scenario("an answer of 2,000 deltas", deltas=2000),
    "S6": Scenario("a history of 200 messages", history=200),
    "S7": Scenario("256 turns of S2 at once", calls=(1,), turns=256, concurrency=256),
    "S7m": Scenario("S7, all turns held alive: memory", calls=(1,), turns=256, concurrency=256, gate=True),
    "D1": Scenario("S2 in a new stored session", calls=(1,), turns=100, durable=True),
    "D2": Scenario("S2 in a stored session of 200 messages", calls=(1,), history=200, turns=20, durable=True),
    "rounds": Scenario("210 rounds of one tool call: CPU per round as the history grows", calls=(1,) * 210),
}


def answer_deltas(scenario: Scenario) -> list[str]:
    """Return the text deltas of the answer that ends a turn."""
    return [f"tok{index:04d} " for index in range(scenario.deltas)]


def make_history(count: int) -> list[tuple[str, str]]:
    """Return (role, text) pairs of about 200 characters each, starting with the user."""
    roles = ("user", "assistant")
    filler = "lorem ipsum dolor sit amet " * 7
    return [(roles[index % 2], f"{HISTORY_MARK} {index:03d}: {filler}") for index in range(count)]


def make_tools(on_call: Callable[[], None]) -> list[Tool]:
    """Return ten annotated functions with docstrings that call `on_call` when they run."""
    return [_make_tool(name, on_call) for name in TOOL_NAMES]


def _make_tool(name: str, on_call: Callable[[], None]) -> Tool:
    async def run(query: str, limit: int = 5, tags: list[str] | None = None) -> str:
        on_call()
        return f"{RESULT_MARK} {name} found {limit} records for {query}"

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"""{_purpose(name)}

    Args:
        query: What to look for.
        limit: Largest number of results.
        tags: Keep only results with these tags.
    """
    return run


def _purpose(name: str) -> str:
    return f"Run {name} on the organisation's data and return a short summary."


def tool_schema(name: str) -> dict[str, object]:
    """Return the chat completions schema of a tool, for adapters without a framework."""
    properties = {
        "query": {"type": "string", "description": "What to look for."},
        "limit": {"type": "integer", "description": "Largest number of results.", "default": 5},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Keep only results with these tags."},
    }
    parameters = {"type": "object", "required": ["query"], "properties": properties}
    return {"type": "function", "function": {"name": name, "description": _purpose(name), "parameters": parameters}}
