"""Hashes of the files that a command executes: its scripts, and the files that those name."""

import glob
import hashlib
import os
import re
import shlex
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import PurePosixPath

from atlas_agents.core.errors import ToolFailed
from atlas_agents.tools.commands import INTERPRETERS, SCRIPT_SUFFIXES, SYSTEM_FOLDERS, program_name

_PROJECT_PROGRAMS = {
    *("bun", "cargo", "deno", "docker", "hatch", "just", "make", "npm", "npx", "pdm", "pnpm", "poetry", "pytest"),
    *("rake", "uv", "yarn"),
}
_PROJECT_FILES = (
    *("Cargo.toml", "build.rs", "justfile", "Justfile", "GNUmakefile", "makefile", "Makefile", "package.json"),
    *("conftest.py", "pytest.ini", "pyproject.toml", "Rakefile", "uv.toml", "uv.lock", "poetry.toml", "deno.json"),
    *("deno.jsonc", "Dockerfile", "compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"),
)
"""Files that these programs run from their folder although the command does not name them."""
_LOADERS = {".", "source", "eval", "exec", "from", "import", "require", "include"}
_MAX_HASHED, _MAX_SCANNED = 256 * 1024 * 1024, 64 * 1024
_MAX_FILES, _MAX_FOLDERS, _MAX_NAME = 1000, 50, 4096
_SEPARATORS = re.compile(r"[\s;&|<>()`'\"$={},]+")
_GLOB = re.compile(r"[*?[]")
_EXPANSION = re.compile(r"[$`{~]|[*?[][^\s]*/")
"""Shell syntax whose result is not known before the command runs."""
_IMPORT = re.compile(r"^\s*(?:from|import)\s+(.+)$", re.MULTILINE)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*")


def hash_file(path: str, *, max_read: int | None = None) -> str:
    """Return the SHA-256 of a file; of a larger one than `max_read`, a hash of its version.

    Every change sets a new ctime, which cannot be forged, so the version identifies the content. ToolFailed if the file
    cannot be read.
    """
    try:
        info = os.stat(path)
        version = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        if info.st_size > (_MAX_HASHED if max_read is None else max_read):
            return hashlib.sha256(repr(version).encode()).hexdigest()
        return _hash_version(path, *version)
    except OSError as error:
        raise ToolFailed(f"cannot read {path}: {error.strerror}") from None


@lru_cache(8192)
def _hash_version(path: str, *version: int) -> str:
    """Return the SHA-256 of a file, cached by its version."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_executed_files(
    argv: Sequence[str], cwd: str, skip: Callable[[str], bool], *, any_file: bool = True, follow: bool = True
) -> dict[str, str]:
    """Return the hash of each file that a command names and may run, and of files that those name.

    Every argument is searched for names, because it may be code: `sh -c '. ./run.sh'`. If a name may be computed, as in
    `. ./$NAME`, all scripts in the folder count. Files for which `skip` returns True are not opened. With `any_file`,
    other files than scripts count as well, because an interpreter runs any file; with `follow`, scripts are searched
    too.
    """
    words = list(dict.fromkeys(word for argument in argv for word in _words(argument)))
    folders = _named_folders(words, cwd)
    named = [path for folder in folders for path in _candidates(words, folder, _is_any if any_file else _is_script)]
    named += [path for folder in folders for path in _implied_files(words, folder)]
    is_computed = any_file and any(map(_EXPANSION.search, argv))
    beside = [path for folder in folders for path in _scripts_in(folder)] if is_computed else []
    normal = [os.path.normpath(path) for path in beside]
    found = {path: _hash_readable(path, _MAX_SCANNED) for path in normal if not skip(path)}
    pending, searched = deque(named), set[str]()
    while pending and len(searched) < len(named) + _MAX_FILES:
        path = os.path.normpath(pending.popleft())
        if path not in searched and not skip(path):
            searched.add(path)
            found[path] = _hash_readable(path)
            if follow and (path.endswith(SCRIPT_SUFFIXES) or read_shebang(path)):
                pending.extend(_named_in_script(path, cwd))
    return found


def _hash_readable(path: str, max_read: int | None = None) -> str:
    """Return the hash of a file; empty if it cannot be read, because then the command cannot read it either."""
    try:
        return hash_file(path, max_read=max_read)
    except ToolFailed:
        return ""


def _words(text: str) -> list[str]:
    """Return the words of an argument: as a whole, split at shell syntax, and with quotes resolved."""
    try:
        quoted = shlex.split(text)
    except ValueError:
        quoted = []
    return [text, *filter(None, _SEPARATORS.split(text)), *quoted]


def _named_folders(words: Iterable[str], cwd: str) -> list[str]:
    folders = [cwd]
    for word in words:
        if "\0" in word or word in (".", "/") or len(word) > _MAX_NAME:
            continue
        for folder in tuple(folders):
            path = os.path.normpath(os.path.join(folder, word))
            if path not in folders and os.path.isdir(path):
                folders.append(path)
        if len(folders) > _MAX_FOLDERS:
            raise ToolFailed(f"the command names more than {_MAX_FOLDERS} folders; put it into a script, and run that")
    return folders


def _candidates(words: Iterable[str], folder: str, counts: Callable[[str, int], object]) -> Iterator[str]:
    """Yield the files in a folder that the words name, as a path, a pattern or a module, and that count."""
    for word in words:
        if "\0" in word or len(word) > _MAX_NAME:
            continue
        paths = [os.path.join(folder, word)]
        if _GLOB.search(word) and not _GLOB.search(os.path.dirname(word)):  # others could match the whole file system
            with suppress(ValueError):
                paths += glob.glob(os.path.join(glob.escape(folder), word))
        if _MODULE.fullmatch(word):
            module = os.path.join(folder, word.replace(".", "/"))
            paths += [f"{module}{end}" for end in (".py", "/__init__.py", "/__main__.py")]
        yield from (path for path in paths if (mode := _file_mode(path)) and counts(path, mode))


def _is_any(path: str, mode: int) -> bool:
    return True


def _is_script(path: str, mode: int) -> bool:
    return mode & 0o111 != 0 or path.endswith(SCRIPT_SUFFIXES)


def _file_mode(path: str) -> int:
    """Return the mode of a regular file; 0 for everything else."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return 0
    return mode if stat.S_ISREG(mode) else 0


