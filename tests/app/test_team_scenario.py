"""The example team answers a question with a handoff, a search and a delegated job, despite a `kill -9`.

`atlas serve` runs in a process with the team's files, a scripted model for each agent and a Telegram double.
"""

import asyncio
import json
import re
import threading
import tomllib
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from team_process import TEAM, TeamProcess

from atlas_agents.client import GatewayClient
from atlas_agents.workspace.workspace import parse_agents
from bot_double import TOKEN, BotDouble, Person, bot_double
from checks import TIMEOUT, wait_until
from model_server import ModelRequest, Reply, run_model_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NAMES = {spec.name: spec.id for spec in parse_agents((TEAM / "AGENTS.md").read_text(encoding="utf-8"))}
SESSION = "refunds"
QUESTION = "A customer wants the money back after 20 days. What do we say? And did others complain? Notify me, too."
TASK = "How many complaints about late refunds were there in October? Also tell the owner on Telegram."
CHAT = 42
Step: TypeAlias = Reply | Callable[[ModelRequest], Reply]


class ScriptedModels:
    """A scripted model for each agent. The last 'You are' of the system prompt names the agent."""

    def __init__(self, **steps: list[Step]) -> None:
        self.steps = steps
        self.requests: list[tuple[str, ModelRequest]] = []
        self.hanging = threading.Event()

    def __call__(self, request: ModelRequest) -> Reply:
        *_, name = re.findall(r"^You are ([\w-]+)\.", request.body["messages"][0]["content"], re.MULTILINE)
        agent = NAMES[name]
        self.requests.append((agent, request))
        if not self.steps.get(agent):
            return Reply(f"{agent} has no more steps", status=400)
        step = self.steps[agent].pop(0)
        reply = step if isinstance(step, Reply) else step(request)
        if reply.hangs:
            self.hanging.set()
        return reply

    def requests_of(self, agent: str) -> list[ModelRequest]:
        return [request for sender, request in self.requests if sender == agent]


def call(tool: str, **arguments: Any) -> Reply:
    return Reply(calls=((tool, arguments),))


def answer_with_source(text: str) -> Step:
    """Return a step that answers and cites the best search result of the conversation."""

    def reply(request: ModelRequest) -> Reply:
        found = [each["content"] for each in request.body["messages"] if each["role"] == "tool"]
        best = next(json.loads(each)["results"][0] for each in found if '"results"' in each)
        return Reply(f"{text} ({best['source']}, {best['position']})")

    return reply


def scripted_models() -> ScriptedModels:
    return ScriptedModels(
        atlas=[call("hand_off", agent="binky", note="A question about a refund.")],
        binky=[
            call("search_atlasux_knowledge", query="refund within the first 30 days, all of it back"),
            call("post_to_x", content="We refund within 30 days!"),
            call("delegate_task", target_agent="archy", task_description=TASK, deadline="30 minutes"),
            answer_with_source("All of it goes back, within five working days. Archy counts the complaints."),
            Reply("There were 7 complaints about late refunds; none since 2 November."),
        ],
        archy=[
            call("search_atlasux_knowledge", query="complaints in October: refund took longer"),
            call("send_telegram_message", message="7 complaints about late refunds in October."),
            Reply("There were", hangs=True),
            answer_with_source("There were 7 complaints about late refunds."),
        ],
    )


@pytest.fixture
async def chat() -> AsyncGenerator[tuple[BotDouble, Person]]:
    async with bot_double() as double:
        yield double, double.person(CHAT, "Ann")


def team(folder: Path, model: str, telegram: str) -> TeamProcess:
    """Return the team with a model, a bot and an unreachable X account."""
    bot = {"ATLAS_TELEGRAM_TOKEN": TOKEN, "ATLAS_TELEGRAM_URL": telegram, "ATLAS_TELEGRAM_CHAT": str(CHAT)}
    x = {"ATLAS_X_TOKEN": "a-token-of-x", "ATLAS_X_URL": "http://127.0.0.1:9"}
    return TeamProcess(folder, ATLAS_MODEL="http/rules-1", OPENAI_BASE_URL=model, **bot, **x)


@asynccontextmanager
async def connect(team_process: TeamProcess) -> AsyncGenerator[GatewayClient]:
    async with asyncio.timeout(TIMEOUT), GatewayClient(team_process.url, team_process.token) as client:
        yield client


async def get_job(client: GatewayClient) -> dict[str, Any]:
    (job,) = (await client.call("jobs.list"))["jobs"]
    return job


async def read_session(client: GatewayClient, session: str) -> list[tuple[str, str]]:
    """Return the texts of a session with their roles."""
    found = (await client.call("chat.history", sessionKey=session))["messages"]
    texts = [(each["role"], "".join(part.get("text", "") for part in each["parts"])) for each in found]
    return [(role, text) for role, text in texts if text and role != "tool"]


async def wait_for_answer(client: GatewayClient) -> list[tuple[str, str]]:
    """Return the session once the result of the job was answered."""

    async def complete_history() -> list[tuple[str, str]]:
        messages = await read_session(client, SESSION)
        return messages if len(messages) >= 4 else []

    return await wait_until(complete_history)


