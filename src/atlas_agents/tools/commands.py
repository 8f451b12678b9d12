"""Programs of commands: those that a rule with wildcards may name, interpreters, and where programs are found."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import PurePosixPath

from atlas_agents.core.errors import ConfigError, ToolFailed

ANY, REST = "*", "**"
"""Wildcards of a command rule: any one argument, and any further arguments."""
WILDCARD_PROGRAMS = (
    *("b2sum", "basename", "cat", "cksum", "cmp", "comm", "cut", "df", "dirname", "du", "echo", "expand", "expr"),
    *("false", "fold", "grep", "head", "id", "join", "ls", "md5sum", "nl", "nproc", "od", "paste", "printf", "pwd"),
    *("readlink", "realpath", "rev", "seq", "sha1sum", "sha256sum", "sha512sum", "stat", "tac", "tail", "test", "tr"),
    *("true", "uname", "wc", "whoami"),
)
"""Programs that run no other program and write no file, whatever their arguments are.

Some that look alike do: `sort` (--compress-program, -o), `uniq` (its second operand), `diff` (-l), `base64` (-o on
macOS), `tree` (-o), `file` (-C), `date` (-s), and `find`, `sed`, `awk`, `tar` and `git` anyway.
"""
INTERPRETERS = frozenset(
    (
        *("ash", "bash", "bun", "dash", "deno", "fish", "java", "julia", "ksh", "lua", "luajit", "node", "nodejs"),
        *("perl", "php", "pypy", "python", "ruby", "sh", "tclsh", "zsh"),
    )
)
"""Programs that run the first file among their arguments, whatever its name is."""
SCRIPT_SUFFIXES = (
    *(".sh", ".bash", ".zsh", ".py", ".pyz", ".js", ".mjs", ".cjs", ".ts", ".mts", ".tsx", ".jsx", ".rb", ".pl"),
    *(".php", ".lua", ".mk", ".awk", ".sed", ".jar", ".wasm", ".so", ".node", "Makefile", "makefile"),
)
SYSTEM_FOLDERS = tuple(
    f"/{name}/"
    for name in ("bin", "dev", "etc", "lib", "lib32", "lib64", "nix/store", "proc", "sbin", "snap", "sys", "usr")
)
"""Folders that only an administrator can change."""
_VERSION = re.compile(r"[-.]?\d.*$")


def check_wildcards(argv: Sequence[str], where: str) -> None:
    """Raise ConfigError for a rule that has wildcards and names another program than `WILDCARD_PROGRAMS`."""
    if argv[0] not in WILDCARD_PROGRAMS and (ANY in argv or REST in argv):
        raise ConfigError(
            f"{where}: {' '.join(argv)!r} has a wildcard, but {argv[0]!r} may run other programs or write files. "
            f"Write a rule for each whole command, without * and **. Wildcards work for: {', '.join(WILDCARD_PROGRAMS)}"
        )


def program_name(word: str) -> str:
    """Return the name of a program without its folder and version, in lower case."""
    name = PurePosixPath(word).name.lower()
    return _VERSION.sub("", name) or name


def find_program(name: str, cwd: str, path: str) -> str:
    """Return the path of a program; raise ToolFailed if there is none."""
    found = os.path.join(cwd, name) if "/" in name else shutil.which(name, path=path)
    if found is None or not os.path.isfile(found) or not os.access(found, os.X_OK):
        raise ToolFailed(f"program not found: {name!r}")
    return found
