"""The programs of stdio servers: which files they consist of, and how they are confined."""

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec

from atlas_agents.builtin_tools.sandbox import SandboxKind, choose
from atlas_agents.builtin_tools.sandbox.process import Sandbox, SandboxCommand, SandboxLimits
from atlas_agents.core.errors import ConfigError, SandboxUnavailable, ToolFailed
from atlas_agents.core.paths import SettingLookup, is_secret, make_private_folder, resolve_path
from atlas_agents.mcp.config import ServerConfig, ServerEntry, ServerProgram
from atlas_agents.tools import commands, executed_files

MAX_FILES = 20_000
_INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
_NOT_IN_SANDBOX = ("HOME", "TMPDIR")
_LOADER_VARIABLES = re.compile(r"PATH|LD_.*|DYLD_.*|PYTHON.*|NODE_.*|BASH_ENV|ENV|RUBY.*|PERL5.*|.*_OPTIONS|.*OPT")
"""Variables that decide which code a program loads."""
_CODE_SUFFIXES = (*commands.SCRIPT_SUFFIXES, ".json", ".toml", ".pyc", ".pyd", ".dylib", ".class")
_NODE_SUFFIXES = (".js", ".mjs", ".cjs", ".ts", ".mts", ".node")
_IMPORT = re.compile(r"^\s*(?:from|import)\s+(\w+)", re.MULTILINE)
_WRAPPERS = {"env", "ionice", "nice", "nohup", "setsid", "stdbuf", "time", "timeout"}
"""Programs that start the program that their arguments name."""
_FLAGS = {"-u", "-B", "-E", "-s", "-S", "-I", "-O", "-q", "-w", "-x"}
"""Options of interpreters without a value."""
_CODE_OPTIONS = {"-c", "-e", "-m", "--eval"}
"""Options of interpreters whose value is code, or the name of a module."""
_NODE_LAUNCHERS = {"npm", "npx", "pnpm", "pnpx", "yarn", "bun", "bunx"}
"""Programs that prefer a package in the working directory to the one that they would download."""
_SKIPPED = {".git", ".hg", ".svn", ".venv", "venv"}
_MAX_LEVELS = 3
_YEARS = 10**8
_LIMITS = SandboxLimits(
    seconds=_YEARS,
    cpu=_YEARS,
    memory=4096 * 1024 * 1024,
    processes=512,
    file_size=4096 * 1024 * 1024,
    disk=None,
    output=1 << 60,
    open_files=1024,
)
# Standard output is the same socket as standard input, so that a server that writes faster than we read has to wait.
_START = 'exec "$0" "$@" >&0'


def inherited_environment() -> dict[str, str]:
    """Return the environment variables passed to a server; none of them holds a key."""
    return {key: os.environ[key] for key in _INHERITED if key in os.environ}


def describe_program(server: ServerConfig, environment: SettingLookup) -> ServerProgram:
    """Return the current program of a server; ConfigError if it does not exist or cannot be read."""
    entry = server.expanded(environment)
    folder = os.path.realpath(server.folder / entry.cwd)
    loading = {name: value for name, value in entry.env.items() if _LOADER_VARIABLES.fullmatch(name)}
    expanded = hashlib.sha256(msgspec.json.encode([entry.command, entry.args, entry.url, loading])).hexdigest()
    if entry.url:
        return ServerProgram(folder=folder, command=expanded)
    try:
        return ServerProgram(folder=folder, command=expanded, files=_program_files(server, entry, folder))
    except ToolFailed as error:
        reason = "command not found" if "program not found" in str(error) else str(error)
        raise ConfigError(f"cannot start the MCP server {server.name} with {entry.command!r}: {reason}") from None


