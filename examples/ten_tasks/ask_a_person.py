from atlas_agents import Agent, Atlas, Question, tool


@tool(confirm=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is deleted"


def approve(question: Question) -> bool:
    return input(f"{question.title}? {question.arguments} (y/n) ") == "y"


atlas = Atlas([Agent("helper", model="openai/gpt-5.6", tools=[delete])], approve=approve)
print(atlas.run_sync("Delete notes.txt").answer)