async def test_team_answers_a_question_despite_a_crash(tmp_path: Path, chat: tuple[BotDouble, Person]) -> None:
    double, ann = chat
    script = scripted_models()
    with run_model_server(script) as model:
        team_process = team(tmp_path, model.url, double.url)
        added = await asyncio.to_thread(team_process.run, "knowledge", "add", str(TEAM / "knowledge"), "-c", "handbook")
        assert added.returncode == 0, added.stderr
        try:
            await asyncio.to_thread(team_process.start)
            before = await _wait_until_job_runs(team_process, script)
            assert team_process.kill() == -9
            assert len(ann.sees) == 1, "the job sent its message before the crash"
            await asyncio.to_thread(team_process.start)
            async with connect(team_process) as client:
                messages = await wait_for_answer(client)
                _check_answers(messages, before, await get_job(client))
                entries = (await client.call("audit.list", limit=50))["entries"]
                _check_audit_log([each["entry"] for each in reversed(entries)])
        finally:
            team_process.kill()
    assert [each.text for each in ann.sees] == ["7 complaints about late refunds in October."]
    assert double.count("sendMessage") == 1
    assert script.steps == {"atlas": [], "binky": [], "archy": []}, "all steps were used"
    assert Counter(agent for agent, _ in script.requests) == {"atlas": 1, "binky": 5, "archy": 4}
    offered = [agent for agent in ("atlas", "binky", "archy") if "post_to_x" in script.requests_of(agent)[0].tools]
    assert offered == ["atlas"]
    assert "post_to_x is not permitted for binky" in script.requests_of("binky")[2].results[0]
    checked = await asyncio.to_thread(team_process.run, "audit", "verify")
    assert (checked.returncode, "intact" in checked.stdout) == (0, True), checked.stdout


async def _wait_until_job_runs(team_process: TeamProcess, script: ScriptedModels) -> dict[str, Any]:
    """Ask, and wait until Binky has answered and Archy's answer is incomplete."""
    async with connect(team_process) as client:
        run = (await client.call("chat.send", sessionKey=SESSION, message=QUESTION))["runId"]
        done = await client.call("chat.wait", runId=run, timeoutMs=120_000)
        assert done["status"] == "done", done
        assert await asyncio.to_thread(script.hanging.wait, 30)
        job = await get_job(client)
        assert (job["state"], job["agentId"], job["askedBy"], job["attempts"]) == ("running", "archy", "binky", 1)
        assert job["deadline"]
        return job


def _check_answers(messages: list[tuple[str, str]], before: dict[str, Any], job: dict[str, Any]) -> None:
    request, first, result, last = messages
    assert request == ("user", QUESTION)
    assert first[0] == "assistant" and re.search(r"five working days\. .*\(knowledge/refunds\.md, line \d+\)", first[1])
    assert result[0] == "user" and f"The job {job['jobId']}, which you delegated to archy, is done." in result[1]
    assert "(knowledge/complaints.md, line" in result[1]
    assert last == ("assistant", "There were 7 complaints about late refunds; none since 2 November.")
    same = ("jobId", "agentId", "deadline", "attempts", "sessionKey")
    assert (job["state"], [job[key] for key in same]) == ("done", [before[key] for key in same])


def _check_audit_log(entries: list[dict[str, Any]]) -> None:
    """Each call is logged once with agent, role and rule."""
    everyone = "policy.toml: tools.{}, yes for *"
    assert sorted(
        (each["actorExternalId"], each["meta"]["role"], each["entityId"], each["success"], each["meta"]["rule"])
        for each in entries
        if each["entityType"] == "tool"
    ) == sorted(
        [
            ("atlas", "chief", "hand_off", True, "policy.toml: hand_off has no side effects"),
            ("binky", "finance", "search_atlasux_knowledge", True, everyone.format("search_atlasux_knowledge")),
            ("binky", "finance", "post_to_x", False, "policy.toml: tools.post_to_x has no entry for binky (finance)"),
            ("binky", "finance", "delegate_task", True, "policy.toml: tools.delegate_task, yes for binky"),
            ("archy", "research", "search_atlasux_knowledge", True, everyone.format("search_atlasux_knowledge")),
            ("archy", "research", "send_telegram_message", True, everyone.format("send_telegram_message")),
        ]
    )
    (refused,) = [each for each in entries if not each["success"]]
    assert (refused["meta"]["status"], refused["meta"]["verdict"]) == ("error", "no")


def test_team_configuration_is_valid_without_a_key(tmp_path: Path) -> None:
    """`atlas doctor` reports no error, and all agents of the policy exist."""
    found = TeamProcess(tmp_path).run("doctor", "--json")
    findings = json.loads(found.stdout)["findings"]
    assert found.returncode == 0 and not [each for each in findings if each["state"] == "broken"], found.stdout
    policy = tomllib.loads((TEAM / "policy.toml").read_text(encoding="utf-8"))
    named = {agent for lines in policy["tools"].values() for names in lines.values() for agent in names}
    assert named | set(policy["groups"]["publishers"]) <= {*NAMES.values(), *policy["groups"], "*"}
    assert len(NAMES) == 18