def build_command(
    server: ServerConfig, environment: SettingLookup, program: ServerProgram, home: Path, *, confined: bool
) -> SandboxCommand:
    """Return the command that starts a server, with the files, folders and network that it may use.

    A server can read its own program and the folders it was granted. Unless it was granted a folder to write to, it has
    a private one in `home`.
    """
    from atlas_agents.builtin_tools import bash  # not needed to list servers
    from atlas_agents.builtin_tools.files.root import Root

    entry = server.expanded(environment)
    own = make_private_folder(make_private_folder(home / "data") / f"{server.name}-{_short_hash(program.folder)}")
    read, write = granted_folders(server, environment)
    for folder in (*read, *write):
        if not folder.is_dir():
            raise ConfigError(f"{server.where}.folders: there is no folder {folder}")
    argv = (_find(entry, program.folder), *entry.args)
    files = [path for path in program.paths if not path.startswith(commands.SYSTEM_FOLDERS)]
    runs = _interpreters(_split_command(argv, program.folder, _search_path(entry)), program.folder, entry)
    runs += [path for path in files if commands.program_name(path) in commands.INTERPRETERS]
    readable = {*map(Path, files), *read, *(folder for path in files for folder in _node_modules(path))}
    readable |= {folder for path in runs for folder in _installation(path)}
    try:
        top, read_only, masked = bash.find_protected_paths(Root.create(write[0], (), ())) if write else (own, [], [])
    except ToolFailed as error:
        raise ConfigError(f"{server.where}.folders: {error}") from None
    env = {**inherited_environment(), **entry.env}
    if any(Path(path).is_relative_to(server.folder) for path in files):
        env["PYTHONDONTWRITEBYTECODE"] = "1"  # the approval covers compiled modules beside their sources
    if confined:
        env = {key: value for key, value in env.items() if key not in _NOT_IN_SANDBOX or key in entry.env}
        env |= {} if write or "HOME" in entry.env else {"HOME": str(own)}
    visible = any(path.is_relative_to(program.folder) or Path(program.folder).is_relative_to(path) for path in readable)
    return SandboxCommand(
        argv=("/bin/sh", "-c", _START, *argv),
        cwd=Path(program.folder) if visible or not confined or top.is_relative_to(program.folder) else top,
        writable=top,
        read_only=tuple(read_only),
        masked=tuple(masked),
        programs=tuple(bash.outermost(readable)),
        env=env,
        limits=_LIMITS,
        network=entry.network,
    )


async def choose_sandbox(server: ServerConfig, kind: SandboxKind) -> Sandbox:
    """Return the sandbox for a server; ConfigError if none works and the entry does not allow running without one."""
    if not server.entry.sandbox:
        return await choose("none")
    try:
        sandbox = await choose(kind)
    except SandboxUnavailable as error:
        raise ConfigError(
            f"cannot start the MCP server {server.name} in a sandbox: {error.reason}. To fix: {error.remedy}. "
            f'To run it with all your permissions, set "sandbox": false in its entry'
        ) from error
    if server.entry.network and sandbox.name == "landlock":
        raise ConfigError(
            f"{server.where}.network: Landlock cannot allow network access; install bubblewrap, "
            f'or set "sandbox": false to run the server with all your permissions'
        )
    return sandbox


def granted_folders(server: ServerConfig, environment: SettingLookup) -> tuple[list[Path], list[Path]]:
    """Return the folders that a server was granted to read, and to write to."""
    granted = server.expanded(environment).folders
    paths = {resolve_path(path, server.folder, environment): access for path, access in granted.items()}
    read, write = (
        [Path(os.path.realpath(path)) for path in paths if paths[path] == access] for access in ("read", "write")
    )
    return read, write


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _search_path(entry: ServerEntry) -> str:
    return entry.env.get("PATH") or os.environ.get("PATH", os.defpath)


def _find(entry: ServerEntry, folder: str) -> str:
    return os.path.normpath(commands.find_program(entry.command, folder, _search_path(entry)))


def _program_files(server: ServerConfig, entry: ServerEntry, folder: str) -> dict[str, str]:
    """Return the hashes of the program, its interpreters, its scripts and the packages that these belong to."""
    command = _split_command((_find(entry, folder), *entry.args), folder, _search_path(entry))
    interpreters, code = _interpreters(command, folder, entry), command.code
    hash_named = partial(executed_files.hash_executed_files, cwd=folder, skip=_is_skipped, follow=False)
    scripts = hash_named(code, any_file=len(code) > 1) | hash_named(command.arguments, any_file=False)
    files = scripts | {os.path.realpath(path): executed_files.hash_file(path) for path in interpreters}
    workspace = Path(os.path.realpath(server.folder))
    files |= _loaded_files(entry, command, folder, workspace)
    for path in (*scripts, *map(os.path.realpath, scripts)):
        is_script = path.endswith(commands.SCRIPT_SUFFIXES) or Path(path).is_relative_to(workspace)
        if is_script and path not in interpreters and not path.startswith(commands.SYSTEM_FOLDERS):
            files |= _hash_package(path, workspace)
    for package in _installed_modules(code, scripts, interpreters):
        files |= _hash_folder(str(package))
    return files


