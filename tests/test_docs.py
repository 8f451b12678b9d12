"""The documentation: code comes from the examples, the reference from docstrings, and the navigation is complete."""

import ast
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

import api_pages
import doc_examples
from atlas_agents.cli.app import app
from atlas_agents.cli.command import Command, Group

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {str(page.relative_to(DOCS)): page.read_text(encoding="utf-8") for page in doc_examples.pages()}
SHOWN = [name for page in PAGES.values() for name in doc_examples.BLOCK.findall(page)]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
GROUPS = ["Home", "Tutorial", "How-to guides", "Concepts", "Reference", "Design"]


def navigation() -> dict[str, Any]:
    entries: list[dict[str, Any]] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    return {title: below for entry in entries for title, below in entry.items()}


def listed(entry: Any) -> list[str]:
    """The pages of a part of the navigation, in order."""
    match entry:
        case str():
            return [entry]
        case dict():
            return [page for below in entry.values() for page in listed(below)]
        case _:
            return [page for below in entry for page in listed(below)]


def titled(entries: Any) -> list[tuple[str, str]]:
    """(Page, title) of every titled page of a part of the navigation."""
    found: list[tuple[str, str]] = []
    for title, below in entries:
        if isinstance(below, str):
            found.append((below, title))
        else:
            found += titled([item for each in below if isinstance(each, dict) for item in each.items()])
    return found


@pytest.mark.parametrize("name", PAGES)
def test_code_on_a_page_is_that_of_the_file_it_names(name: str) -> None:
    assert doc_examples.filled(PAGES[name]) == PAGES[name], "run make texts"


def test_every_example_is_on_a_page_with_its_output() -> None:
    tasks = (ROOT / "examples/ten_tasks").iterdir()
    files = [*(DOCS / "examples").iterdir(), *tasks, ROOT / "examples/team/policy.toml"]
    assert set(SHOWN) == {str(file.relative_to(ROOT)) for file in files if file.suffix in doc_examples.FENCES}


def test_all_python_and_toml_on_a_page_comes_from_an_example() -> None:
    rest = {
        name: doc_examples.BLOCK.sub("", page) for name, page in PAGES.items() if not name.startswith("reference/api")
    }
    assert [name for name, page in rest.items() if re.search(r"^```(python|toml)", page, re.MULTILINE)] == []


def test_api_reference_matches_the_docstrings() -> None:
    written = {f"reference/{name}": text for name, text in api_pages.written().items()}
    assert {name: PAGES[name] for name in PAGES if name.startswith("reference/api")} == written, "run make texts"


def test_api_reference_describes_every_public_name_once() -> None:
    described = Counter(path for page in api_pages.pages() for path in page.paths)
    assert set(api_pages.public()) <= set(described)
    assert [path for path, times in described.items() if times > 1] == []


def test_api_reference_describes_what_the_examples_import() -> None:
    described = {api_pages.definition(path) for page in api_pages.pages() for path in page.paths}
    imported = {
        f"{node.module}.{alias.name}"
        for file in (DOCS / "examples").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("atlas_agents")
        for alias in node.names
    }
    assert sorted(path for path in imported if api_pages.definition(path) not in described) == []


def test_every_public_name_has_a_docstring() -> None:
    assert api_pages.undocumented() == []


def test_docstrings_describe_every_parameter_of_public_constructors() -> None:
    assert api_pages.undescribed_parameters() == []


def test_navigation_lists_every_page_once_in_its_group() -> None:
    groups = navigation()
    pages = Counter(listed(list(groups.values())))
    assert list(groups) == GROUPS
    assert set(pages) == set(PAGES)
    assert [page for page, times in pages.items() if times > 1] == []


def test_navigation_titles_are_the_headings_of_the_pages() -> None:
    titles = dict(titled(list(navigation().items())))
    headings = {page: re.search(r"^# (.+)$", text, re.MULTILINE) for page, text in PAGES.items()}
    other = {page: title for page, title in titles.items() if not (found := headings[page]) or found[1] != title}
    assert other == {"index.md": "Home", "guide/toolbox.md": "Overview"}


def test_home_page_leads_to_every_guide() -> None:
    links = set(re.findall(r"\]\(([\w/-]+\.md)\)", PAGES["index.md"]))
    groups = navigation()
    guides = listed([groups["Tutorial"], groups["How-to guides"], groups["Concepts"]])
    assert [page for page in guides if page not in links] == []


