"""Supply chain: check the locked packages for known vulnerabilities, and write a bill of materials and a licence list.

`make audit` uses pip-audit, installed from requirements-audit.lock. `make sbom` writes CycloneDX JSON and a list of
licences. What is listed comes from the development lock, which includes what users run, from the lock of the web UI,
and from the catalog of local models; licences come from the metadata of the installed packages and from the lock of the
web UI.
"""

import base64
import json
import re
import subprocess
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from atlas_agents.local.models import CATALOG

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements-dev.lock"
"""Includes every package of requirements.lock."""
WEB_LOCK = ROOT / "web/package-lock.json"
PROJECT = "atlas-agents"
UNKNOWN = "unknown"
NOT_CHECKED = 3
"""Exit status if no database could be reached."""


def locked_packages(lock: Path = LOCK) -> list[dict[str, Any]]:
    """The Python packages of a lock file, with their hashes."""
    entries = re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8").strip())
    found: list[dict[str, Any]] = []
    for entry in entries:
        name, _, rest = entry.partition("==")
        version = re.split(r"[ ;\\]", rest, maxsplit=1)[0]
        found.append({"name": name, "version": version, "hashes": re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)})
    return found


def python_components() -> list[dict[str, Any]]:
    """CycloneDX components of the Python packages: required, optional (an extra) or excluded (only for development)."""
    required, optional = _dependencies(extras=False), _dependencies(extras=True)
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{each['name']}@{each['version']}",
            "name": each["name"],
            "version": each["version"],
            "purl": f"pkg:pypi/{each['name']}@{each['version']}",
            "scope": "required" if each["name"] in required else "optional" if each["name"] in optional else "excluded",
            "hashes": [{"alg": "SHA-256", "content": value} for value in each["hashes"]],
            "licenses": _licences(_python_licence(each["name"])),
        }
        for each in locked_packages()
    ]


def _dependencies(*, extras: bool) -> set[str]:
    """The names of the packages that the project needs, directly or through others, on any platform."""
    own: list[str] = cast(Any, metadata.metadata(PROJECT)).get_all("Provides-Extra", []) if extras else []
    found: set[str] = set()
    waiting: list[tuple[str, frozenset[str]]] = [(PROJECT, frozenset(own))]
    seen = set(waiting)
    while waiting:
        name, chosen = waiting.pop()
        for requirement in map(Requirement, _requirements(name)):
            of_extra = re.findall(r"extra == .([\w.-]+).", str(requirement.marker or ""))
            if of_extra and chosen.isdisjoint(of_extra):
                continue
            needed = canonicalize_name(requirement.name)
            found.add(needed)
            if (following := (needed, frozenset(requirement.extras))) not in seen:
                seen.add(following)
                waiting.append(following)
    return found - {PROJECT}


def _requirements(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # of another platform
        return []


def _python_licence(name: str) -> str:
    try:
        found = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return f"{UNKNOWN} (not installed on this platform)"
    known = cast(Any, found)
    prefix = "License :: OSI Approved :: "
    classifiers = [each.removeprefix(prefix) for each in known.get_all("Classifier", []) if each.startswith(prefix)]
    text = str(known.get("License-Expression") or "") or " AND ".join(classifiers)
    short = str(known.get("License") or "").strip().partition("\n")[0]
    return text or (short if 0 < len(short) < 80 else UNKNOWN)


def web_components() -> list[dict[str, Any]]:
    """CycloneDX components of the packages of the web UI."""
    packages: dict[str, dict[str, Any]] = json.loads(WEB_LOCK.read_text(encoding="utf-8"))["packages"]
    found: dict[str, dict[str, Any]] = {}
    for path, each in packages.items():
        if not path:
            continue
        name = path.rpartition("node_modules/")[2]
        purl = f"pkg:npm/{name.replace('@', '%40', 1) if name.startswith('@') else name}@{each['version']}"
        algorithm, _, value = str(each.get("integrity", "")).partition("-")
        found[purl] = {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": each["version"],
            "purl": purl,
            "scope": "excluded" if each.get("dev") else "optional" if each.get("optional") else "required",
            "hashes": [{"alg": algorithm.upper().replace("SHA", "SHA-"), "content": base64.b64decode(value).hex()}],
            "licenses": _licences(str(each.get("license") or UNKNOWN)),
        }
    return list(found.values())


def model_components() -> list[dict[str, Any]]:
    """CycloneDX components of the local models that can be downloaded."""
    return [
        {
            "type": "machine-learning-model",
            "bom-ref": f"model:{model.id}",
            "name": model.id,
            "version": model.sha256[:12],
            "scope": "optional",
            "hashes": [{"alg": "SHA-256", "content": model.sha256}],
            "licenses": _licences(model.license),
        }
        for model in CATALOG.values()
    ]


def _licences(text: str) -> list[dict[str, Any]]:
    plain = re.fullmatch(r"[A-Za-z0-9.+-]+", text) and text != UNKNOWN
    return [{"license": {"id": text} if plain and text in _SPDX else {"name": text}}]


_SPDX = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BlueOak-1.0.0", "CC0-1.0", "CC-BY-4.0", "GPL-3.0-only"),
    *("ISC", "LGPL-3.0-only", "LGPL-3.0-or-later", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Python-2.0"),
    *("Unlicense", "ZPL-2.1", "Zlib"),
}
"""SPDX identifiers; other licences are named as they are."""


def bill_of_materials() -> dict[str, Any]:
    """The CycloneDX document."""
    components = [*python_components(), *web_components(), *model_components()]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": PROJECT,
                "name": PROJECT,
                "version": metadata.version(PROJECT),
                "licenses": _licences(_python_licence(PROJECT)),
            }
        },
        "components": components,
    }