class _SplitCommand(msgspec.Struct, frozen=True):
    """The paths of the programs that a command starts, the command up to the code that they run, and the rest."""

    programs: tuple[str, ...]
    code: tuple[str, ...]
    arguments: tuple[str, ...]


def _split_command(argv: tuple[str, ...], folder: str, path: str) -> _SplitCommand:
    """Split a command after the script, module or code that its program runs; what follows are arguments for that."""
    programs, end = [argv[0]], 1
    while commands.program_name(programs[-1]) in _WRAPPERS and end < len(argv):
        with suppress(ToolFailed):
            programs.append(commands.find_program(argv[end], folder, path))
        end += 1
    if commands.program_name(programs[-1]) in commands.INTERPRETERS:
        end = next((at + 1 for at in range(end, len(argv)) if _is_code(argv, at, folder)), len(argv))
    return _SplitCommand(tuple(programs), argv[:end], argv[end:])


def _is_code(argv: tuple[str, ...], at: int, folder: str) -> bool:
    """Return whether an argument of an interpreter is code, a module or a script, not the value of another option."""
    before = argv[at - 1]
    may_be_script = not before.startswith("-") or before in _FLAGS
    return before in _CODE_OPTIONS or (may_be_script and os.path.isfile(os.path.join(folder, argv[at])))


def _loaded_files(entry: ServerEntry, command: _SplitCommand, folder: str, workspace: Path) -> dict[str, str]:
    """Return the hashes of files that a program loads from its working directory or paths in its environment."""
    found: dict[str, str] = {}
    for name, value in entry.env.items():
        for part in re.split(r"[:;,=\s]+", value) if _LOADER_VARIABLES.fullmatch(name) and name != "PATH" else ():
            path = os.path.normpath(os.path.join(folder, part))
            if part and os.path.isdir(path) and not Path(folder).is_relative_to(path):
                found |= _hash_folder(path, compiled=True)
            elif part and os.path.isfile(path):
                found[path] = executed_files.hash_file(path)
    names = {commands.program_name(program) for program in command.programs}
    modules = os.path.join(folder, "node_modules")
    if names & _NODE_LAUNCHERS and os.path.isdir(modules):
        found |= _hash_folder(modules)
    if "python" in names and not entry.sandbox and {"-m", "-c"} & set(command.code):
        found |= _hash_package(os.path.join(folder, "x.py"), workspace)
    return found


def _is_skipped(path: str) -> bool:
    return is_secret(PurePosixPath(path))


def _interpreters(command: _SplitCommand, folder: str, entry: ServerEntry) -> list[str]:
    """Return the paths of the program, of the programs that it wraps, and of the interpreters of scripts."""
    found, path = list(command.programs), _search_path(entry)
    for each in [*found, *(os.path.join(folder, word) for word in command.code[1:] if "\0" not in word)]:
        script = each
        for _ in range(_MAX_LEVELS):
            if not (line := executed_files.read_shebang(script)):
                break
            with suppress(ToolFailed):
                script = commands.find_program(line[0], folder, path)
                found.append(script)
    return list(dict.fromkeys(found))


def _installed_modules(code: tuple[str, ...], scripts: Iterable[str], interpreters: list[str]) -> Iterator[Path]:
    """Yield the folders of the modules in a Python environment that a command or its scripts start."""
    modules = {code[index + 1].partition(".")[0] for index, word in enumerate(code[:-1]) if word == "-m"}
    for script in scripts:
        if any("python" in word for word in executed_files.read_shebang(script)):
            with suppress(OSError, UnicodeDecodeError):
                modules |= set(_IMPORT.findall(Path(script).read_text(encoding="utf-8")))
    for interpreter in interpreters:
        for site in sorted(Path(interpreter).parent.parent.glob("lib/python*/site-packages")):
            yield from (site / module for module in sorted(modules) if (site / module).is_dir())


