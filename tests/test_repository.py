"""The repository itself: its README, lock, workflow, hooks, links and module docstrings."""

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import layer_table
import structure
from checks import TIMEOUT

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
HOME = "https://github.com/atlas-agents/atlas-agents"
# In pieces, so that this file does not contain what it looks for.
REGISTRIES = [piece + end for piece, end in [("pypi", ".org"), ("python", "hosted"), ("npm", "js."), ("yarn", "pkg.")]]

in_git = pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="not a Git checkout")


def committable() -> list[Path]:
    """Return every file that is committed, or would be by `git add .`."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=TIMEOUT).stdout.decode()
    return [ROOT / name for name in listed.split("\0") if (ROOT / name).is_file()]


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@in_git
def test_no_file_names_the_host_of_a_package_registry() -> None:
    files = committable()
    assert ROOT / "README.md" in files
    named = [
        (str(file.relative_to(ROOT)), host)
        for file in files
        for host in REGISTRIES
        if host.encode() in file.read_bytes()
    ]
    assert named == []


@in_git
def test_no_backup_file_is_committed() -> None:
    assert [
        file.name for file in committable() if file.suffix in (".orig", ".rej", ".bak") or file.name[-1] == "~"
    ] == []


def test_every_module_has_a_docstring() -> None:
    modules = structure.trees()
    assert modules
    assert [name for name, tree in modules.items() if not ast.get_docstring(tree)] == []


def test_the_readme_has_two_commands() -> None:
    section = README.split("\n## Two commands\n")[1].split("\n## ")[0]
    assert code_blocks(section, "sh") == ["make run\n", "make test\n"]
    assert code_blocks(README, "sh") == ["make run\n", "make test\n"]


def test_the_readme_shows_the_example_that_is_tested() -> None:
    docstring, example = (ROOT / "docs/examples/weather.py").read_text(encoding="utf-8").split("\n\n", 1)
    assert docstring.startswith('"""')
    assert code_blocks(README, "python") == [example]


def test_readme_links_work_outside_the_repository() -> None:
    """A package index shows the README without the files beside it."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", README)
    raw = HOME.replace("github.com", "raw.githubusercontent.com")
    files = [link.removeprefix(f"{HOME}/blob/main/").removeprefix(f"{raw}/main/") for link in links]
    assert links
    assert [file for file in files if not file.startswith("https://") and not (ROOT / file).exists()] == []
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_to_files_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", (ROOT / name).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_layer_table_matches_the_import_contracts() -> None:
    page = layer_table.PAGE.read_text(encoding="utf-8")
    assert "<!-- layers:" in page
    assert layer_table.filled(page) == page, "run make texts"


def test_workflow_runs_the_checks_on_every_supported_python_and_on_macos() -> None:
    workflow: dict[str, Any] = yaml.safe_load(WORKFLOW)
    jobs = workflow["jobs"]
    supported = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert jobs["test"]["strategy"]["matrix"]["python"] == supported
    assert ".ci/run" in [step.get("run") for step in jobs["test"]["steps"]]
    assert jobs["macos"]["runs-on"].startswith("macos-")
    assert "make check" in [step.get("run") for step in jobs["macos"]["steps"]]
    assert workflow["permissions"] == {"contents": "read"}


def test_workflow_pins_each_action_by_the_digest_of_its_commit() -> None:
    """A tag can be moved to another commit. The comment says which version it is."""
    actions = re.findall(r"uses: (.*)", WORKFLOW)
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


def test_commit_hooks_call_tools_that_are_installed() -> None:
    config: dict[str, Any] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks: list[dict[str, Any]] = config["repos"][0]["hooks"]
    installed = {dependency for each in hooks if (dependency := each["entry"].split()[0])}
    assert [name for name in installed if not (ROOT / name).exists()] == []
    named = [word for each in hooks for word in each["entry"].split() if word.endswith(".py")]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_project_urls_belong_to_the_repository() -> None:
    assert PROJECT["urls"]["Repository"] == HOME
    assert [url for url in PROJECT["urls"].values() if not url.startswith(HOME)] == []
    files = [url.removeprefix(f"{HOME}/blob/main/") for url in PROJECT["urls"].values() if "/blob/" in url]
    assert [file for file in files if not (ROOT / file).exists()] == []