def test_design_index_leads_to_every_design_page() -> None:
    links = {f"design/{name}" for name in re.findall(r"\]\(([\w-]+\.md)\)", PAGES["design/index.md"])}
    assert [page for page in listed(navigation()["Design"]) if page not in {*links, "design/index.md"}] == []


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)[^)]*\)", doc_examples.BLOCK.sub("", PAGES[name]))
    assert [link for link in links if not (DOCS / name).parent.joinpath(link).exists()] == []


def shown_commands(page: str) -> Iterator[tuple[str, bool]]:
    """Yield the commands that a page shows, and whether each is complete: one in a sentence may lack its arguments."""
    for block in re.findall(r"^ *```(?:ba|z|fi)?sh\b[^\n]*\n(.*?)^ *```$", page, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield from ((part.strip(), True) for part in re.split(r"&&|\|\|?|;|\$\(|[<>]\(", line.partition(" #")[0]))
    for span in re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)):
        yield span.partition(" |")[0].strip(), False


def trouble_with(line: str, *, complete: bool) -> str:
    """Return why a command cannot be run as it is shown; empty if it can, or if it is not a command of this project."""
    words = re.sub(r"^(?:[A-Z_]+=\S* +)*", "", line)
    words = re.sub(r"^\.venv/bin/", "", words)
    unknown = [f"no extra {name}" for name in extras_in(words) if name not in PROJECT["optional-dependencies"]]
    if unknown:
        return unknown[0]
    try:
        name, *rest = shlex.split(words.rstrip(")"), comments=True)
    except ValueError:
        return ""
    if name == "make" and complete:
        return next((f"no target {each}" for each in rest if "=" not in each and each not in TARGETS), "")
    if name in ("uvx", "pipx") and rest and rest[-1].partition("[")[0].startswith("atlas"):
        return "" if rest[-1].partition("[")[0] in PROJECT["scripts"] else f"no command {rest[-1]}"
    return command_trouble(rest, complete=complete) if name == "atlas" else ""


def extras_in(words: str) -> list[str]:
    return [extra for found in re.findall(r"atlas-agents\[([\w,]+)\]", words) for extra in found.split(",")]


def command_trouble(arguments: list[str], *, complete: bool) -> str:
    """Parse arguments of `atlas` without running the command."""
    found: Any = app
    if arguments in (["--version"], []) or "--help" in arguments or "…" in arguments:
        return ""
    while isinstance(found, Group) and arguments and not arguments[0].startswith("-"):
        if found.find(arguments[0]) is None:
            return f"no command {arguments[0]}"
        found, arguments = found.find(arguments[0]), arguments[1:]
    if isinstance(found, Group):
        found = found.find(found.default) if found.default else None
    if not isinstance(found, Command):
        return "no command is named" if complete else ""
    errors = StringIO()
    try:
        with redirect_stderr(errors):
            found.parse([each for each in arguments if each not in (">", "2>&1", "&")], "atlas")
    except SystemExit:
        error = errors.getvalue().rpartition("Error: ")[2].strip()
        return (
            "" if not complete and (error.startswith("missing") or error.endswith("expected one argument")) else error
        )
    return ""


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *(f"docs/{name}" for name in PAGES)])
def test_shown_commands_exist(name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    shown = dict.fromkeys(shown_commands(page))
    wrong = [(line, trouble) for line, full in shown if (trouble := trouble_with(line, complete=full))]
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("atlas server", "no command server"),
        ("ATLAS_MODEL=demo atlas ask --shout Hello", "no such option: --shout"),
        ("atlas mcp", "no command is named"),
        ("pip install 'atlas-agents[gpu]'", "no extra gpu"),
        ("uvx atlas-agent", "no command atlas-agent"),
        ("make everything", "no target everything"),
        ("atlas serve --port 0 --no-open", ""),
        ("uvx 'atlas-agents[local]'", ""),
    ],
)
def test_command_that_does_not_exist_is_found(line: str, trouble: str) -> None:
    assert trouble_with(line, complete=True).partition(";")[0] == trouble


def test_every_picture_is_on_a_page() -> None:
    pages = "".join([path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *DOCS.rglob("*.md")]])
    assert [path.name for path in sorted((DOCS / "images").iterdir()) if path.name not in pages] == []