def _hash_package(path: str, workspace: Path) -> dict[str, str]:
    """Return the hash of the package that contains a script; in a folder of unrelated files, of the files that it
    loads.

    A program also loads modules from its own folder, so a file beside a script can replace one of its modules.
    """
    package, folder = _package_folder(path), Path(path).parent
    hash_folder = partial(_hash_folder, compiled=folder.is_relative_to(workspace))
    broad = (workspace, Path.home(), Path(tempfile.gettempdir()))
    found: dict[str, str] = {}
    for parent in package.parents if path.endswith(_NODE_SUFFIXES) else ():
        if parent.is_relative_to(workspace) and (parent / "node_modules").is_dir():
            found |= hash_folder(str(parent / "node_modules"))
    if not any(each.is_relative_to(package) for each in broad):
        return found | hash_folder(str(package))
    if (package / "node_modules").is_dir():
        found |= hash_folder(str(package / "node_modules"))
    if not any(each.is_relative_to(folder) for each in broad):
        return found | hash_folder(str(folder))
    beside = [each for each in _code_files(str(folder), top_only=True) if not each.endswith((".json", ".toml"))]
    with suppress(OSError):
        beside += [str(each) for name in ("*/__init__.py", "__pycache__/*.pyc") for each in folder.glob(name)]
    return found | {each: _hash_or_link(each) for each in beside}


def _hash_folder(folder: str, *, compiled: bool = False) -> dict[str, str]:
    """Return one hash of all code in a folder; with `compiled`, also of compiled Python modules beside sources."""
    skipped = _SKIPPED if compiled else {*_SKIPPED, "__pycache__"}
    hashes = sorted((path, _hash_or_link(path)) for path in _code_files(folder, skipped))
    return {f"{folder}/": hashlib.sha256(msgspec.json.encode(hashes)).hexdigest()}


def _package_folder(path: str) -> Path:
    """Return the folder of a script's npm or Python package, or its own folder."""
    folder = Path(path).parent
    if path.endswith(_NODE_SUFFIXES):
        parents = (folder, *folder.parents)[: _MAX_LEVELS + 1]
        return next((parent for parent in parents if (parent / "package.json").is_file()), folder)
    while (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _code_files(folder: str, skipped: Set[str] = frozenset(), *, top_only: bool = False) -> Iterator[str]:
    count = 0
    for top, names, files in os.walk(folder):
        names[:] = [] if top_only else sorted(set(names) - skipped)
        for name in files:
            path = os.path.join(top, name)
            if name.endswith(_CODE_SUFFIXES) or (not top_only and os.access(path, os.X_OK)):
                count += 1
                if count > MAX_FILES:
                    raise ToolFailed(f"{folder} has more than {MAX_FILES:,} files; give the server a folder of its own")
                yield path


def _hash_or_link(path: str) -> str:
    """Return the hash of a file, or the target of a broken link."""
    try:
        return executed_files.hash_file(path)
    except ToolFailed:
        return os.readlink(path) if os.path.islink(path) else ""


def _installation(program: str) -> Iterator[Path]:
    """Yield the folders that an interpreter outside the system folders needs."""
    for path in dict.fromkeys((Path(program), Path(os.path.realpath(program)))):
        if str(path).startswith(commands.SYSTEM_FOLDERS):
            continue
        folder, prefix = path.parent, path.parent.parent
        is_personal = Path.home().is_relative_to(prefix) or prefix.name.startswith(".")
        is_prefix = folder.name == "bin" and (prefix / "lib").is_dir() and not is_personal
        yield prefix if is_prefix or (prefix / "pyvenv.cfg").is_file() else folder


def _node_modules(path: str) -> Iterator[Path]:
    """Yield the outermost `node_modules` that contains a file; its packages are loaded from there."""
    head, found, _ = path.partition("/node_modules/")
    if found:
        yield Path(f"{head}/node_modules")
