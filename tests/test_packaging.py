"""Installing the package: its wheel, built once from the source distribution, on every Python of this machine.

`make installs` also installs from a clone and from the source distribution with pip, uv, pipx and build, and builds the
page with npm from a fresh clone.
"""

import fcntl
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from checks import TIMEOUT

ROOT = Path(__file__).parent.parent
UV = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST_PIP = {"3.11": "22.3", "3.12": "23.2", "3.13": "24.2", "3.14": "25.2"}
"""The pip that the first release of each Python carries."""
PAGE = "src/atlas_agents/gateway/page"
EVERYTHING = os.environ.get("INSTALLS") == "all"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="not a Git checkout"),
]


class Sources(NamedTuple):
    """What users install from: the wheel is built from the source distribution, without npm.

    The clone has the built page committed, so that installing it does not run npm."""

    clone: Path
    sdist: Path
    wheel: Path


def interpreters() -> dict[str, str]:
    """Find the supported versions of Python on this machine."""
    folders = [*map(Path, os.get_exec_path()), *Path.home().glob(".pyenv/versions/*/bin")]
    running = "{}.{}".format(*sys.version_info)
    found = {running: sys.executable} if running in PYTHONS else {}
    for version in PYTHONS:
        for path in (folder / f"python{version}" for folder in folders):
            if version not in found and path.exists():
                works = subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0
                found |= {version: str(path)} if works else {}
    return found


def combinations() -> list[tuple[str, str, str]]:
    """Choose installer, source and Python. Of every combination, those without their Python are skipped."""
    if not EVERYTHING:
        return [("uv", "wheel", python) for python in interpreters() or PYTHONS]
    installers = ("pip-oldest", "pip-newest", "uv", "pipx", "build")
    chosen = [(each, source) for each in installers for source in ("clone", "sdist")]
    return [(each, source, python) for each, source in (*chosen, ("uv", "wheel")) for python in PYTHONS]


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, cwd=cwd, env={**inherited, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}"
    return done.stdout


