"""Every example of the docs runs as its reader would run it, and prints what its page says."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

import atlas_agents
from atlas_agents import testing
from local_weights import home_with_weights
from model_server import Asked, ModelServer, Reply, serving

DOCS = Path(__file__).parent.parent / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
POLICIES = [DOCS.parent / "examples" / "team" / "policy.toml", *sorted((DOCS / "examples").glob("*.toml"))]
PATIENCE = 50
ANSWERS = {
    "Hello!": Reply("Hello! What can I do for you?"),
    "Tell me a long story.": Reply("Once upon a time there was a boat", holds=True),
    "Write a headline about rain.": Reply("Rain Falls, Town Gets Wet"),
    "What is wrong with it?": Reply("It says the same thing twice."),
    "Tell me about Lima.": Reply('{"name": "Lima", "country": "Peru", "people": 10400000}'),
}


def mind(asked: Asked) -> Reply:
    """A model as the examples need it: it knows some answers, calls a tool about a place, remembers a name."""
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
    with serving(mind) as model:
        yield model


def run(example: Path, server: ModelServer, folder: Path) -> subprocess.CompletedProcess[str]:
    settings = {**server.settings, "ATLAS_MODEL": "http/rules-1", "PYTHONIOENCODING": "utf-8"}
    for policy in POLICIES:
        shutil.copy(policy, folder)
    return subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=folder,
        env={**os.environ, **settings},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
    )


def pages() -> dict[str, str]:
    return {str(page.relative_to(DOCS)): page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")}


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints_what_its_page_says(
    example: Path, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if example.stem.startswith("local_"):
        monkeypatch.setenv("ATLAS_HOME", str(home_with_weights()))
    done = run(example, server, tmp_path)
    printed = example.with_suffix(".txt").read_text(encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == printed


def test_every_example_is_on_a_page_with_its_output() -> None:
    shown = set(re.findall(r'^--8<-- "(.*?)"$', "\n".join(pages().values()), re.MULTILINE))
    files = {file.name for file in (DOCS / "examples").iterdir() if file.suffix in (".py", ".txt")}
    assert shown == files | {policy.name for policy in POLICIES}


def test_all_python_and_toml_on_a_page_comes_from_an_example() -> None:
    blocks = [
        (name, block)
        for name, page in pages().items()
        for language, kind in (("python", "py"), ("toml", "toml"))
        for block in re.findall(rf"^```{language}.*?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        if not re.fullmatch(rf'--8<-- "\w+\.{kind}"\n', block)
    ]
    assert blocks == []


def test_the_overview_names_everything_that_is_public() -> None:
    page = pages()["reference/api.md"]
    public = [*atlas_agents.__all__, *testing.__all__]
    assert [name for name in public if not re.search(rf"`{name}\b", page)] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    listed = set(re.findall(r"([\w/-]+\.md)", navigation))
    assert listed == set(pages())
