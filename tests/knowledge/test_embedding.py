"""Vectors without a network, and from a server."""

import importlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from aiohttp import web

from atlas_agents.core.errors import ConfigError, ProviderError
from atlas_agents.core.paths import Secret
from atlas_agents.knowledge import embedding
from atlas_agents.knowledge import embedding as embedding_module
from atlas_agents.knowledge.embedding import EndpointEmbedder, LocalEmbedder

TEXTS = ["how do I reset my password", "Walrus & carpenter: 42 oysters", "日本語のテキスト", "a\nb\tc " * 300]


async def test_our_vectors_are_those_of_the_library_itself() -> None:
    library: Any = importlib.import_module("wordllama")  # it has no types
    oracle = library.WordLlama.load(cache_dir=Path(library.__file__).parent, disable_download=True)
    theirs = oracle.embed(TEXTS, norm=True)
    ours = numpy.stack([numpy.frombuffer(each, numpy.float16) for each in await LocalEmbedder().embed(TEXTS)])
    assert ours.shape == theirs.shape == (4, 256)
    assert numpy.abs(ours.astype(numpy.float32) - theirs).max() < 2e-3


async def test_a_text_that_says_nothing_has_no_vector() -> None:
    assert [len(each) for each in await LocalEmbedder().embed(["", "x"])] == [0, 512]


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        """There is no such package."""

    monkeypatch.setattr(embedding.importlib.util, "find_spec", nothing)
    with pytest.raises(ConfigError, match=r"atlas-agents\[local\]"):
        LocalEmbedder()


def test_nothing_heavy_is_imported_before_the_first_text() -> None:
    code = (
        "import sys, atlas_agents.knowledge.knowledge_base, atlas_agents.storage.sqlite\n"
        "from atlas_agents.knowledge.embedding import LocalEmbedder\n"
        "LocalEmbedder(); heavy = ('numpy', 'tokenizers', 'wordllama', 'aiohttp', 'pypdf'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


class Server:
    """An OpenAI-compatible endpoint that answers with made-up vectors, or with what it is told to."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.answers: list[tuple[int, Any]] = []
        self.url = ""

    async def embeddings(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.append(request.headers.get("Authorization", ""))
        if self.answers:
            status, answer = self.answers.pop(0)
            return web.Response(status=status, text=json.dumps(answer), content_type="application/json")
        data = [{"index": n, "embedding": [float(len(text)), 1.0, 0.0]} for n, text in enumerate(body["input"])]
        return web.json_response({"data": data[::-1], "model": body["model"]})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    here = Server()
    app = web.Application()
    app.router.add_post("/v1/embeddings", here.embeddings)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    here.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield here
    await runner.cleanup()


async def test_a_server_is_asked_for_many_at_once_and_in_order(server: Server) -> None:
    embedder = EndpointEmbedder("small", base_url=server.url, key=Secret("k-123"))
    texts = ["x" * n for n in range(1, 101)] + [" "]
    vectors = await embedder.embed(texts)
    await embedder.close()
    first = numpy.stack([numpy.frombuffer(each, numpy.float16) for each in vectors[:100]])
    assert [round(float(row[0] / row[1])) for row in first[:20]] == list(range(1, 21))
    assert vectors[100] == b"" and [len(each["input"]) for each in server.asked] == [64, 36]
    assert set(server.keys) == {"Bearer k-123"} and embedder.model.endswith("#small")


async def test_a_busy_server_is_asked_again_and_a_wrong_key_is_not(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_module, "_FIRST_DELAY", 0.0)
    embedder = EndpointEmbedder("small", base_url=server.url, key=Secret("k-123"))
    server.answers = [(429, {}), (503, {})]
    assert len(await embedder.embed(["a"])) == 1 and len(server.asked) == 3
    server.answers = [(401, {"error": {"message": "bad key k-123"}})]
    with pytest.raises(ProviderError) as raised:
        await embedder.embed(["a"])
    assert raised.value.kind == "auth" and "k-123" not in str(raised.value)
    await embedder.close()


@pytest.mark.parametrize(
    "answer",
    [{}, {"data": []}, {"data": [{"index": 1, "embedding": [1.0]}]}, {"data": [{"index": 0, "embedding": "x"}]}],
)
async def test_an_answer_without_vectors_is_no_answer(server: Server, answer: Any) -> None:
    embedder = EndpointEmbedder("small", base_url=server.url)
    server.answers = [(200, answer)]
    with pytest.raises(ProviderError):
        await embedder.embed(["a"])
    await embedder.close()
