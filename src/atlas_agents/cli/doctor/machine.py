"""The ground that everything stands on: Python, the clock, the home folder, the disk, the token."""

import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from atlas_agents.cli.doctor.finding import Finding, broken, notice, ok
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError
from atlas_agents.gateway.auth import STRONG, TokenFile, strength
from atlas_agents.gateway.settings import LOOPBACK

_OLDEST = (3, 11)
_LITTLE, _TOO_LITTLE = 1_000_000_000, 100_000_000
_DAY = 86400.0


def look_at_python() -> Iterator[Finding]:
    here = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _OLDEST:
        yield broken("python", f"{here} is too old", "install Python 3.11 or newer")
    else:
        yield ok("python", f"{here}, atlas-agents {version('atlas-agents')}")
    if (sys.stdout.encoding or "").lower().replace("-", "") != "utf8":
        words = f"output is {sys.stdout.encoding or 'in no encoding'}, and not every character can be shown"
        yield notice("terminal", words, "set LANG=C.UTF-8")


def look_at_clock() -> Iterator[Finding]:
    """A clock that is behind the files that were written by it was turned back; days and deadlines are then wrong."""
    newest = max((_changed(path) for path in (Path(__file__), Path(sys.executable))), default=0.0)
    now = time.time()
    if newest > now + _DAY:
        behind = f"it says {time.strftime('%Y-%m-%d', time.localtime(now))}, and there are files from after that"
        yield broken("clock", behind, "set the clock: limits per day and deadlines of approvals go by it")
    else:
        yield ok("clock", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def look_at_home(settings: Settings) -> Iterator[Finding]:
    home = settings.home
    if not home.exists():
        yield notice("home", f"{home} is not there yet", "it is made at the first start")
        return
    if not home.is_dir():
        yield broken("home", f"{home} is no folder", "take it away, or set ATLAS_HOME to a folder")
        return
    mode = stat.S_IMODE(home.stat().st_mode)
    if mode & 0o077:
        yield broken("home", f"{home} can be entered by other users (mode {mode:o})", f"say chmod 700 {home}")
    elif not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        yield broken("home", f"{home} cannot be written by this user", f"say chown {_user()} {home}, or set ATLAS_HOME")
    else:
        yield ok("home", f"{home}, for its owner only")
    if home.stat().st_uid != os.getuid():
        yield notice("home", f"{home} belongs to another user", f"say chown -R {_user()} {home}")


def look_at_room(settings: Settings) -> Iterator[Finding]:
    free = shutil.disk_usage(_existing(settings.home)).free
    words = f"{free / 1e9:.1f} GB are free at {settings.home}"
    if free < _TOO_LITTLE:
        yield broken("disk", words, "make room: nothing more can be kept soon")
    elif free < _LITTLE:
        yield notice("disk", words, "make room: a model needs up to 1.2 GB")
    else:
        yield ok("disk", words)


def look_at_token(settings: Settings) -> Iterator[Finding]:
    path, named = settings.home / "token", settings.home / "tokens.json"
    for file in (path, named):
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0
        if mode & 0o077:
            yield broken("token", f"{file} can be read by other users (mode {mode:o})", f"say chmod 600 {file}")
    if settings.token is None and not path.exists():
        yield notice("token", "there is none yet", "one is made at the first start")
        return
    try:
        tokens = TokenFile(settings.home, settings.token)
    except ConfigError as error:
        yield broken("token", str(error), "say atlas token rotate, or mend the file")
        return
    yield _strong(settings, tokens)


def _strong(settings: Settings, tokens: TokenFile) -> Finding:
    weak = strength(tokens.main.reveal()) < STRONG
    source = settings.origins.get("token", str(tokens.path))
    if weak and settings.host not in LOOPBACK:
        words = f"the one from {source} is too weak to listen on {settings.host}"
        return broken("token", words, "take 22 random letters or more, or leave it out so that one is made")
    if weak:
        words = f"the one from {source} is weak; only this machine can reach the gateway"
        return notice("token", words, "leave ATLAS_TOKEN out, and a strong one is made")
    others = len(tokens.principals) - 1
    return ok("token", f"strong, from {source}" + (f"; {others} more with fewer rights" if others else ""))


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _user() -> str:
    return str(os.getuid())