def _scripts_in(folder: str) -> Iterator[str]:
    """Yield the scripts directly in a folder: by suffix or permission, or because the name has no suffix."""
    if not f"{folder}/".startswith(SYSTEM_FOLDERS):
        yield from _candidates(
            ("*", ".*"), folder, lambda path, mode: _is_script(path, mode) or "." not in os.path.basename(path)
        )


def _implied_files(words: Iterable[str], folder: str) -> Iterator[str]:
    """Yield the files that programs run although the command does not name them: Makefile, hooks of git."""
    programs = {program_name(word) for word in words}
    if programs & _PROJECT_PROGRAMS:
        yield from (path for name in _PROJECT_FILES if _file_mode(path := os.path.join(folder, name)))
    if "git" in programs:
        yield from _git_files(folder)


def _git_files(folder: str) -> Iterator[str]:
    """Yield the settings and the hooks of the repository that contains a folder."""
    parents = (folder, *map(str, PurePosixPath(folder).parents))
    top = next((each for each in parents if os.path.lexists(os.path.join(each, ".git"))), None)
    if top is None:
        return
    git = os.path.join(top, ".git")
    settings = [path for name in ("config", "config.worktree") if _file_mode(path := os.path.join(git, name))]
    yield from settings if os.path.isdir(git) else [git]
    hooks = [os.path.join(git, "hooks")]
    for line in "\n".join(map(_read_text, settings)).splitlines():
        key, _, value = line.partition("=")
        if key.strip().lower() == "hookspath":
            hooks.append(os.path.join(top, os.path.expanduser(value.strip().strip('"'))))
    for each in hooks:
        yield from (path for path in glob.glob(os.path.join(glob.escape(each), "*")) if _file_mode(path) & 0o111)


def read_shebang(path: str) -> list[str]:
    """Return the interpreter that the first line of a script names, with its arguments; empty for other files."""
    line = _read_text(path, 512).partition("\n")[0]
    words = line[2:].split() if line.startswith("#!") else []
    if words and program_name(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words


def _named_in_script(path: str, cwd: str) -> Iterator[str]:
    """Yield the scripts that a script names, relative to the working directory or to itself."""
    text = _read_text(path)
    words = [word for word in _SEPARATORS.split(text) if word and not _GLOB.search(word)]
    named = [word for word in words if "/" in word or word.endswith(SCRIPT_SUFFIXES)]
    loaded = [word for before, word in pairwise(words) if before in _LOADERS or program_name(before) in INTERPRETERS]
    if path.endswith(".py"):
        loaded += [word for line in _IMPORT.findall(text) for word in re.split(r"[,\s]+", line)]
    for folder in dict.fromkeys((cwd, os.path.dirname(path))):
        yield from _candidates(dict.fromkeys(named), folder, _is_script)
        yield from _candidates(dict.fromkeys(loaded), folder, _is_any)


def _read_text(path: str, size: int = _MAX_SCANNED) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""
