"""A case file in Python, with an agent of your own and a scorer of your own: `atlas eval evaluation_suite.py`."""

import asyncio

from atlas_agents import Agent
from atlas_agents.evaluation import Case, Evaluator, Outcome, Score, Suite
from atlas_agents.testing import Scripted, says


def is_short(outcome: Outcome) -> Score:
    words = len(outcome.answer.split())
    return Score("short", value=min(1.0, 5 / max(words, 1)), passed=words <= 5, reason=f"{words} words")


greeter = Agent("greeter", model=Scripted(says("Hello, and welcome!")), system_prompt="Be brief.")
suite = Suite(
    "greetings",
    cases=[Case(id="hello", input="Hi", expect={"contains": "hello", "function": is_short})],
    agents=[greeter],
)

if __name__ == "__main__":
    (result,) = asyncio.run(Evaluator(suite).run()).results
    print(result.status, result.score, [f"{score.name}: {score.reason}" for score in result.scores])
