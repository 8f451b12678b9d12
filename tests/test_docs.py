"""The documentation: code comes from the examples, the reference from docstrings, and the navigation is complete."""

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import api_pages
import doc_examples

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {str(page.relative_to(DOCS)): page.read_text(encoding="utf-8") for page in doc_examples.pages()}
SHOWN = [name for page in PAGES.values() for name in doc_examples.BLOCK.findall(page)]
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
            return [page for below in entry.values() for page in listed(below)]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        case _:
            return [page for below in entry for page in listed(below)]


def titled(entries: Any) -> list[tuple[str, str]]:
    """(Page, title) of every titled page of a part of the navigation."""
    found: list[tuple[str, str]] = []
    for title, below in entries:
        if isinstance(below, str):
            found.append((below, title))
        else:
            found += titled([item for each in below if isinstance(each, dict) for item in each.items()])  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
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
