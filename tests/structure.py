"""Structure metrics as a Markdown table: modules, imports, names, words, and files that a turn crosses.

python tests/structure.py [ROOT]     another checkout can be measured: its sources are read and run
python tests/structure.py --files    also lists the files crossed, the classes defined twice and the cycles
"""

import argparse
import ast
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import words

PACKAGE = "atlas_agents"
TEST_TOOLS = ("testing", "evaluation", "cli.crash_test", "cli.evaluate", "cli.replay")
"""Replay, evaluation and fault simulation: tools for users' own tests, which no turn imports."""
SHORT = 50


class Sources:
    """The modules of a checkout, read and parsed once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "src" / PACKAGE
        self.files = sorted(self.folder.rglob("*.py"))
        self.texts = {self.name(file): file.read_text(encoding="utf-8") for file in self.files}
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}

    def name(self, file: Path) -> str:
        parts = file.relative_to(self.folder.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def modules(self) -> list[str]:
        """Every file, `__init__.py` included."""
        return list(self.trees)

    @property
    def product_modules(self) -> list[str]:
        """Every file but those of the tools for users' own tests."""
        tools = tuple(f"{PACKAGE}.{name}" for name in TEST_TOOLS)
        return [
            name
            for name in self.modules
            if name not in tools and not name.startswith(tuple(f"{each}." for each in tools))
        ]

    @cached_property
    def nodes(self) -> dict[str, list[ast.AST]]:
        """All nodes of each module. To walk through the trees takes longer than to look at each node."""
        return {name: list(ast.walk(tree)) for name, tree in self.trees.items()}

    @cached_property
    def _without_packages(self) -> list[str]:
        """Without `__init__.py`, which mostly names what a package is for."""
        return [self.name(file) for file in self.files if file.name != "__init__.py"]

    @property
    def lines(self) -> int:
        return sum(text.count("\n") for text in self.texts.values())

    @property
    def import_lines(self) -> int:
        """Lines of import statements; one that goes over several lines counts with all of them."""
        spans = (
            range(node.lineno, (node.end_lineno or node.lineno) + 1)
            for nodes in self.nodes.values()
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
        )
        return sum(len(span) for span in spans)

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Which modules each module imports, at its top or inside a function; for type checkers only: left out."""
        return {name: set(self._imported(name, tree)) - {name} for name, tree in self.trees.items()}

    def _imported(self, module: str, tree: ast.Module) -> Iterator[str]:
        for node in _without_type_checking(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.trees)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module in self.trees:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                yield from inner & self.trees.keys()
                if inner - self.trees.keys():
                    yield node.module

    @property
    def single_importer(self) -> list[str]:
        importers = Counter(target for targets in self.imports.values() for target in targets)
        return [name for name in self._without_packages if importers[name] == 1]

    @property
    def short(self) -> list[str]:
        return [name for name in self._without_packages if self.texts[name].count("\n") < SHORT]

    @cached_property
    def twice(self) -> dict[str, list[str]]:
        """Names of classes that several modules define, with these modules; what begins with _ is a module's own."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for name, tree in self.trees.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(name)
        return {name: places for name, places in sorted(found.items()) if len(places) > 1}

    @cached_property
    def cycles(self) -> list[list[str]]:
        """Groups of modules that import each other: strongly connected components (Tarjan)."""
        index: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []
        found: list[list[str]] = []

        def visit(module: str) -> None:
            index[module] = low[module] = len(index)
            stack.append(module)
            for target in self.imports[module]:
                if target not in index:
                    visit(target)
                    low[module] = min(low[module], low[target])
                elif target in stack:
                    low[module] = min(low[module], index[target])
            if low[module] == index[module]:
                group = stack[stack.index(module) :]
                del stack[stack.index(module) :]
                if len(group) > 1:
                    found.append(sorted(group))

        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(10_000)
        for module in self.trees:
            if module not in index:
                visit(module)
        sys.setrecursionlimit(limit)
        return found

    @cached_property
    def layers(self) -> dict[str, int]:
        """Each top-level name with the number of its layer, the lowest is 0, from the import contract."""
        project = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
        return {name.strip(): at for at, layer in enumerate(reversed(layers)) for name in layer.split("|")}

    @property
    def evasions(self) -> list[str]:
        """Modules named in a string by a module of a layer that may not import them."""
        found: list[str] = []
        for module, nodes in self.nodes.items():
            package = module.partition(".")[2].partition(".")[0]
            for node in nodes:
                if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                    continue
                target = re.match(rf"{PACKAGE}\.(\w+)(\.\w+)*$", node.value)
                if target and self._is_above(package, target[1]):
                    found.append(f"{module} names {node.value}")
        return found

    def _is_above(self, package: str, target: str) -> bool:
        if target not in self.layers or package not in self.layers or package == target:
            return False
        return self.layers[target] >= self.layers[package]


