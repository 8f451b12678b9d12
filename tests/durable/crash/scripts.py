"""Turn scripts: which messages the clients send, to which sessions, and under which settings."""

from typing import Any, Literal, TypeAlias

import msgspec

from crash.replies import SHAPE

Asks: TypeAlias = Literal["wait", "function"]
Mode: TypeAlias = Literal["tools", "react", "plan"]


class Send(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. The client sends the next one after the answer, or with `on` after the acknowledgement."""

    scenario: str
    key: str
    session: str = "s"
    on: bool = False
    shaped: bool = False
    steers: bool = False
    """It enters the running turn of its session, if there is one in time."""

    @property
    def text(self) -> str:
        return f"{self.scenario} #{self.key}"


class Script(msgspec.Struct, frozen=True, omit_defaults=True):
    """Each client sends its messages one after the other; `ends` are the answers without faults."""

    name: str
    clients: tuple[tuple[Send, ...], ...]
    ends: tuple[str, ...] = ()
    one_by_one: bool = False
    """The calls of a round run sequentially."""
    rounds: int = 10
    memory: int = 0
    """The number of messages that the model is sent; 0 for all."""
    compacts: int = 0
    """Tokens of a conversation from which on older messages are summarised; 0 for never."""
    per_day: int = 0
    """Calls per day; 0 for no limit."""
    budget: bool = False
    """Tokens, requests and tool calls of the turn and of the user are counted against budgets."""
    asks: Asks = "wait"
    deadline: float = 30.0
    fails_over: bool = False
    migrates: bool = False
    mode: Mode = "tools"
    jobs: bool = False
    """There are several agents, and jobs run."""
    like: str = ""
    """The script with the same transcripts, if not this one."""

    @property
    def sends(self) -> tuple[Send, ...]:
        return tuple(send for client in self.clients for send in client)

    @property
    def shaped(self) -> dict[str, Any]:
        return SHAPE


def _one(name: str, scenario: str, end: str, **settings: Any) -> Script:
    return Script(name, ((Send(scenario, "1"),),), (end,), **settings)


_QUEUED = (Send("unsafe", "1", on=True), Send("keyed", "2", on=True), Send("text", "3"))
_STEERED = (Send("unsafe", "1", on=True), Send("text", "2", steers=True))
_LONG = (Send("three rounds", "1"), Send("mixed", "2"))
_DAY = (Send("unsafe", "1"), Send("mixed", "2"), Send("keyed", "3"))

SCRIPTS: dict[str, Script] = {
    script.name: script
    for script in (
        _one("text only", "text", "Just a few words.", migrates=True),
        _one("one pure call", "pure", "Seen."),
        _one("one unsafe call", "unsafe", "Paid."),
        _one("one keyed call", "keyed", "Ordered."),
        _one("four calls at once", "mixed", "All done."),
        _one("calls one by one", "mixed", "All done.", one_by_one=True),
        _one("three rounds", "three rounds", "Done."),
        _one("approved", "yes", "Wired."),
        _one("approved by a function", "yes", "Wired.", asks="function"),
        _one("declined", "no", "Not wired."),
        _one("no answer", "silent", "Not approved.", deadline=0.15),
        _one("answered too late", "late", "Not approved in time.", deadline=0.15),
        _one("approved as edited", "edited", "Wired as edited."),
        _one("some approved", "both", "Some of it."),
        _one("a call by the client", "client", "Handed."),
        _one("a call fails", "fails", "One of them failed."),
        _one("a call runs into a bug", "bug", "It broke."),
        _one("a call is tried again", "flaky", "Rung."),
        _one("reconciled", "checked", "Shipped."),
        _one("unknown outcome", "untold", "Posted."),
        _one("a call in a thread", "thread", "Pressed."),
        _one("cancelled in a pure call", "stopped", ""),
        _one("cancelled in an unsafe call", "stopped later", ""),
        _one("failover after words", "mixed", "All done.", fails_over=True, budget=True),
        _one("failover after a call", "three rounds", "Done.", fails_over=True),
        Script("short memory", (_LONG,), ("Done.", "All done."), memory=3),
        Script("summarised", ((Send("unsafe", "1"), Send("keyed", "2")),), ("Paid.", "Ordered."), compacts=90),
        _one("rounds spent", "endless", "", rounds=2),
        Script("three in a queue", (_QUEUED,), ("Paid.", "Ordered.", "Just a few words.")),
        Script("steered", (_STEERED,)),
        Script(
            "the day is spent", (_DAY,), ("Paid.", "All done.", "Ordered."), one_by_one=True, per_day=3, budget=True
        ),
        Script("a wanted shape", ((Send("shape", "1", shaped=True),),), ('{"n": 7}',), memory=2),
        _one("calls that cannot be", "bad call", "Never mind."),
        _one("by a plan", "plan", "All as planned.", mode="plan"),
        _one("in text", "steps", "Paid and ordered.", mode="react"),
        Script("handed on", ((Send("hand on", "1"),),), ("Handed on.", "Good to know.", "Paid."), jobs=True),
        Script("handed further", ((Send("hand further", "1"),),), jobs=True),
        Script("two handed on", ((Send("hand both", "1"),),), jobs=True),
    )
}
POISON = Script("poison", ((Send("poison", "1"), Send("text", "2")),))
