"""`atlas approvals …`: a call that was not shown whole cannot be approved."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from atlas_command import ENTER, Home, ServeProcess, eventually

from atlas_agents.cli import prompts
from atlas_agents.client import GatewayClient
from atlas_agents.gateway.protocol.types import ApprovalShape
from checks import wait_until

pytestmark = pytest.mark.slow
HIDDEN = "touch canary"
LONG = f"echo {'harmless ' * 500}; {HIDDEN}; echo {'harmless ' * 500}end"


def request_approval(home: Home, gateway: ServeProcess, command: str, session: str = "s") -> str:
    """Let the agent request approval of a command, and return the id of the request."""

    async def send() -> str:
        token = (home.path / "token").read_text().strip()
        async with GatewayClient(gateway.url, token) as client:
            await client.call("chat.send", session_key=session, message=f"act {command}", idempotency_key=command[:100])

            async def pending() -> Any:
                found = (await client.call("approvals.list"))["approvals"]
                return [each for each in found if each["sessionKey"] == session]

            return (await wait_until(pending))[0]["approvalId"]

    return asyncio.run(send())


def has_acted(home: Home) -> bool:
    return (home.folder / "acted").exists()


def wait_for_action(home: Home) -> str:
    """Return what the tool wrote; its file exists a moment before it has content."""
    acted = home.folder / "acted"
    eventually(lambda: acted.exists() and bool(acted.read_text()))
    return acted.read_text()


def test_long_call_is_not_approved_unread(home: Home) -> None:
    with home.gateway() as gateway:
        id = request_approval(home, gateway, LONG)
        refused = home.run("approvals", "approve", id[:8])
        assert refused.returncode == 2 and f"atlas approvals show {id}" in refused.stderr.replace("\n", " ")
        assert HIDDEN in refused.stdout and not has_acted(home)
        shown = home.run("approvals", "show", id[:8])
        assert shown.returncode == 0 and LONG in shown.stdout
        approved = home.run("approvals", "approve", id, "--yes")
        assert approved.returncode == 0 and LONG in approved.stdout
        assert HIDDEN in wait_for_action(home)


def test_terminal_shows_a_long_call_page_by_page_and_asks(home: Home) -> None:
    with home.gateway() as gateway:
        id = request_approval(home, gateway, LONG)
        with home.terminal("approvals", "approve", id, rows=20, columns=100) as person:
            person.expect(r"\? .*act(.|\n)*more lines: Enter continues, q stops -- *$")
            person.type("q" + ENTER)
            person.expect("Nothing was approved")
            assert person.wait_for_exit() == 1 and not has_acted(home)
        with home.terminal("approvals", "approve", id, rows=20, columns=100) as person:
            screen = person.expect(r"-- \d+ more lines: Enter continues, q stops -- *$")
            left = int(re.findall(r"-- (\d+) more lines", screen)[-1])
            assert "canary" not in screen
            while left > 0:
                person.type(ENTER)
                left -= 18
                person.expect(rf"-- {left} more lines: Enter continues, q stops -- *$" if left > 0 else r"\[y/N\] *$")
            assert "canary" in person.text.replace("\n", "") and not has_acted(home)
            person.type("n" + ENTER)
            assert person.wait_for_exit() == 1 and not has_acted(home)


def test_short_call_is_shown_when_it_is_approved(home: Home) -> None:
    with home.gateway() as gateway:
        id = request_approval(home, gateway, "short")
        approved = home.run("approvals", "approve", id)
        assert approved.returncode == 0 and 'command = "short"' in approved.stdout
        assert "short" in wait_for_action(home)


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_empty_id_answers_no_request(home: Home, answer: str) -> None:
    with home.gateway() as gateway:
        id = request_approval(home, gateway, "short")
        refused = home.run("approvals", answer, "")
        assert refused.returncode == 2 and "invalid approval ''" in refused.stderr
        assert id in home.run("approvals", "list").stdout and not has_acted(home)


def test_two_durations_of_an_approval_are_rejected(home: Home) -> None:
    with home.gateway() as gateway:
        id = request_approval(home, gateway, "short")
        refused = home.run("approvals", "approve", id, "--session", "--always")
        assert refused.returncode == 2 and "--session and --always cannot be combined" in refused.stderr
        assert id in home.run("approvals", "list").stdout and not has_acted(home)


def test_several_calls_are_shown_and_answered_together(home: Home) -> None:
    with home.gateway() as gateway:
        ids = [request_approval(home, gateway, f"call {name}", session=name) for name in ("a", "b", "c")]
        refused = home.run("approvals", "approve", *ids, "--always")
        assert refused.returncode == 2 and "can only be approved once" in refused.stderr
        denied = home.run("approvals", "deny", ids[2], "--reason", "not now")
        assert denied.returncode == 0
        unknown = home.run("approvals", "approve", "nothing")
        assert unknown.returncode == 2 and ids[0] in unknown.stderr
        approved = home.run("approvals", "approve", *ids[:2])
        assert approved.returncode == 0 and 'command = "call a"' in approved.stdout
        assert approved.stderr.split() == [f"{ids[0]}:", "allow-once.", f"{ids[1]}:", "allow-once."]
        assert "call" in wait_for_action(home)


async def test_prompt_refuses_to_allow_a_call_with_a_hidden_part(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    answers = iter(["once", "always", "show", "once"])

    async def read(prompt: Any, text: str, default: str = "", keys: Any = None) -> str:
        return next(answers)

    monkeypatch.setattr(prompts, "_read", read)

    def print_line(text: str, style: str = "") -> None:
        lines.append(text)

    view: Any = SimpleNamespace(print_line=print_line, end=lambda: 0, begin=lambda: 0)
    request = ApprovalShape(
        *("a", "r", "s", "c", "bash", "Run bash?"),
        details={"command": LONG},
        command="",
        working_dir=str(Path.cwd()),
        risk="",
        options=("allow-once", "allow-always", "deny"),
        expires_at=0,
    )
    reply = await prompts.ask_user(request, view)
    assert reply.decision == "allow-once" and list(answers) == []
    hidden = [number for number, line in enumerate(lines) if "a part of this call is hidden" in line]
    whole = [number for number, line in enumerate(lines) if HIDDEN in line]
    assert len(hidden) == 2 and whole and whole[0] > hidden[-1]
