"""Results are durable: an evaluation that was killed in the middle runs only what is missing."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from answering_model import Answering, registry_of

from atlas_agents import Agent, Budget, ConfigError
from atlas_agents.evaluation import (
    Case,
    EvaluationOptions,
    Evaluator,
    ResultFile,
    Suite,
    list_evaluations,
    read_evaluation,
)
from atlas_agents.providers.testing import says
from checks import wait_until

PROGRAM = """
import asyncio, sys
from pathlib import Path
from typing import Any
sys.path[:0] = sys.argv[2:]
import test_resumed_evaluations
from answering_model import Answering, registry_of
from atlas_agents.evaluation import ResultFile
from atlas_agents.providers.testing import says

class Stuck(Answering):
    async def stream(self, request):
        if len(self.asked) >= 5:
            print("stuck", flush=True)
            await asyncio.Event().wait()
        async for chunk in super().stream(request):
            yield chunk

async def main():
    evaluator = test_resumed_evaluations.evaluator(Stuck(lambda text: says("hello")))
    await evaluator.run(ResultFile.create(Path(sys.argv[1]), evaluator.start()))

asyncio.run(main())
"""


def evaluator(model: Answering, cases: int = 12, text: str = "hello", **options: Any) -> Evaluator:
    found = [Case(id=f"case-{n}", input=f"Question {n}", expect={"contains": text}) for n in range(cases)]
    suite = Suite("s", cases=found, agents=[Agent("bot")], models=["fake/one"])
    given = msgspec.convert({"parallel": 2, **options}, EvaluationOptions)
    return Evaluator(suite, given, registry=registry_of(model))


async def kill_in_the_middle(path: Path) -> None:
    """Run the evaluation in a process whose model stops answering, and kill it when results are there."""
    here = Path(__file__).parent
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, str(path), str(here), str(here.parent)), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None and await process.stdout.readline() == b"stuck\n"
    await wait_until(lambda: path.read_bytes().count(b"\n") >= 5)
    with pytest.raises(ConfigError, match="another process runs the evaluation"):
        await evaluator(Answering({})).run(ResultFile.read(path))
    process.send_signal(signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL


@pytest.mark.slow
async def test_killed_evaluation_resumes_with_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    await kill_in_the_middle(path)
    before = ResultFile.read(path)
    finished = {result.case for result in before.evaluation.results}
    assert 4 <= len(finished) < 12 and not before.evaluation.complete

    model = Answering(lambda text: says("hello"))
    evaluation = await evaluator(model).run(before)
    assert evaluation.complete and evaluation.id == before.evaluation.id
    assert [result.case for result in evaluation.results] == [f"case-{n}" for n in range(12)]
    assert sorted(model.asked) == sorted(f"Question {n}" for n in range(12) if f"case-{n}" not in finished)
    assert ResultFile.read(path).evaluation.complete


async def test_line_that_a_crash_cut_off_is_ignored_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = evaluator(Answering(lambda text: says("hello")), 3)
    await first.run(ResultFile.create(path, first.start()))
    complete = path.read_bytes()
    for size in (len(complete) - 1, len(complete) - 20, complete.rstrip(b"\n").rindex(b"\n") + 1):
        path.write_bytes(complete[:size])
        model = Answering(lambda text: says("hello"))
        evaluation = await evaluator(model, 3).run(ResultFile.read(path))
        assert evaluation.complete and len(ResultFile.read(path).evaluation.results) == 3
        assert len(model.asked) == 1


async def test_complete_evaluation_runs_nothing_again(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = evaluator(Answering(lambda text: says("hello")), 3)
    await first.run(ResultFile.create(path, first.start()))
    model = Answering({})
    await evaluator(model, 3).run(ResultFile.read(path))
    assert model.asked == []


async def test_evaluation_that_does_not_match_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = evaluator(Answering({}), 3)
    file = ResultFile.create(path, first.start())
    with pytest.raises(ConfigError, match="exists already; resume it, or choose another file"):
        ResultFile.create(path, first.start())
    with pytest.raises(ConfigError, match=r"have changed since evaluation .* started; start a new evaluation"):
        await evaluator(Answering({}), 3, "other").run(file)
    changed = Suite("s", cases=first.suite.cases, agents=[Agent("bot", system_prompt="Be brief.")], models=["fake/one"])
    with pytest.raises(ConfigError, match=r"or the agents have changed since evaluation"):
        await Evaluator(changed, first.options, registry=registry_of(Answering({}))).run(file)
    with pytest.raises(ConfigError, match=r"ran with repeat 1, got 2; pass the same options"):
        await evaluator(Answering({}), 3, repeat=2).run(file)


async def test_budget_of_a_resumed_evaluation_counts_what_was_used_before(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    model = Answering(lambda text: says("hello"))
    options: dict[str, Any] = {"parallel": 1, "budget": Budget(tool_calls=100, seconds=100, tokens=40_000)}
    first = evaluator(model, 3, **options)
    file = ResultFile.create(path, first.start())
    spent = await first.run(file)
    assert sum(result.tokens for result in spent.results) == 150
    with pytest.raises(ConfigError, match=r"the budget is used up: tokens=150; pass a larger one to resume"):
        await evaluator(model, 3, budget=Budget(tokens=150)).run(ResultFile.read(path))


async def test_requests_of_graders_and_of_cases_without_a_result_count_when_resumed(tmp_path: Path) -> None:
    """Four requests are left after the first case, whose answer was graded: two for it, and two for the second."""
    path = tmp_path / "results.jsonl"
    verdict = says('{"reason": "It is one.", "passed": true}')
    model = Answering(lambda text: verdict if "rubric" in text else says("hello"))
    cases = [Case(id=f"case {n}", input="Hi", expect={"rubric": "It greets."}) for n in range(4)]

    def graded(requests: int) -> Evaluator:
        suite = Suite("s", cases=cases, agents=[Agent("bot")], models=["fake/one"], grader="fake/one")
        options = EvaluationOptions(parallel=1, budget=Budget(requests=requests))
        return Evaluator(suite, options, registry=registry_of(model))

    first = await graded(3).run(ResultFile.create(path, graded(3).start()))
    assert len(first.results) == 1 and first.spent == {"requests": 3}
    assert ResultFile.read(path).evaluation.spent == {"requests": 3}
    with pytest.raises(ConfigError, match=r"the budget is used up: requests=3; pass a larger one to resume"):
        await graded(3).run(ResultFile.read(path))
    second = await graded(7).run(ResultFile.read(path))
    assert len(second.results) == 3 and second.stopped and second.spent == {"requests": 7}


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with pytest.raises(ConfigError, match=r"cannot read the results .*: No such file"):
        ResultFile.read(path)
    (tmp_path / "removed.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
    path.write_text('{"evaluation": {"other": ' + "[" * 100_000 + "]" * 100_000 + "}}\n")
    with pytest.raises(ConfigError, match="has no results of an evaluation: maximum recursion depth"):
        read_evaluation(path)
    assert list_evaluations(tmp_path) == []
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match="has no results of an evaluation"):
        ResultFile.read(path)
    path.unlink()
    ResultFile.create(path, evaluator(Answering({}), 1).start())
    header = path.read_bytes()
    path.write_bytes(header + b'{"result": 7}\n{"stopped": "x"}\n')
    with pytest.raises(ConfigError, match=r"results.jsonl:2: damaged result: .*; remove the line"):
        ResultFile.read(path)
    path.write_bytes(header.replace(b'"version":1', b'"version":2'))
    with pytest.raises(ConfigError, match="written by a newer version; update Atlas Agents"):
        ResultFile.read(path)
