"""A settings file in TOML, read with the line of every key, so that a mistake can be pointed at."""

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.core.errors import ConfigError

LARGEST = 256 * 1024
_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_NAME = r"""(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)"""
_PAIR = re.compile(rf"\s*({_NAME})(?:\s*\.\s*{_NAME})*\s*=")
_TABLE = re.compile(rf"\s*\[\[?\s*({_NAME})(?:\s*\.\s*{_NAME})*\s*\]")
_TWICE = ("Cannot overwrite", "Cannot declare", "Cannot mutate", "Duplicate")


class Value(msgspec.Struct, frozen=True):
    """What a key of the file says, and in which line it begins."""

    value: Any
    line: int


def read_toml(path: Path) -> dict[str, Value] | None:
    """The keys of a file, tables as one value each; None if there is no such file."""
    content = _content(path)
    if content is None:
        return None
    if content.startswith(b"\xef\xbb\xbf"):
        raise ConfigError(f"{path}:1: it begins with a byte order mark; save it as UTF-8 without one")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: it is not UTF-8; save it as UTF-8") from error
    lines = text.split("\n")
    try:
        parsed = tomllib.loads(text)
    except ValueError as error:
        raise _mistake(path, lines, str(error)) from error
    except RecursionError as error:
        raise ConfigError(f"{path}: it is nested too deeply; settings are plain values") from error
    return {key: Value(value, _line_of(key, lines)) for key, value in parsed.items()}


def _content(path: Path) -> bytes | None:
    """Opening does not wait, so that a pipe in the place of a file is refused and not listened to."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise ConfigError(f"{path}: it is a link to nothing; mend it or take it away") from None
        return None
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror}; mend that or take it away") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{path}: it is not a regular file; put a text file there or take it away")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(LARGEST + 1)
    finally:
        os.close(descriptor)
    if len(content) > LARGEST:
        raise ConfigError(f"{path}: it is larger than {LARGEST // 1024} KiB; these are no settings")
    return content


def _mistake(path: Path, lines: list[str], words: str) -> ConfigError:
    """What TOML's reader says, with the key that it was at."""
    match = _LINE.search(words)
    number = min(int(match[1]), len(lines)) if match else _last(lines)
    key = next((found for line in reversed(lines[:number]) if (found := _key(line))), "")
    if words.startswith(_TWICE):
        first = _line_of(key, lines)
        return ConfigError(f"{path}:{number}: {key}: it stands in line {first} already; keep one of them")
    return ConfigError(f"{path}:{number}: {key or 'the first line'}: this is no TOML: {words}")


def _last(lines: list[str]) -> int:
    return max((number for number, line in enumerate(lines, 1) if line.strip()), default=1)


def _line_of(key: str, lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines, 1) if _key(line) == key), 1)


def _key(line: str) -> str:
    """The first name of a line that sets something or begins a table; of a dotted one its first part."""
    match = _PAIR.match(line) or _TABLE.match(line)
    return match[1].strip("\"'") if match else ""
