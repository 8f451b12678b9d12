"""Pictures and files named by address in a history: we fetch none of them, and no local one is passed on."""

from urllib.parse import urlsplit

import pytest
from fake_internet import page

from atlas_agents import Agent, Atlas
from atlas_agents.core.http import is_public_url
from atlas_agents.core.messages import File, Image, Message, Text, user
from atlas_agents.providers.anthropic import encode_request as to_anthropic
from atlas_agents.providers.base import Request
from atlas_agents.providers.openai import encode_request as to_openai
from atlas_agents.testing import Environment, Registry, Scripted, in_memory_atlas, says
from fault_server import FaultServer
from model_server import ModelRequest, Reply, run_model_server

LOCAL = [
    "http://127.0.0.1/cat.png",
    "http://10.0.0.7/cat.png",
    "http://169.254.169.254/latest/meta-data",
    "http://localhost:18789/api",
    "http://[::1]/",
    "http://[::ffff:7f00:1]/",
    "http://2130706433/",
    "http://0x7f.1/",
    "http://127.1/",
    "http://\u2460\u2461\u2466.0.0.1/",
    "http://127.0.0.1\\@a.example/",
    "http://a.localhost/",
    "http://nas.local/",
    "http://metadata.google.internal/",
    "http://nas/",
    "file:///etc/passwd",
    "ftp://a.example/",
    "http://",
    "http://[::1",
]
PUBLIC = [
    "https://example.com/cat.png",
    "http://8.8.8.8/",
    "https://[2606:4700::1111]/",
    "https://b\u00fccher.example/",
]


@pytest.mark.parametrize("url", LOCAL)
def test_local_url_is_not_passed_to_a_provider(url: str) -> None:
    message = user("Look:", Image("image/png", url=url), File("a.pdf", "application/pdf", url=url))
    for body in (to_openai(Request([message]), "m"), to_anthropic(Request([message]), "m")):
        assert url.encode() not in body
        assert b"[omitted: content at a non-public address]" in body
    assert not is_public_url(url)


@pytest.mark.parametrize("url", PUBLIC)
def test_public_url_is_passed_to_the_provider(url: str) -> None:
    message = Message("user", (Text("Look:"), Image("image/png", url=url)))
    assert url in to_openai(Request([message]), "m").decode()
    is_accepted = url.startswith("https:")  # Anthropic accepts no others
    assert (url in to_anthropic(Request([message]), "m").decode()) == is_accepted


async def test_urls_in_a_history_are_not_fetched() -> None:
    """Checking, counting, encoding and storing a history send no request to the URLs in it."""
    async with FaultServer(then=page("secret")) as trap:
        parts = (
            Image("image/png", url=f"{trap.url}/cat.png"),
            File("a.pdf", "application/pdf", url=f"{trap.url}/a.pdf"),
        )
        await in_memory_atlas(Scripted(says("Nice."), says("Again."))).ask(user("Look:", *parts))

        def mind(asked: ModelRequest) -> Reply:
            return Reply("Nice." if str(urlsplit(trap.url).port) not in str(asked.body) else "I could fetch it.")

        with run_model_server(mind) as model:
            registry = Registry(Environment(model.settings, dotenv=None))
            async with Atlas([Agent("a", model="http/any")], registry=registry) as atlas:
                reply = await atlas.ask(user("Look:", *parts))
        assert reply.text == "Nice."
        assert trap.requests == []
