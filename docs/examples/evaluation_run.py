"""Run a file of cases. A scripted model stands in for `openai/gpt-5.6`, so that the example runs without a key."""

import asyncio
from pathlib import Path

from atlas_agents.evaluation import EvaluationOptions, Evaluator, make_report, read_suite
from atlas_agents.testing import Registry, Scripted, calls, says

replies = (calls("find_order", number=7), says("It was delivered on Monday."), says("Do you want to order more?"))


async def main() -> None:
    suite = read_suite(Path(__file__).with_name("evaluation_cases.yaml"))
    registry = Registry()
    registry.register("openai", lambda environment: Scripted(*replies))
    evaluator = Evaluator(suite, EvaluationOptions(parallel=1), registry=registry)
    report = make_report(await evaluator.run())
    for result in report.evaluation.results:
        print(result.case, result.status, [score.reason for score in result.scores if not score.passed])
    for column in report.columns:
        print(f"{column.model}: {column.passed} of {column.results} passed")


asyncio.run(main())
