"""What a call of `bash` comes to: a program, its words, where and with what it runs, and what a yes to it holds for."""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.core.errors import BadArguments, ToolFailed
from atlas_agents.toolbox.files.root import Root
from atlas_agents.toolbox.shell.words import count_parts, path_like, plain_words

LONGEST = 10_000
MOST_WORDS = 256
MOST_PARTS = 50
_LARGEST_SCRIPT = 16 * 1024 * 1024
_INTERPRETERS = {
    *("sh", "bash", "dash", "zsh", "ksh", "python", "python3", "node", "deno", "bun", "ruby", "perl", "php", "lua"),
    *("Rscript", "make", "source", ".", "env", "xargs"),
}
_SUFFIXES = (".sh", ".bash", ".py", ".js", ".mjs", ".ts", ".rb", ".pl", ".php", ".lua", "Makefile")


class Order(msgspec.Struct, frozen=True):
    """A command, ready to be run; with `in_shell` its last word is a text, and a shell makes sense of it."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    program: str
    seconds: int
    in_shell: bool


def argv_of(arguments: Mapping[str, Any], shell: str) -> tuple[tuple[str, ...], bool]:
    """The very words to start a program with, and whether that program is a shell; BadArguments says what is wrong."""
    text, argv = str(arguments.get("command") or ""), arguments.get("argv")
    if bool(text) == bool(argv):
        raise BadArguments("Give either command, a text, or argv, a list of words.")
    if argv:
        return _checked(argv), False
    if not text.strip() or len(text) > LONGEST:
        raise BadArguments(f"A command has 1 to {LONGEST:,} characters; put a longer one into a file first.")
    if count_parts(text) > MOST_PARTS:
        raise BadArguments(f"That is more than {MOST_PARTS} commands at once; put them into a file, and run that.")
    if (words := plain_words(text)) is not None:
        return _checked(words), False
    return _checked([shell, "--norc", "--noprofile", "-c", text]), True


def _checked(words: Iterable[str]) -> tuple[str, ...]:
    argv = tuple(words)
    if not argv or not argv[0] or len(argv) > MOST_WORDS or sum(map(len, argv)) > LONGEST + 100:
        raise BadArguments(f"A command has 1 to {MOST_WORDS} words and at most {LONGEST:,} characters.")
    try:
        if any(b"\0" in word.encode() for word in argv):
            raise BadArguments("A command cannot hold a NUL.")
    except UnicodeEncodeError:
        raise BadArguments("The command holds half a character.") from None
    return argv


def safe_path(given: str, folder: str) -> str:
    """Where programs are looked for: not in places that the agent can write to, or that depend on where it is."""
    top = os.path.realpath(folder)
    kept = [
        each
        for each in given.split(":")
        if os.path.isabs(each) and os.path.commonpath([top, os.path.realpath(each)]) != top
    ]
    return ":".join(kept)


def found_program(name: str, cwd: str, path: str) -> str:
    """The file that a program's name stands for; ToolFailed if there is none."""
    where = os.path.join(cwd, name) if "/" in name else shutil.which(name, path=path)
    if where is None or not os.path.isfile(where) or not os.access(where, os.X_OK):
        raise ToolFailed(f"there is no program {name!r} here")
    return os.path.realpath(where)


def folder_of(root: Root, cwd: str) -> str:
    """The folder to run in, as the disk knows it."""
    with root.find(cwd, folder=True) as found:
        return os.path.normpath(os.path.join(os.path.realpath(root.path), found.path))


def facts_of(order: Order, root: Root, sandbox: str, network: bool) -> dict[str, Any]:
    """All that a yes to it is bound to: the bytes of the words, the folder, the environment, the program's own bytes,
    and those of the scripts that it names."""
    return {
        "argv": list(order.argv),
        "folder": order.cwd,
        "env": dict(order.env),
        "program": order.program,
        "sha256": _digest(order.program, *_version(order.program)),
        "scripts": _scripts(order, root),
        "sandbox": sandbox,
        "network": network,
    }


def _scripts(order: Order, root: Root) -> dict[str, str]:
    """The files among its words that will be run, as far as names tell, and what is in them.

    What is private is not opened: closing a database file, even a mere look into it, gives up our own locks on it.
    """
    pieces = path_like(order.argv[-1]) if order.in_shell else list(order.argv[1:])
    runs_any = not _INTERPRETERS.isdisjoint([Path(each).name for each in (*pieces, order.argv[0])])
    found: dict[str, str] = {}
    for piece in dict.fromkeys(pieces[:MOST_WORDS]):
        where = os.path.join(order.cwd, piece)
        if root.keeps(where):
            continue
        try:
            about = os.stat(where)
            if not stat.S_ISREG(about.st_mode) or about.st_size > _LARGEST_SCRIPT:
                continue
            if runs_any or about.st_mode & 0o111 or piece.endswith(_SUFFIXES):
                found[where] = _digest(where, *_version(where))
        except OSError:  # no such file
            continue
        except ToolFailed:  # nor can the command read it
            found[where] = ""
    return found


def _version(path: str) -> tuple[int, ...]:
    try:
        about = os.stat(path)
    except OSError as error:
        raise ToolFailed(f"{path} cannot be looked at: {error.strerror}") from None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


@lru_cache(256)
def _digest(path: str, *version: int) -> str:
    """Of a file as it was at that moment: nobody can set back when it last changed."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ToolFailed(f"{path} cannot be read: {error.strerror}") from None
