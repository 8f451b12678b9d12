"""The example team at work: a question is handed over, looked up, handed on, and answered, with a `kill -9` in between.

The team's own files, `atlas serve` as a process, a model by script for each agent, and a chat outside that sees what
was really done.
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
from checks import until
from model_server import Asked, Reply, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
NAMES = {spec.name: spec.id for spec in parse_agents((TEAM / "AGENTS.md").read_text(encoding="utf-8"))}
SESSION = "refunds"
QUESTION = "A customer wants the money back after 20 days. What do we say? And did others complain? Notify me, too."
TASK = "How many complaints about late refunds were there in October? Also tell the owner on Telegram."
CHAT = 42
Step: TypeAlias = Reply | Callable[[Asked], Reply]


class Minds:
    """A model for each agent: it says its lines one after the other, and no line twice.

    Everybody reads who the others are; an agent's own prompt comes last.
    """

    def __init__(self, **lines: list[Step]) -> None:
        self.lines = lines
        self.asked: list[tuple[str, Asked]] = []
        self.held = threading.Event()

    def __call__(self, asked: Asked) -> Reply:
        *_, name = re.findall(r"^You are ([\w-]+)\.", asked.body["messages"][0]["content"], re.MULTILINE)
        agent = NAMES[name]
        self.asked.append((agent, asked))
        if not self.lines.get(agent):
            return Reply(f"{agent} has no more lines", status=400)
        step = self.lines[agent].pop(0)
        reply = step if isinstance(step, Reply) else step(asked)
        if reply.holds:
            self.held.set()
        return reply

    def of(self, agent: str) -> list[Asked]:
        return [asked for who, asked in self.asked if who == agent]


def call(tool: str, **arguments: Any) -> Reply:
    return Reply(calls=((tool, arguments),))


def cites(words: str) -> Step:
    """Say it, and name the source of the best that was found in this conversation."""

    def reply(asked: Asked) -> Reply:
        found = [each["content"] for each in asked.body["messages"] if each["role"] == "tool"]
        best = next(json.loads(each)["results"][0] for each in found if '"results"' in each)
        return Reply(f"{words} ({best['source']}, {best['position']})")

    return reply


def minds() -> Minds:
    return Minds(
        atlas=[call("hand_off", agent="binky", note="A question about a refund.")],
        binky=[
            call("search_atlasux_knowledge", query="refund within the first 30 days, all of it back"),
            call("post_to_x", content="We refund within 30 days!"),
            call("delegate_task", target_agent="archy", task_description=TASK, deadline="30 minutes"),
            cites("All of it goes back, within five working days. Archy counts the complaints."),
            Reply("There were 7 complaints about late refunds; none since 2 November."),
        ],
        archy=[
            call("search_atlasux_knowledge", query="complaints in October: refund took longer"),
            call("send_telegram_message", message="7 complaints about late refunds in October."),
            Reply("There were", holds=True),
            cites("There were 7 complaints about late refunds."),
        ],
    )


@pytest.fixture
async def chat() -> AsyncGenerator[tuple[BotDouble, Person]]:
    async with bot_double() as double:
        yield double, double.person(CHAT, "Ann")


def team(folder: Path, model: str, telegram: str) -> TeamProcess:
    """The team with a model, a bot, and an account of X that nobody reaches."""
    bot = {"ATLAS_TELEGRAM_TOKEN": TOKEN, "ATLAS_TELEGRAM_URL": telegram, "ATLAS_TELEGRAM_CHAT": str(CHAT)}
    x = {"ATLAS_X_TOKEN": "a-token-of-x", "ATLAS_X_URL": "http://127.0.0.1:9"}
    return TeamProcess(folder, ATLAS_MODEL="http/rules-1", OPENAI_BASE_URL=model, **bot, **x)


@asynccontextmanager
async def joined(place: TeamProcess) -> AsyncGenerator[GatewayClient]:
    async with asyncio.timeout(70), GatewayClient(place.url, place.token) as client:
        yield client


async def job_of(client: GatewayClient) -> dict[str, Any]:
    (job,) = (await client.call("jobs.list"))["jobs"]
    return job


async def said(client: GatewayClient, session: str) -> list[tuple[str, str]]:
    """All words of a session, with who said them."""
    found = (await client.call("chat.history", sessionKey=session))["messages"]
    texts = [(each["role"], "".join(part.get("text", "") for part in each["parts"])) for each in found]
    return [(role, text) for role, text in texts if text and role != "tool"]


async def until_told(client: GatewayClient) -> list[tuple[str, str]]:
    """The session, once the asker has answered what came back."""

    async def whole() -> list[tuple[str, str]]:
        words = await said(client, SESSION)
        return words if len(words) >= 4 else []

    return await until(whole, patience=30)


async def test_a_question_goes_through_the_team_and_a_sudden_end(
    tmp_path: Path, chat: tuple[BotDouble, Person]
) -> None:
    double, ann = chat
    script = minds()
    with serving(script) as model:
        place = team(tmp_path, model.url, double.url)
        added = await asyncio.to_thread(place.run, "knowledge", "add", str(TEAM / "knowledge"), "-c", "handbook")
        assert added.returncode == 0, added.stderr
        try:
            await asyncio.to_thread(place.start)
            before = await _until_the_job_runs(place, script)
            assert place.kill() == -9
            assert len(ann.sees) == 1, "what the job did outside was done before the end"
            await asyncio.to_thread(place.start)
            async with joined(place) as client:
                words = await until_told(client)
                _check_the_answers(words, before, await job_of(client))
                entries = (await client.call("audit.list", limit=50))["entries"]
                _check_the_audit([each["entry"] for each in reversed(entries)])
        finally:
            place.kill()
    assert [each.text for each in ann.sees] == ["7 complaints about late refunds in October."]
    assert double.count("sendMessage") == 1
    assert script.lines == {"atlas": [], "binky": [], "archy": []}, "every line was said"
    assert Counter(who for who, _ in script.asked) == {"atlas": 1, "binky": 5, "archy": 4}
    assert ["post_to_x" in script.of(who)[0].tools for who in ("atlas", "binky", "archy")] == [True, False, False]
    assert "post_to_x is not permitted for binky" in script.of("binky")[2].results[0]
    checked = await asyncio.to_thread(place.run, "audit", "verify")
    assert (checked.returncode, "intact" in checked.stdout) == (0, True), checked.stdout


async def _until_the_job_runs(place: TeamProcess, script: Minds) -> dict[str, Any]:
    """Ask, and wait until Binky has answered and Archy is in the middle of a sentence."""
    async with joined(place) as client:
        run = (await client.call("chat.send", sessionKey=SESSION, message=QUESTION))["runId"]
        done = await client.call("chat.wait", runId=run, timeoutMs=30_000)
        assert done["status"] == "done", done
        assert await asyncio.to_thread(script.held.wait, 30)
        job = await job_of(client)
        assert (job["state"], job["agentId"], job["askedBy"], job["attempts"]) == ("running", "archy", "binky", 1)
        assert job["deadline"]
        return job


def _check_the_answers(words: list[tuple[str, str]], before: dict[str, Any], job: dict[str, Any]) -> None:
    asked, first, came_back, last = words
    assert asked == ("user", QUESTION)
    assert first[0] == "assistant" and re.search(r"five working days\. .*\(knowledge/refunds\.md, line \d+\)", first[1])
    assert came_back[0] == "user" and f"The job {job['jobId']}, which you delegated to archy, is done." in came_back[1]
    assert "(knowledge/complaints.md, line" in came_back[1]
    assert last == ("assistant", "There were 7 complaints about late refunds; none since 2 November.")
    same = ("jobId", "agentId", "deadline", "attempts", "sessionKey")
    assert (job["state"], [job[key] for key in same]) == ("done", [before[key] for key in same])


def _check_the_audit(entries: list[dict[str, Any]]) -> None:
    """Who did what, in which role, under which rule; each thing once."""
    everyone = "policy.toml: tools.{}, yes for *"
    assert sorted(
        (each["actorExternalId"], each["meta"]["role"], each["entityId"], each["success"], each["meta"]["rule"])
        for each in entries
    ) == sorted(
        [
            ("atlas", "chief", "hand_off", True, "policy.toml: hand_off has no effects"),
            ("binky", "finance", "search_atlasux_knowledge", True, everyone.format("search_atlasux_knowledge")),
            ("binky", "finance", "post_to_x", False, "policy.toml: tools.post_to_x has no line for binky (finance)"),
            ("binky", "finance", "delegate_task", True, "policy.toml: tools.delegate_task, yes for binky"),
            ("archy", "research", "search_atlasux_knowledge", True, everyone.format("search_atlasux_knowledge")),
            ("archy", "research", "send_telegram_message", True, everyone.format("send_telegram_message")),
        ]
    )
    (refused,) = [each for each in entries if not each["success"]]
    assert (refused["meta"]["status"], refused["meta"]["verdict"]) == ("error", "no")


def test_the_team_is_whole_without_a_key(tmp_path: Path) -> None:
    """`atlas doctor` finds nothing broken, and all agents of the policy are there."""
    found = TeamProcess(tmp_path).run("doctor", "--json")
    findings = json.loads(found.stdout)["findings"]
    assert found.returncode == 0 and not [each for each in findings if each["state"] == "broken"], found.stdout
    policy = tomllib.loads((TEAM / "policy.toml").read_text(encoding="utf-8"))
    named = {who for lines in policy["tools"].values() for names in lines.values() for who in names}
    assert named | set(policy["groups"]["publishers"]) <= {*NAMES.values(), *policy["groups"], "*"}
    assert len(NAMES) == 18
