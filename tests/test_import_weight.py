"""What it costs to import the package and to make an agent: heavy libraries come with the first use, not before."""

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Agent, tool
from checks import TIMEOUT, cpu_factor

HEAVY = [
    "pydantic",
    "aiohttp",
    "httpx",
    "sqlite3",
    "psycopg",
    "jsonschema_rs",
    "griffe",
    "typer",
    "rich",
    "prompt_toolkit",
    "cloudpickle",
    "openai",
    "anthropic",
    "valkey",
    "uvicorn",
    "mcp",
    "starlette",
    "xllamacpp",
]


def loaded_after(code: str, cwd: Path) -> list[str]:
    """Which of the heavy libraries a fresh process has loaded after running some lines."""
    ask = f"{code}\nimport sys, json\nprint(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT, check=True
    )
    return json.loads(done.stdout)


LIGHT = {
    "import atlas_agents": "import atlas_agents",
    "import testing": "import atlas_agents.testing",
    "agent without tools": "from atlas_agents import *\nAtlas([Agent('a', model='openai/x', rules=['Be brief.'])])",
    "turn without tools": (
        "import asyncio\n"
        "from atlas_agents.testing import *\n"
        "assert asyncio.run(in_memory_atlas(Scripted(says('hi'))).ask('hi')).text == 'hi'"
    ),
    "local model, not asked yet": "from atlas_agents import *\nAtlas([Agent('a', model='local/smollm2-135m')])",
    "messages": "from atlas_agents import *\nMessage.from_json(user('hi').to_json())",
}


@pytest.mark.parametrize("code", LIGHT.values(), ids=LIGHT.keys())
def test_nothing_heavy_is_loaded_before_it_is_needed(code: str, tmp_path: Path) -> None:
    assert loaded_after(code, tmp_path) == []


def test_import_takes_little_time(tmp_path: Path) -> None:
    code = "import time\nstart = time.process_time()\nimport atlas_agents\nprint(time.process_time() - start)"
    command = [sys.executable, "-c", code]
    taken = [float(subprocess.check_output(command, cwd=tmp_path, timeout=TIMEOUT)) for _ in range(3)]
    assert min(taken) < 0.1 * cpu_factor()


def test_a_tool_loads_what_describes_it_and_no_more(tmp_path: Path) -> None:
    code = "from atlas_agents import Tool\nasync def f(text): return text\nTool('f', f)"
    assert set(loaded_after(code, tmp_path)) <= {"jsonschema_rs"}


def median(make: Callable[[], object], times: int = 300) -> float:
    taken: list[float] = []
    gc.disable()
    try:
        for _ in range(times):
            start = time.process_time()
            make()
            taken.append(time.process_time() - start)
    finally:
        gc.enable()
    return statistics.median(taken)


def numbered(place: int) -> Callable[..., Any]:
    async def work(city: str, days: int = place) -> str:
        """Tell the weather.

        Args:
            city: Where.
            days: For how long.
        """
        return city

    work.__name__ = f"work_{place}"
    return work


@pytest.mark.parametrize("made", [True, False], ids=["tools", "functions"])
def test_an_agent_with_ten_tools_is_cheap_after_the_first(made: bool) -> None:
    functions = [numbered(place) for place in range(10)]
    tools: list[Any] = [tool(function) for function in functions] if made else functions
    Agent("first", model="openai/x", tools=tools)
    assert median(lambda: Agent("a", model="openai/x", tools=tools)) < 600e-6 * cpu_factor()
