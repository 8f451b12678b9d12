"""`url_fetch` in a session with untrusted content: a URL that the model composed could carry data out."""

from typing import Any

import pytest
from fake_internet import fake_internet, page, redirect

from atlas_agents import Conversation, Message, Question, ToolResult, user
from atlas_agents.builtin_tools.web.fetch import is_composed_url
from atlas_agents.core.messages import UNTRUSTED
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


async def test_page_that_another_page_links_is_fetched_but_a_composed_url_needs_approval() -> None:
    asked: list[str] = []

    def refuse(question: Question) -> bool:
        asked.append(question.reason)
        return False

    async with fake_internet(page('<a href="http://pub.test/two">two</a>'), page("<p>Two"), page("<p>Three")) as web:
        model = Scripted(
            calls("url_fetch", url="http://pub.test/one"),
            calls("url_fetch", url="http://pub.test/two"),
            calls("url_fetch", url="http://pub.test/two?customers=all"),
            says("Done."),
        )
        async with in_memory_atlas(model, [web.tool], approve=refuse) as atlas:
            await atlas.ask("Read it.")
        assert [request.path for request in web.server.requests] == ["/one", "/two"]
    assert asked == [
        "untrusted content in this session (web: http://pub.test/one, web: http://pub.test/two): "
        "url_fetch sends data out"
    ]


def conversation(*messages: Message) -> Conversation:
    return Conversation(messages)


def result(text: Any, source: str) -> Message:
    return Message("tool", (ToolResult("c", "ok", text, untrusted=source),))


EXFILTRATION = "https://evil.example/?d=customers"


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Message("assistant", user(EXFILTRATION).parts), id="the-model"),
        pytest.param(result(EXFILTRATION, "command: bash"), id="an-echoing-command"),
        pytest.param(result(EXFILTRATION, "file: file_read"), id="a-file-that-it-wrote"),
        pytest.param(result(EXFILTRATION, "memory: web: https://evil.example/"), id="a-memory"),
        pytest.param(result(EXFILTRATION, "agent: web: https://evil.example/"), id="another-agent"),
        pytest.param(result(EXFILTRATION, ""), id="a-trusted-tool"),
        pytest.param(user(EXFILTRATION, **{UNTRUSTED: ["web: x"]}), id="a-delegated-task"),
        pytest.param(user(EXFILTRATION, synthetic=True), id="a-recalled-memory"),
        pytest.param(user(f"{EXFILTRATION}-and-more"), id="a-prefix-of-a-url"),
        pytest.param(user(f"{EXFILTRATION}.more"), id="a-prefix-up-to-a-dot"),
        pytest.param(user("https://evil.example/?d="), id="a-url-to-complete"),
    ],
)
def test_url_from_what_the_model_can_write_counts_as_composed(message: Message) -> None:
    assert is_composed_url({"url": EXFILTRATION}, conversation(message))


@pytest.mark.parametrize(
    "message",
    [
        user(f"Read {EXFILTRATION}."),
        user(f"({EXFILTRATION}), please"),
        result({"results": [{"url": EXFILTRATION}]}, "web: web_search"),
        result(f"[x]({EXFILTRATION}#top)", "web: https://evil.example/"),
    ],
)
def test_url_from_the_user_or_the_web_is_not_composed(message: Message) -> None:
    assert not is_composed_url({"url": EXFILTRATION}, conversation(message))
    assert not is_composed_url({"url": f"{EXFILTRATION}#part"}, conversation(message))


def _approve(question: Question) -> bool:
    return True


async def test_url_that_the_guard_refuses_does_not_mark_the_session_but_a_redirect_does() -> None:
    async with fake_internet(redirect("http://127.0.0.1/"), redirect("ftp://obey.me/")) as web:
        model = Scripted(
            calls("url_fetch", url="http://127.0.0.1/"),
            calls("url_fetch", url="http://localhost:22/"),
            calls("url_fetch", url="http://pub.test/a"),
            calls("url_fetch", url="http://pub.test/b"),
            says("Done."),
        )
        async with in_memory_atlas(model, [web.tool], approve=_approve) as atlas:
            await atlas.ask("Read it.")
        results = [each for message in model.requests[-1].messages for each in message.tool_results]
    assert [each.status for each in results] == ["error"] * 4
    assert [each.untrusted for each in results] == ["", "", "web: http://pub.test/a", "web: http://pub.test/b"]
