"""The supply chain: everything that is downloaded has a hash, and the bill of materials lists it."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import supply_chain
from atlas_agents.local.models import CATALOG
from supply_chain import ROOT


@pytest.fixture(scope="module")
def bom() -> dict[str, Any]:
    return supply_chain.bill_of_materials()


@pytest.mark.parametrize("name", sorted(file.name for file in ROOT.glob("*.lock")))
def test_every_locked_python_package_has_a_hash_and_no_address(name: str) -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / name).read_text(encoding="utf-8").strip())
    assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry or "://" in entry] == []


def test_tests_run_with_the_packages_that_users_run() -> None:
    tested = supply_chain.locked_packages(ROOT / "requirements-dev.lock")
    assert [each for each in supply_chain.locked_packages(ROOT / "requirements.lock") if each not in tested] == []


def test_locks_have_every_declared_dependency() -> None:
    """Those of the image are in requirements.lock, and all are in requirements-dev.lock."""
    file = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras: dict[str, list[str]] = file["project"]["optional-dependencies"]
    image = re.search(r"^ARG EXTRAS=(.*)$", (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert image
    run = [*file["project"]["dependencies"], *(each for name in image[1].split(",") for each in extras[name])]
    development = [*run, *file["dependency-groups"]["dev"], *(each for names in extras.values() for each in names)]
    for lock, declared in {"requirements.lock": run, "requirements-dev.lock": development}.items():
        locked = {each["name"] for each in supply_chain.locked_packages(ROOT / lock)}
        assert {canonicalize_name(Requirement(each).name) for each in declared} <= {*locked, "atlas-agents"}


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("*/package-lock.json")) + sorted(ROOT.glob("tests/*/*/package-lock.json"))
)
def test_every_locked_npm_package_has_a_hash(path: Path) -> None:
    packages: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["packages"]
    assert [
        name for name, each in packages.items() if name and not each.get("integrity", "").startswith("sha512-")
    ] == []


def test_every_model_that_can_be_downloaded_has_a_hash() -> None:
    assert all(re.fullmatch("[0-9a-f]{64}", model.sha256) for model in CATALOG.values())


def test_make_installs_only_what_has_a_hash() -> None:
    """uv also verifies the hashes of constraints."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    safe = re.compile(r"--require-hashes|--no-deps --editable|--constraint requirements-dev\.lock")
    installs = [line for line in makefile.splitlines() if re.search(r"pip (install|sync)|\$\$pip install", line)]
    assert installs
    assert [line for line in installs if not safe.search(line)] == []


def test_bill_of_materials_lists_every_locked_package_once(bom: dict[str, Any]) -> None:
    listed = [each["bom-ref"] for each in bom["components"]]
    assert len(listed) == len(set(listed))
    for package in supply_chain.locked_packages():
        assert f"pkg:pypi/{package['name']}@{package['version']}" in listed
    assert {f"model:{id}" for id in CATALOG} <= set(listed)
    assert sum(each.startswith("pkg:npm/") for each in listed) > 100


def test_bill_of_materials_has_what_cyclonedx_requires(bom: dict[str, Any]) -> None:
    assert (bom["bomFormat"], bom["specVersion"], bom["version"]) == ("CycloneDX", "1.6", 1)
    for each in bom["components"]:
        assert (
            each["name"]
            and each["version"]
            and each["licenses"]
            and each["scope"] in ("required", "optional", "excluded")
        )
        for digest in each["hashes"]:
            length = {"SHA-256": 64, "SHA-512": 128}[digest["alg"]]
            assert re.fullmatch(f"[0-9a-f]{{{length}}}", digest["content"])


def test_scope_tells_what_the_package_needs(bom: dict[str, Any]) -> None:
    scopes = {each["name"]: each["scope"] for each in bom["components"] if each["bom-ref"].startswith("pkg:pypi/")}
    assert (scopes["msgspec"], scopes["psycopg"], scopes["pytest"]) == ("required", "optional", "excluded")


def test_required_packages_have_no_licence_that_forbids_distribution(bom: dict[str, Any]) -> None:
    """A package of the default installation or of an extra may not force the licence of programs that use it."""
    shipped = [each for each in bom["components"] if each["scope"] != "excluded"]
    licences = {each["name"]: json.dumps(each["licenses"]) for each in shipped}
    assert [name for name, licence in licences.items() if re.search(r"(?<!L)GPL", licence)] == []


@pytest.mark.parametrize(
    ("text", "checked"),
    [
        ("", False),
        ("Traceback", False),
        ('{"dependencies": [{"name": "a", "skip_reason": "not found"}]}', False),
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', True),
    ],
)
def test_report_without_any_checked_package_does_not_count(text: str, checked: bool) -> None:
    assert (supply_chain._read_report(text) is not None) is checked


def test_vulnerable_package_fails_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    vulnerable = {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
    assert supply_chain.report_vulnerabilities([vulnerable, {"name": "b", "skip_reason": "not found"}]) == 1
    assert "a 1: CVE-1, fixed in 2\nnot checked: b" in capsys.readouterr().out


def test_unreachable_database_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "pip-audit"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    assert supply_chain.audit(str(program)) == supply_chain.NOT_CHECKED
    assert "NOT CHECKED: no vulnerability database can be reached" in capsys.readouterr().err
