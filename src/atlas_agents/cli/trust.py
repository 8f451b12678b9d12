"""`atlas trust`: trust a folder, and agree to changes that agents made to prompts, skills and settings."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from atlas_agents.cli.command import Argument, Group, JsonFlag, Option, YesFlag, command, confirm, print_error
from atlas_agents.cli.output import one_line, print_json, print_table, printable
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import TRUST_VARIABLE, Environment
from atlas_agents.core.trust import PendingChange, Trust

if TYPE_CHECKING:
    from atlas_agents.config.trust import FolderRequest

app = Group()


@command(app)
def trust(
    path: Annotated[str | None, Argument(metavar="PATH", help="The folder. Default: the working folder.")] = None,
    list_all: Annotated[bool, Option("--list", help="List the trusted folders and the pending changes.")] = False,
    revoke: Annotated[bool, Option("--revoke", help="Stop trusting the folder.")] = False,
    changes: Annotated[bool, Option("--changes", help="Review only the changes that agents made.")] = False,
    yes: YesFlag = False,
    as_json: JsonFlag = False,
) -> int:
    """Trust a folder, and agree to changes that agents made.

    Until you trust a folder, its .env and atlas.toml may only set API keys, the model, the port and logging. The
    command shows what the folder sets and asks. It asks again when one of its files has changed.

    Then it shows each prompt, skill, policy or settings file that an agent changed. The old version stays in use until
    you agree to the change. With --yes, this needs --changes.
    """
    folder = Path(path).expanduser().absolute() if path else Path.cwd()
    records = Trust.of(Environment(dotenv=None))
    if list_all:
        _print_list(records, as_json=as_json)
        return 0
    if not folder.is_dir():
        raise ConfigError(f"folder not found: {folder}")
    if revoke:
        print(f"{'no longer trusted' if records.revoke(folder) else 'was not trusted'}: {folder}", file=sys.stderr)
        return 0
    agreed = changes or _review_folder(folder, records, yes=yes)
    for change in records.pending():
        if yes and not changes:  # it was given for the folder
            print_error(f"{change.summary}; to review it, run: atlas trust --changes")
        else:
            agreed = _review_change(change, records, yes=yes) and agreed
    return 0 if agreed else 1


def ask_to_trust(ignored: Sequence[str]) -> bool:
    """Ask whether to trust the working folder, whose values are ignored. Without a terminal, warn instead."""
    from atlas_agents.config.trust import inspect_folder

    folder = Path.cwd()
    records, request = Trust.of(Environment(dotenv=None)), inspect_folder(folder)
    declined = records.records().declined.get(str(folder.resolve()))
    if request is None or not _can_ask() or declined == request.digest:
        names = ", ".join(ignored)
        print_error(
            f"this folder is not trusted, so some of its settings are ignored. To see and accept them, run: atlas trust"
            f" (in CI, set {TRUST_VARIABLE}={folder}). Ignored: {names}"
        )
        return False
    if _ask(request, records):
        request.grant(records)
        return True
    records.decline(folder, request.digest)
    print("The folder is not trusted; its settings are ignored. To change that, run: atlas trust", file=sys.stderr)
    return False


def _can_ask() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _ask(request: "FolderRequest", records: Trust) -> bool:
    """Show the request of a folder and ask whether to trust it."""
    _print_request(request, records)
    return confirm("Trust this folder?")


def _print_request(request: "FolderRequest", records: Trust) -> None:
    folder = printable(str(request.folder))
    changed = str(request.folder.resolve()) in records.records().folders
    head = f"{folder} has changed since you trusted it." if changed else f"You have not trusted {folder} yet."
    lines = [f"  - {one_line(want, 400)}" for want in request.wants]
    print("\n".join([f"{head} It wants to:", *lines]), file=sys.stderr, flush=True)
    for change in records.pending() if changed else ():
        if str(change.path) in request.files or change.found is None:
            _print_change(change)


def _review_folder(folder: Path, records: Trust, *, yes: bool) -> bool:
    from atlas_agents.config.trust import inspect_folder

    request = inspect_folder(folder)
    if request is None:
        print(f"{folder} sets nothing that needs trust.", file=sys.stderr)
        return True
    _print_request(request, records)
    if not yes and not confirm("Trust this folder?"):
        return False
    request.grant(records)
    print(f"trusted: {folder}", file=sys.stderr)
    return True


def _print_change(change: PendingChange) -> None:
    print(f"\n{printable(change.summary)}:\n{printable(change.diff())}\n", file=sys.stderr, flush=True)


def _review_change(change: PendingChange, records: Trust, *, yes: bool) -> bool:
    _print_change(change)
    if not yes and not confirm("Agree to this change?"):
        print(f"The old version stays in use. To reject the change, restore or delete {change.path}.", file=sys.stderr)
        return False
    records.agree(change.path, change.found)
    print(f"agreed: {change.path}", file=sys.stderr)
    return True


def _print_list(records: Trust, *, as_json: bool) -> None:
    folders, pending = records.records().folders, records.pending()
    if as_json:
        trusted = [{"folder": path, "trustedAt": entry.at, "files": [*entry.files]} for path, entry in folders.items()]
        changes = [{"path": str(each.path), "reason": each.reason, "diff": each.diff()} for each in pending]
        print_json({"folders": trusted, "pending": changes})
        return
    rows = [(path, time.strftime("%Y-%m-%d", time.localtime(entry.at))) for path, entry in folders.items()]
    print_table(("trusted folder", "since"), rows, "No folder is trusted.")
    for change in pending:
        print(one_line(f"pending: {change.summary}", 400))
