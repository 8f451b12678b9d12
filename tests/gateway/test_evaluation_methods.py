"""Evaluations over the protocol: list them, read one, and compare it with an earlier one."""

import json
from pathlib import Path

from gateway_client import connect_client, serve_gateway
from test_mcp_methods import fail

from atlas_agents.evaluation import Evaluation, Result, ResultFile


def store(folder: Path, id: str, scores: dict[str, float], model: str = "fake/one", started_at: int = 1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    evaluation = Evaluation(
        id=id,
        name="greetings",
        file="cases.yaml",
        started_at=started_at,
        fingerprint="",
        agents=("bot",),
        models=(model,),
        repeat=1,
        total=len(scores),
    )
    file = ResultFile.create(folder / f"{id}.jsonl", evaluation)
    for case, score in scores.items():
        status = "passed" if score == 1 else "failed"
        file.add(Result(case=case, agent="bot", model=model, status=status, score=score, answer="x" * 1000, seconds=1))


async def test_evaluations_are_listed_read_and_compared(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        assert (await client.get("evaluations.list"))["evaluations"] == []
        folder = gateway.settings.home / "evaluations"
        store(folder, "old", {f"c{n}": 1.0 for n in range(6)})
        store(folder, "new", {f"c{n}": float(n > 0) for n in range(6)}, started_at=2)
        (folder / "damaged.jsonl").write_text("{")
        listed = (await client.get("evaluations.list"))["evaluations"]
        assert [(each["id"], each["passed"], each["total"]) for each in listed] == [("new", 5, 6), ("old", 6, 6)]

        found = await client.get("evaluations.get", id="new", compare="old")
        assert found["evaluation"]["name"] == "greetings" and len(found["rows"]) == 6
        assert (found["rows"][0]["status"], found["rows"][0]["before"]) == ("failed", 1.0)
        assert "before" not in found["rows"][1] and len(found["rows"][0]["answer"]) == 400
        (column,) = found["columns"]
        assert column["passed"] == 5 and column["low"] < 5 / 6 < column["high"]
        (comparison,) = found["comparisons"]
        assert comparison["cases"] == 6 and comparison["difference"] < 0 and comparison["low"] < comparison["high"]


async def test_unknown_evaluation_is_refused(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        folder = gateway.settings.home / "evaluations"
        store(folder, "one", {"a": 1.0})
        (folder.parent / "secret.jsonl").write_text("{}")
        for id in ("two", "../secret", "", "one.jsonl"):
            assert "evaluation" in (await fail(client, "evaluations.get", id=id))["message"]


async def test_token_with_its_own_sessions_cannot_read_evaluations(tmp_path: Path) -> None:
    """Cases that were made of stored runs contain conversations of other users."""
    token = "carl-0123456789abcdefghijklmnop"
    entry = {"token": token, "scopes": ["read", "admin"]}
    (tmp_path / "tokens.json").write_text(json.dumps({"carl": entry}))
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway, token=token) as client:
        store(gateway.settings.home / "evaluations", "one", {"a": 1.0})
        for method, params in (("evaluations.list", {}), ("evaluations.get", {"id": "one"})):
            assert (await fail(client, method, **params))["data"]["kind"] == "FORBIDDEN"
