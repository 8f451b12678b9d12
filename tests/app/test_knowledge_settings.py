"""Knowledge and memories in a runtime: tools, default policy, recall and the embedder from the settings."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from atlas_agents import ConfigError
from atlas_agents.app.app import Runtime, open_knowledge_base, open_runtime
from atlas_agents.app.tools import DEFAULT_POLICY
from atlas_agents.config.load import load
from atlas_agents.core.paths import Environment
from atlas_agents.core.store import AddJob, JobRow, SetJob
from atlas_agents.knowledge.embedding import EndpointEmbedder
from atlas_agents.knowledge.memories import MemoryOrigin, MemoryOwner
from atlas_agents.providers.registry import Registry
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.tools.policy import Actor
from checks import wait_until

TOOLS = {"search_knowledge", "search_my_memories", "remember", "forget"}
AGENTS = "# Agents\n\n## tina\n\nModel: http/rules\nRecall: on\n\n## petra\n\nModel: http/rules\nTools: none\n"


class Model:
    """OpenAI-compatible server that records its requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        message = {"role": "assistant", "content": "Noted."}
        return web.json_response(
            {"choices": [{"message": message, "finish_reason": "stop", "index": 0}], "usage": None}
        )


def load_settings(home: Path, **values: str) -> tuple[Any, Environment]:
    environment = Environment({"ATLAS_HOME": str(home), "HOME": str(home), **values}, dotenv=None)
    return load({}, environment, home.parent), environment


async def has_label(runtime: Runtime, session: str, label: str) -> bool:
    return (await runtime.atlas.sessions.get(session)).label == label


async def test_section_controls_tools_and_recall_and_chats_get_titles(tmp_path: Path) -> None:
    model = Model()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    (tmp_path / "home" / "workspace").mkdir(parents=True)
    (tmp_path / "home" / "workspace" / "AGENTS.md").write_text(AGENTS)
    settings, environment = load_settings(tmp_path / "home", OPENAI_BASE_URL=url, ATLAS_TITLE_MODEL="http/titles")
    async with open_runtime(settings, environment=environment, fetch=False) as runtime:
        tina, petra = runtime.atlas.agents
        assert {tool.name for tool in tina.tools} >= TOOLS and not petra.tools
        await runtime.knowledge.memories.remember(
            MemoryOwner("default", "tina", "ann"), "Ann likes tea.", [], MemoryOrigin("a")
        )
        await runtime.knowledge.memories.remember(
            MemoryOwner("default", "petra", "ann"), "Ann likes tea.", [], MemoryOrigin("b")
        )
        for agent in ("tina", "petra"):
            await runtime.atlas.ask("Do I like tea?", session=agent, agent_id=agent, user="ann")
            await wait_until(partial(has_label, runtime, agent, "Noted"))
    await runner.cleanup()
    answered = [body["messages"] for body in model.requests if body["model"] == "rules"]
    prompts = [json.dumps([each for each in messages if each["role"] == "user"]) for messages in answered]
    assert ["Ann likes tea." in each for each in prompts] == [True, False]


def test_default_policy_allows_remember_and_asks_before_forget() -> None:
    actor = Actor("tina", "", "ann", "default")
    cells = {
        name: DEFAULT_POLICY.verdict(name, actor, acts=name in ("remember", "forget")).cell for name in sorted(TOOLS)
    }
    assert cells == {"search_knowledge": "yes", "search_my_memories": "yes", "remember": "yes", "forget": "ask"}


@pytest.mark.parametrize(
    ("values", "model"),
    [
        ({}, "wordllama/l2-supercat-256"),
        ({"ATLAS_EMBEDDINGS": "none"}, None),
        (
            {"ATLAS_EMBEDDINGS": "any/small", "ATLAS_EMBEDDINGS_URL": "http://127.0.0.1:9/v1/"},
            "http://127.0.0.1:9/v1#small",
        ),
        ({"ATLAS_EMBEDDINGS": "ollama/nomic-embed-text"}, "http://localhost:11434/v1#nomic-embed-text"),
        ({"ATLAS_EMBEDDINGS": "openai/small", "OPENAI_API_KEY": "sk-1"}, "https://api.openai.com/v1#small"),
    ],
)
async def test_settings_select_the_embedder(tmp_path: Path, values: dict[str, str], model: str | None) -> None:
    settings, environment = load_settings(tmp_path, **values)
    knowledge = open_knowledge_base(settings, MemoryStore(), Registry(environment))
    embedder: Any = knowledge.memories.__dict__["_embedder"]
    assert (embedder.model if embedder else None) == model
    assert isinstance(embedder, EndpointEmbedder) == (model is not None and "#" in model)
    await knowledge.close()


async def test_provider_without_embeddings_is_rejected(tmp_path: Path) -> None:
    settings, environment = load_settings(tmp_path, ATLAS_EMBEDDINGS="anthropic/claude", ANTHROPIC_API_KEY="k")
    with pytest.raises(ConfigError, match="embeddings"):
        open_knowledge_base(settings, MemoryStore(), Registry(environment))


async def test_finished_job_is_found_only_by_requester_and_worker(tmp_path: Path) -> None:
    settings, environment = load_settings(tmp_path, ATLAS_EMBEDDINGS="none")
    store = MemoryStore()
    knowledge = open_knowledge_base(settings, store, Registry(environment))
    task = "Count the walruses at the harbour."
    rows = [JobRow("j1", "delegation", "archy", task, "s/jobs/j1", user="ann", asker_agent="binky")]
    rows += [JobRow("j2", "delegation", "archy", task, "s/jobs/j2", user="bob", asker_agent="binky")]
    rows += [JobRow("open", "delegation", "archy", task, "s/jobs/open", user="ann", asker_agent="binky")]
    await store.commit("default", [AddJob(row) for row in rows])
    await store.commit("other", [AddJob(msgspec.structs.replace(rows[0], id="j3"))])
    for tenant, id in (("default", "j1"), ("default", "j2"), ("other", "j3")):
        await store.commit(tenant, [SetJob(id, "done", result=f"Seven walruses, says {id}.")])

    async def found(agent: str, user: str, tenant: str = "default") -> list[tuple[str, str]]:
        owner = MemoryOwner(tenant, agent, user)
        hits = await knowledge.recall.search(owner, "how many walruses", ["workflows"])
        return [(hit.id, hit.text) for hit in hits]

    expected = f"Task for archy, asked by binky: {task}\nResult (done): Seven walruses, says j1."
    assert await found("binky", "ann") == await found("archy", "ann") == [("job:j1", expected)]
    assert [id for id, _ in await found("binky", "bob")] == ["job:j2"]
    assert [id for id, _ in await found("binky", "ann", "other")] == ["job:j3"]
    assert await found("tina", "ann") == await found("binky", "") == await found("binky", "cid") == []
    assert await knowledge.recall.search(MemoryOwner("default", "binky", "ann"), "walruses", ["audit", "memory"]) == []
    await knowledge.close()
