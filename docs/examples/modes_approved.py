"""A person reviews and edits the plan before it starts."""

import asyncio

from atlas_agents import Agent, Answer, Approvals, Atlas, Policy, Question
from atlas_agents.testing import Scripted, calls, says

model = Scripted(
    calls("make_plan", steps=["Write the letter", "Print it", "Burn it"]),
    says("Written."),
    says("Printed."),
    says("The letter is printed."),
)
policy = Policy(tools={"make_plan": {"*": "ask"}})


async def look_over(question: Question) -> Answer:
    print("asked:", question.arguments["steps"])
    return Answer("once", arguments={"steps": ["Write the letter", "Print it"]})


async def main() -> None:
    atlas = Atlas([Agent("clerk", model=model, mode="plan")], policy=policy, approve=Approvals(look_over))
    result = await atlas.run("Send Ana a letter.")
    print("done: ", [step.text for step in result.plan])
    print(result.answer)


asyncio.run(main())
