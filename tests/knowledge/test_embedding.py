"""Embedders: the local one, and one for an HTTP endpoint."""

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


async def test_vectors_equal_those_of_wordllama() -> None:
    library: Any = importlib.import_module("wordllama")  # untyped
    oracle = library.WordLlama.load(cache_dir=Path(library.__file__).parent, disable_download=True)
    theirs = oracle.embed(TEXTS, norm=True)
    ours = numpy.stack([numpy.frombuffer(each, numpy.float16) for each in await LocalEmbedder().embed(TEXTS)])
    assert ours.shape == theirs.shape == (4, 256)
    assert numpy.abs(ours.astype(numpy.float32) - theirs).max() < 2e-3


async def test_empty_text_has_no_vector() -> None:
    assert [len(each) for each in await LocalEmbedder().embed(["", "x"])] == [0, 512]


def test_missing_extra_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> None:
        """Find no package."""

    monkeypatch.setattr(embedding.importlib.util, "find_spec", find_nothing)
    with pytest.raises(ConfigError, match=r"atlas-agents\[local\]"):
        LocalEmbedder()


def test_heavy_modules_are_imported_with_the_first_text() -> None:
    code = (
        "import sys, atlas_agents.knowledge.knowledge_base, atlas_agents.storage.sqlite\n"
        "from atlas_agents.knowledge.embedding import LocalEmbedder\n"
        "LocalEmbedder(); heavy = ('numpy', 'tokenizers', 'wordllama', 'aiohttp', 'pypdf'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


class Server:
    """OpenAI-compatible endpoint that returns artificial vectors, or the queued `responses`."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.responses: list[tuple[int, Any]] = []
        self.url = ""

    async def embeddings(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("Authorization", ""))
        if self.responses:
            status, response = self.responses.pop(0)
            return web.Response(status=status, text=json.dumps(response), content_type="application/json")
        data = [{"index": n, "embedding": [float(len(text)), 1.0, 0.0]} for n, text in enumerate(body["input"])]
        return web.json_response({"data": data[::-1], "model": body["model"]})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    endpoint = Server()
    app = web.Application()
    app.router.add_post("/v1/embeddings", endpoint.embeddings)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield endpoint
    await runner.cleanup()


async def test_endpoint_is_called_in_batches_and_order_is_kept(server: Server) -> None:
    embedder = EndpointEmbedder("small", base_url=server.url, key=Secret("k-123"))
    texts = ["x" * n for n in range(1, 101)] + [" "]
    vectors = await embedder.embed(texts)
    await embedder.close()
    first = numpy.stack([numpy.frombuffer(each, numpy.float16) for each in vectors[:100]])
    assert [round(float(row[0] / row[1])) for row in first[:20]] == list(range(1, 21))
    assert vectors[100] == b"" and [len(each["input"]) for each in server.requests] == [64, 36]
    assert set(server.keys) == {"Bearer k-123"} and embedder.model.endswith("#small")


async def test_busy_endpoint_is_retried_and_an_invalid_key_is_not(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_module, "_FIRST_DELAY", 0.0)
    embedder = EndpointEmbedder("small", base_url=server.url, key=Secret("k-123"))
    server.responses = [(429, {}), (503, {})]
    assert len(await embedder.embed(["a"])) == 1 and len(server.requests) == 3
    server.responses = [(401, {"error": {"message": "bad key k-123"}})]
    with pytest.raises(ProviderError) as raised:
        await embedder.embed(["a"])
    assert raised.value.kind == "auth" and "k-123" not in str(raised.value)
    await embedder.close()


@pytest.mark.parametrize(
    "response",
    [{}, {"data": []}, {"data": [{"index": 1, "embedding": [1.0]}]}, {"data": [{"index": 0, "embedding": "x"}]}],
)
async def test_response_without_vectors_is_an_error(server: Server, response: Any) -> None:
    embedder = EndpointEmbedder("small", base_url=server.url)
    server.responses = [(200, response)]
    with pytest.raises(ProviderError):
        await embedder.embed(["a"])
    await embedder.close()
