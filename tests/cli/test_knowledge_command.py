"""`atlas knowledge`: add, list, search, refresh and remove documents."""

import json
from pathlib import Path

import pytest
from atlas_command import Home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_documents_are_added_listed_searched_refreshed_and_removed(home: Home, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "sea.md").write_text("# Sea\n\n## Walrus\n\nA walrus has two tusks.\n")
    (docs / "land.txt").write_text("A horse has four legs.\n")
    assert home.run("knowledge", "list").stderr == "There are no documents. Add some with: atlas knowledge add SOURCE\n"
    added = home.run("knowledge", "add", str(docs), "-c", "animals")
    assert (added.returncode, added.stdout) == (0, "2 added; 2 passages written.\n"), added.stderr
    again = home.run("knowledge", "add", str(docs), "-c", "animals", "--json")
    assert json.loads(again.stdout)["unchanged"] == 2
    without = home.run("knowledge", "add", str(docs))
    assert without.stdout == "2 unchanged; 0 passages written.\n", "the category is kept"
    found = home.run("knowledge", "search", "animals with tusks", "--limit", "1")
    assert "Sea > Walrus  (docs/sea.md line 5)\n      A walrus has two tusks." in found.stdout
    nothing = home.run("knowledge", "search", "tusks", "--category", "cars")
    assert (nothing.returncode, nothing.stderr) == (1, "No results.\n")
    unknown = home.run("knowledge", "refresh", "nix")
    assert unknown.returncode == 1
    assert f"no document was added from '{home.folder / 'nix'}'; add it first" in unknown.stderr
    (docs / "land.txt").unlink()
    assert home.run("knowledge", "refresh").stdout == "1 unchanged, 1 removed; 0 passages written.\n"
    listed = json.loads(home.run("knowledge", "list", "--json").stdout)
    assert [(each["name"], each["category"]) for each in listed] == [("docs/sea.md", "animals")]
    refused = home.run("knowledge", "remove", str(docs))
    assert refused.returncode == 2 and "Pass --yes" in refused.stderr
    assert home.run("knowledge", "remove", str(docs), "--yes").stderr == "1 removed.\n"
    gone = home.run("knowledge", "remove", str(docs), "--yes")
    assert gone.returncode == 2
    assert f"document not found: '{docs}'; there are no documents; run: atlas knowledge list" in gone.stderr
    missing = home.run("knowledge", "add", str(tmp_path / "none"))
    assert missing.returncode == 1 and "cannot read" in missing.stderr


def test_more_documents_than_a_page_are_listed_and_removed(home: Home, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for number in range(620):
        (docs / f"{number:03}.txt").write_text(f"Item {number} weighs {number} grams.\n")
    added = home.run("knowledge", "add", str(docs), "-c", "items", "--json")
    assert json.loads(added.stdout)["added"] == 620, added.stderr
    listed = json.loads(home.run("knowledge", "list", "-c", "items", "--json").stdout)
    assert [each["name"] for each in listed] == [f"docs/{number:03}.txt" for number in range(620)], "by source"
    assert home.run("knowledge", "remove", str(docs), "--yes").stderr == "620 removed.\n"
    assert json.loads(home.run("knowledge", "list", "--json").stdout) == []
