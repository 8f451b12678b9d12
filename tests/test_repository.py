"""Promises of the repository itself: what its files name, how its modules begin, what its README says."""

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
# In pieces, or this file would name what no file may name.
REGISTRIES = [piece + end for piece, end in [("pypi", ".org"), ("python", "hosted"), ("npm", "js."), ("yarn", "pkg.")]]

in_git = pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="nothing can be committed from here"
)


def committable() -> list[Path]:
    """Every file that is committed or would be by `git add .`."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=30).stdout.decode().split("\0")
    return [ROOT / name for name in names if (ROOT / name).is_file()]


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


def test_the_lock_has_a_hash_for_every_package_and_no_address() -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text(encoding="utf-8").strip())
    assert len(entries) > 1
    assert [entry for entry in entries if "--hash=sha256:" not in entry or "://" in entry] == []


def test_every_module_begins_by_saying_what_lives_in_it() -> None:
    modules = sorted((ROOT / "src").rglob("*.py"))
    silent = [m.name for m in modules if not ast.get_docstring(ast.parse(m.read_text(encoding="utf-8")))]
    assert modules
    assert silent == []


def test_the_readme_has_two_commands() -> None:
    section = README.split("\n## Two commands\n")[1].split("\n## ")[0]
    assert code_blocks(section, "sh") == ["make run\n", "make test\n"]
    assert code_blocks(README, "sh") == ["make run\n", "make test\n"]


def test_the_readme_shows_the_example_that_is_tested() -> None:
    docstring, example = (ROOT / "docs/examples/weather.py").read_text(encoding="utf-8").split("\n\n", 1)
    assert docstring.startswith('"""')
    assert code_blocks(README, "python") == [example]