def without_npm(folder: Path) -> dict[str, str]:
    """Return an environment whose npm fails, as it does without network access."""
    folder.mkdir(exist_ok=True)
    for name in ("node", "npm"):
        (folder / name).write_text(f"#!/bin/sh\n[ $0 = {folder}/node ] && echo v24.0.0 && exit\nexit 9\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """What to install from, made once for all worker processes of the test run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "sources.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "sources").exists():
            _make_sources(folder / "new-sources").rename(folder / "sources")
    made = folder / "sources"
    return Sources(made / "clone", next(made.glob("*.tar.gz")), next(made.glob("*.whl")))


def _make_sources(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    built_from = runpy.run_path(str(ROOT / "hatch_build.py"))["fingerprint"](ROOT / "web")
    assert (ROOT / PAGE / ".stamp").read_text() == built_from, "the page is not up to date; run: make page"
    clone = folder / "clone"
    git = ("git", "-c", "safe.directory=*", "-c", "user.name=Ana", "-c", "user.email=ana@example.com")
    run(*git, "init", "--quiet", clone, cwd=folder)  # without the history, which each installer would copy
    names = run(*git, "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in [*names, "web/src/wire.ts"]:
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    shutil.copytree(ROOT / PAGE, clone / PAGE)
    run(*git, "add", "--force", ".", cwd=clone)
    run(*git, "commit", "--quiet", "--message", "with the page", cwd=clone)
    build = (UV, "build", "--quiet", "--python", sys.executable, "--out-dir", folder)
    run(*build, "--sdist", clone, cwd=folder)
    run(*build, "--wheel", next(folder.glob("*.tar.gz")), cwd=folder, **without_npm(folder / "bin"))
    return folder


@pytest.mark.parametrize(("installer", "source", "python"), combinations())
def test_package_with_its_page_is_installed(
    installer: str, source: str, python: str, sources: Sources, tmp_path: Path
) -> None:
    """From the source distribution, the build does not run npm."""
    target, interpreter = getattr(sources, source), interpreters().get(python)
    if interpreter is None:
        pytest.skip(f"Python {python} is not installed on this machine")
    env = without_npm(tmp_path / "bin") if source == "sdist" else {}
    match installer:
        case "build":
            tool = (
                UV,
                "tool",
                "run",
                "--quiet",
                "--python",
                interpreter,
                "--from",
                "build",
                "pyproject-build",
                "--outdir",
                tmp_path,
            )
            run(*tool, _own_folder(target, tmp_path), cwd=tmp_path, **env)
            assert f"{PAGE}/index.html".removeprefix("src/") in zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
            return
        case "pipx":
            env |= {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "venv/bin")}
            tool = (UV, "tool", "run", "--quiet", "--python", interpreter, "pipx", "install")
            run(*tool, "--python", interpreter, target, cwd=tmp_path, **env)
        case "uv":
            run(UV, "venv", "--quiet", "--python", interpreter, "venv", cwd=tmp_path)
            what = target if source == "wheel" else _own_folder(target, tmp_path)
            run(UV, "pip", "install", "--quiet", "--python", "venv", "--no-deps", what, cwd=tmp_path, **env)
        case _:
            pip = f"pip=={OLDEST_PIP[python]}" if installer == "pip-oldest" else "pip"
            run(UV, "venv", "--quiet", "--python", interpreter, "venv", cwd=tmp_path)
            run(UV, "pip", "install", "--quiet", "--python", "venv", pip, cwd=tmp_path)
            what = target if source == "sdist" else f"git+file://{target}"
            run("venv/bin/python", "-m", "pip", "install", "--no-deps", what, cwd=tmp_path, **env)
    atlas = tmp_path / "venv/bin/atlas"
    assert run(atlas, "--version", cwd=tmp_path).startswith("atlas ")
    if installer == "pipx":  # it installs the dependencies too, in an environment of its own
        assert "scripted demo" in run(atlas, "ask", "--model", "demo", "Hello", cwd=tmp_path, HOME=str(tmp_path))
    package = next((atlas.resolve().parent.parent / "lib").glob("python*/site-packages/atlas_agents"))
    assert (package / "gateway/page/index.html").read_text().startswith("<!doctype html>")


def _own_folder(target: Path, folder: Path) -> Path:
    """Unpack a source distribution, or copy a clone: a build writes to its folder, and others run at the same time."""
    if target.is_dir():
        return shutil.copytree(target, folder / "clone")
    shutil.unpack_archive(target, folder / "unpacked", filter="data")
    return next((folder / "unpacked").iterdir())


@pytest.mark.parametrize(
    ("tool", "remedy"),
    [
        pytest.param(("--from",), "uvx", id="uvx"),
        pytest.param(
            ("--with", "uv", "pipx", "run", "--backend", "uv", "--spec"),
            "pipx install --force",
            marks=pytest.mark.skipif(not EVERYTHING, reason="installs once more: run make installs"),
            id="pipx",
        ),
    ],
)
def test_one_command_starts_the_gateway_of_a_new_user(
    tool: tuple[str, ...], remedy: str, sources: Sources, tmp_path: Path
) -> None:
    """Nothing is configured: the link comes first, its page answers, and the demo stands in for a model."""
    command = [UV, "tool", "run", "--quiet", *tool, str(sources.wheel), "atlas-agents", "serve", "--port", "0"]
    with new_user(command, tmp_path) as output:
        start = next(n for n, line in enumerate(output) if line.startswith("Atlas is listening on http://127.0.0.1:"))
        assert start < 9, "at most ten lines come before the link"
        del output[:start]
        link = output[1].removeprefix("Open ")
        with urllib.request.urlopen(link.partition("#")[0], timeout=TIMEOUT) as answer:
            assert answer.read().startswith(b"<!doctype html>")
        request = urllib.request.Request(
            f"{link.partition('/#')[0]}/v1/models", headers={"Authorization": f"Bearer {link.partition('=')[2]}"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            assert b"assistant" in answer.read()
        assert output[2:] == [
            "assistant uses a scripted demo, not a model: local/smollm2-135m is not available (local models need an "
            f"optional package; run: {remedy} 'atlas-agents[local]').",
            "Choose a model in the web UI, or run: atlas init",
            "Press Ctrl-C to stop.",
        ]
    assert output[-1] == "The gateway has stopped."
    assert not [*tmp_path.rglob("models")], "no model was downloaded that cannot run"


@contextmanager
def new_user(command: list[str], home: Path) -> Generator[list[str]]:
    """Start a command in an empty home folder without any key; yield what it prints up to its start, then stop it."""
    configured = re.compile(r"\w+_(API_KEY|BASE_URL)|ATLAS_\w+|XDG_\w+|PYTHONPATH|VIRTUAL_ENV|DISPLAY")
    env = {name: value for name, value in os.environ.items() if not configured.fullmatch(name)}
    env |= {"HOME": str(home), "UV_CACHE_DIR": run(UV, "cache", "dir", "--color", "never", cwd=home).strip()}
    process = subprocess.Popen(
        command, cwd=home, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert process.stdout is not None
    output: list[str] = []
    try:
        for line in process.stdout:
            output.append(line.rstrip())
            if output[-1] == "Press Ctrl-C to stop.":
                break
        yield output
        running = json.loads((home / ".local/share/atlas-agents/running.json").read_text())
        os.kill(running["pid"], signal.SIGTERM)  # the gateway itself: an installer may pass a signal on once more
        output += [line.rstrip() for line in process.stdout]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait(TIMEOUT)


def test_failing_build_shows_why(sources: Sources, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(sources.clone, clone, ignore=shutil.ignore_patterns(".git"))
    (clone / "src/atlas_agents/gateway/protocol/documents.py").write_text("raise SystemExit('the protocol is broken')")
    done = subprocess.run([UV, "build", "--wheel", clone], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "the protocol is broken" in done.stderr
    assert "atlas_agents.gateway.protocol.documents typescript` failed with exit code 1" in done.stderr


@pytest.mark.skipif(not EVERYTHING, reason="builds the page with npm: run make installs")
def test_page_is_built_from_a_clone_without_it(tmp_path: Path) -> None:
    run("git", "-c", "safe.directory=*", "clone", "--quiet", "--no-hardlinks", ROOT, "clone", cwd=tmp_path)
    run(UV, "venv", "--quiet", "--python", sys.executable, "venv", cwd=tmp_path)
    run(UV, "pip", "install", "--quiet", "--python", "venv", "pip", cwd=tmp_path)
    run("venv/bin/python", "-m", "pip", "install", "--no-deps", f"git+file://{tmp_path}/clone", cwd=tmp_path)
    assert [*tmp_path.glob("venv/lib/python*/site-packages/atlas_agents/gateway/page/index.html")]