@cache
def sources_of(root: Path) -> Sources:
    """Return the parsed modules of a checkout. Parsing them takes seconds, so all tests of a process share them."""
    return Sources(root)


def _without_type_checking(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a module, in functions and classes too, but those for type checkers only."""
    pending = [tree]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                continue
            if not isinstance(node, ast.expr):  # an expression contains no statement
                yield node
                pending.append(node)


def forbidden(root: Path) -> dict[str, list[words.Hit]]:
    """Forbidden words by where they stand: in the package, the tests, the docs and the web client."""
    found: dict[str, list[words.Hit]] = {"identifiers": [], "texts": [], "docs": [], "web": [], "tests": []}
    for path in committed(root):
        place, hits = _hits(path, root / path)
        for hit in hits:
            found[place or ("identifiers" if hit.kind == "identifier" else "texts")].append(hit)
    return found


def committed(root: Path) -> list[str]:
    """The files that Git knows or would add."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True, timeout=120).stdout.decode().split("\0")
    return sorted(name for name in set(names) if name and (root / name).is_file())


def _hits(path: str, file: Path) -> tuple[str, list[words.Hit]]:
    top, suffix = path.partition("/")[0], file.suffix
    if suffix not in {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".html", ".js", ".ts", ".tsx", ".css"}:
        return "", []
    text = file.read_text(encoding="utf-8")
    if top in ("tests", "bench"):
        return "tests", list(words.in_python(path, text) if suffix == ".py" else words.in_text(path, text))
    if top == "src":
        return "", list(words.in_python(path, text) if suffix == ".py" else words.in_text(path, text))
    if top == "web":
        return "web", list(words.in_text(path, text, identifiers=True))
    return "docs", list(words.in_python(path, text) if suffix == ".py" else words.in_text(path, text))


class Trace:
    """Records which files of the package run in any thread while it is on; running an import does not count."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"
        self._on = False
        self._seen: set[str] = set()

    def install(self) -> None:
        """Before any thread starts, as a profiler sees only threads that start after it."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def begin(self) -> None:
        self._seen.clear()
        self._on = True

    def end(self) -> list[str]:
        self._on = False
        return sorted(name.removeprefix(self._folder) for name in self._seen)

    def _profile(self, frame: FrameType, event: str, _arg: object) -> None:
        name = frame.f_code.co_filename
        is_new = self._on and event == "call" and name not in self._seen and name.startswith(self._folder)
        if is_new and not _is_importing(frame):
            self._seen.add(name)


def _is_importing(frame: FrameType | None) -> bool:
    while frame:
        if frame.f_code.co_name == "<module>" and frame.f_back:
            return True
        frame = frame.f_back
    return False


async def chat_files(trace: Trace, home: Path) -> list[str]:
    """Files that each of three chat messages crosses in the gateway: from the socket to the answer in SQLite.

    A single one would also count what happens to run in the background, such as the search for due jobs.
    """
    from websockets.asyncio.client import connect

    from atlas_agents import Agent, Atlas
    from atlas_agents.gateway.server import Gateway
    from atlas_agents.gateway.settings import GatewaySettings
    from atlas_agents.storage.sqlite import SqliteStore
    from atlas_agents.testing import Scripted, says

    store = SqliteStore(home / "atlas.db")
    await store.open()
    atlas = Atlas([Agent("assistant", model=Scripted(*[says("Hello.")] * 3))], store=store)
    async with (
        Gateway(atlas, GatewaySettings(home=home, port=0)).running() as gateway,
        connect(f"ws://127.0.0.1:{gateway.port}/") as socket,
    ):
        await socket.send(json.dumps({"type": "auth", "token": (home / "token").read_text().strip()}))
        await socket.recv()
        crossed: list[set[str]] = []
        for session in ("one", "two", "three"):
            trace.begin()
            await _chat(socket, session)
            crossed.append(set(trace.end()))
    await store.close()
    return sorted(crossed[0].intersection(*crossed))


async def _chat(socket: Any, session: str) -> None:
    params = {"sessionKey": session, "message": "Hello!"}
    await socket.send(json.dumps({"id": "1", "method": "chat.send", "params": params}))
    async for frame in socket:
        if json.loads(frame).get("event") == "chat.final":
            return


async def ask_files(trace: Trace) -> list[str]:
    """Files that `atlas.ask()` with one tool call crosses."""
    from atlas_agents import Agent, Atlas, tool
    from atlas_agents.testing import Scripted, calls, says

    @tool
    async def get_weather(city: str) -> str:
        """Tell today's weather in a city."""
        return f"Sunny in {city}."

    model = Scripted(calls("get_weather", city="Lima"), says("Sunny."))
    async with Atlas([Agent("assistant", model=model, tools=[get_weather])]) as atlas:
        trace.begin()
        await atlas.ask("The weather in Lima?")
        return trace.end()


def traced(root: Path) -> dict[str, list[str]]:
    """The two traces, taken in a process that runs the checkout's own sources."""
    command = [sys.executable, __file__, str(root), "--trace"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=120)
    return json.loads(done.stdout)


def _trace(root: Path) -> None:
    sys.path.insert(0, str(root / "src"))
    trace = Trace(root / "src" / PACKAGE)
    trace.install()
    ask = asyncio.run(ask_files(trace))
    with tempfile.TemporaryDirectory() as home:
        chat = asyncio.run(chat_files(trace, Path(home)))
    print(json.dumps({"chat": chat, "ask": ask}))


def rows(root: Path) -> Iterator[tuple[str, str, str]]:
    """(Metric, its value, the bar) of a checkout."""
    sources, found = Sources(root), forbidden(root)
    yield "modules, `__init__.py` included", f"{len(sources.product_modules)}", "≤ 260"
    yield "modules of the tools for users' own tests", f"{len(sources.modules) - len(sources.product_modules)}", ""
    yield "lines", f"{sources.lines:,}", ""
    yield "import lines, share of all lines", f"{sources.import_lines / sources.lines:.1%}", "≤ 6.0%"
    yield "modules imported by exactly one other", f"{len(sources.single_importer)}", ""
    yield f"modules under {SHORT} lines", f"{len(sources.short)}", ""
    yield "import cycles", f"{len(sources.cycles)}", "0"
    yield "imports by string that evade a layer", f"{len(sources.evasions)}", "0"
    yield "class names defined more than once", f"{len(sources.twice)}", "0"
    yield "forbidden words: identifiers", f"{len(found['identifiers']):,}", "0"
    yield "forbidden words: docstrings, comments and messages", f"{len(found['texts']):,}", "0"
    yield "forbidden words: docs and project files", f"{len(found['docs']):,}", "0"
    yield "forbidden words: web client", f"{len(found['web']):,}", "0"
    yield "forbidden words: tests and benchmarks", f"{len(found['tests']):,}", "0"
    crossed = traced(root)
    yield "files crossed by one chat message, socket to stored answer", f"{len(crossed['chat'])}", "≤ 45"
    yield "files crossed by `atlas.ask()` with one tool call", f"{len(crossed['ask'])}", "≤ 30"


def _details(root: Path) -> Iterator[str]:
    sources, crossed = Sources(root), traced(root)
    for title, files in crossed.items():
        yield from (f"\n## {title}: {len(files)} files\n", *(f"- {file}" for file in files))
    yield from ("\n## Classes\n", *(f"- {name}: {', '.join(places)}" for name, places in sources.twice.items()))
    yield from ("\n## Cycles\n", *(f"- {', '.join(group)}" for group in sources.cycles))
    yield from ("\n## Imports by string\n", *(f"- {each}" for each in sources.evasions))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--files", action="store_true", help="list what is behind the numbers")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    root = options.root.resolve()
    if options.trace:
        _trace(root)
        return
    print("| metric | value | bar |\n|---|---|---|")
    for metric, value, bar in rows(root):
        print(f"| {metric} | {value} | {bar} |", flush=True)
    if options.files:
        print("\n".join(_details(root)))


if __name__ == "__main__":
    main()
