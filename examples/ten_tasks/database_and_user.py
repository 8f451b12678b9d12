import sqlite3
from dataclasses import dataclass

from atlas_agents import Agent, ToolContext


@dataclass
class Bank:
    user: str
    database: sqlite3.Connection


async def balance(context: ToolContext[Bank]) -> int:
    """Return the user's balance in euros."""
    query = "SELECT euros FROM accounts WHERE user = ?"
    return context.deps.database.execute(query, [context.deps.user]).fetchone()[0]


database = sqlite3.connect(":memory:")
database.executescript("CREATE TABLE accounts (user, euros); INSERT INTO accounts VALUES ('Ana', 42)")
agent = Agent("teller", model="openai/gpt-5.6", tools=[balance], system_prompt=lambda turn: f"Help {turn.deps.user}.")
print(agent.run_sync("What is my balance?", deps=Bank("Ana", database)).answer)