def licence_list(bom: dict[str, Any]) -> str:
    """A list for people: every package with its licence, and how often each licence occurs."""
    rows = [(each["name"], each["version"], each["scope"], _licence_of(each)) for each in bom["components"]]
    counts = Counter(licence for _, _, _, licence in rows).most_common()
    lines = ["# Licences", "", *[f"- {licence}: {count}" for licence, count in counts], ""]
    lines += ["| package | version | scope | licence |", "|---|---|---|---|"]
    return "\n".join([*lines, *[f"| {' | '.join(row)} |" for row in rows]]) + "\n"


def _licence_of(component: dict[str, Any]) -> str:
    (found,) = component["licenses"]
    return str(found["license"].get("id") or found["license"]["name"])


def write_sbom(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    bom = bill_of_materials()
    (folder / f"{PROJECT}.cdx.json").write_text(json.dumps(bom, indent=1) + "\n", encoding="utf-8")
    (folder / "licences.md").write_text(licence_list(bom), encoding="utf-8")
    print(f"wrote {len(bom['components'])} components to {folder}/{PROJECT}.cdx.json and {folder}/licences.md")


def audit(program: str) -> int:
    """Check the locked packages with pip-audit; 1 if some are vulnerable, 3 if no database could be asked."""
    command = [
        program,
        "--progress-spinner",
        "off",
        "--no-deps",
        "--disable-pip",
        "--timeout",
        "20",
        "--format",
        "json",
    ]
    for service in ("osv", "pypi"):
        found = subprocess.run(
            [*command, "-s", service, "-r", str(LOCK)], check=False, capture_output=True, text=True, timeout=900
        )
        report = _read_report(found.stdout)
        if report is not None:
            return report_vulnerabilities(report)
    print(
        "NOT CHECKED: no vulnerability database can be reached from here, neither OSV nor the package index. "
        "Run `make audit` on a machine with internet access; the CI does.",
        file=sys.stderr,
    )
    return NOT_CHECKED


def _read_report(text: str) -> list[dict[str, Any]] | None:
    """Return the checked packages; None if none could be checked."""
    try:
        dependencies: list[dict[str, Any]] = json.loads(text)["dependencies"]
    except (ValueError, KeyError):
        return None
    return dependencies if any("skip_reason" not in each for each in dependencies) else None


def report_vulnerabilities(report: list[dict[str, Any]]) -> int:
    """Print vulnerable and unchecked packages; return the exit status."""
    skipped = [each for each in report if "skip_reason" in each]
    vulnerable = [each for each in report if each.get("vulns")]
    for each in vulnerable:
        for found in each["vulns"]:
            fixed = ", ".join(found.get("fix_versions", [])) or "no version yet"
            print(f"{each['name']} {each['version']}: {found['id']}, fixed in {fixed}")
    for each in skipped:
        print(f"not checked: {each['name']}: {each['skip_reason']}")
    print(f"{len(report) - len(skipped)} packages checked, {len(vulnerable)} vulnerable, {len(skipped)} not checked")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["audit"]:
        sys.exit(audit(sys.argv[2]))
    write_sbom(Path(sys.argv[2]))
