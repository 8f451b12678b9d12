"""Every example of the documentation runs as a reader would run it and prints what its page shows.

As a script (`make outputs`) it stores what the examples print now; review the diff, then run `make texts`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

import fork_server
from checks import TIMEOUT
from local_weights import home_with_weights
from model_server import ModelRequest, ModelServer, Reply, run_model_server

DOCS = Path(__file__).parent.parent / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
POLICIES = [DOCS.parent / "examples" / "team" / "policy.toml", *sorted((DOCS / "examples").glob("*.toml"))]
ANSWERS = {
    "Hello!": Reply("Hello! What can I do for you?"),
    "Tell me a long story.": Reply("Once upon a time there was a boat", hangs=True),
    "Write a headline about rain.": Reply("Rain Falls, Town Gets Wet"),
    "What is wrong with it?": Reply("It says the same thing twice."),
    "Tell me about Lima.": Reply('{"name": "Lima", "country": "Peru", "people": 10400000}'),
}


def answer(asked: ModelRequest) -> Reply:
    """Act as the model of the examples: give known answers, call a tool for a city, remember a name."""
    if asked.results:
        return Reply(" ".join(asked.results))
    if asked.text in ANSWERS:
        return ANSWERS[asked.text]
    place = re.search(r"\bin ([A-Z]\w+)", asked.text)
    if place and "get_weather" in asked.tools:
        return Reply(calls=(("get_weather", {"city": place[1]}),))
    name = re.search(r"My name is (\w+)", json.dumps(asked.body["messages"]))
    return Reply(f"Your name is {name[1]}." if name else f"I have no answer to {asked.text!r}.")


@pytest.fixture(scope="module")
def server() -> Generator[ModelServer]:
    with run_model_server(answer) as model:
        yield model


def run(example: Path, server: ModelServer, folder: Path) -> subprocess.CompletedProcess[str]:
    settings = {**server.settings, "ATLAS_MODEL": "http/rules-1", "PYTHONIOENCODING": "utf-8"}
    settings["ATLAS_TRUSTED_FOLDERS"] = str(folder)
    for policy in POLICIES:
        shutil.copy(policy, folder)
    env = {**os.environ, **settings, "PYTHONWARNINGS": "error"}
    return fork_server.run(str(example), cwd=folder, env=env, timeout=TIMEOUT)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_prints_what_its_page_shows(
    example: Path, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if example.stem.startswith("local_"):
        monkeypatch.setenv("ATLAS_HOME", str(home_with_weights()))
    done = run(example, server, tmp_path)
    printed = example.with_suffix(".txt").read_text(encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed


def store_outputs(examples: list[Path]) -> None:
    """Run examples and write what they print beside them; one that fails keeps its output."""
    with run_model_server(answer) as server:
        for example in examples:
            os.environ.pop("ATLAS_HOME", None)
            if example.stem.startswith("local_"):
                os.environ["ATLAS_HOME"] = str(home_with_weights())
            with tempfile.TemporaryDirectory() as folder:
                done = run(example, server, Path(folder))
            if done.returncode or done.stderr:
                print(f"{example.name} failed:\n{done.stderr}", file=sys.stderr)
            else:
                example.with_suffix(".txt").write_text(done.stdout, encoding="utf-8")


if __name__ == "__main__":
    store_outputs([example for example in EXAMPLES if not sys.argv[1:] or example.stem in sys.argv[1:]])
