"""`atlas models …`: the models that run on this machine."""

import shutil
import sys
import time
from collections.abc import Callable

from atlas_agents.cli import show
from atlas_agents.cli.border import confirmed, guarded, quiet, run
from atlas_agents.local.download import pull
from atlas_agents.local.models import ModelState, known, list_models, models_folder, remove_model, state_of

_EVERY = 0.2
_WIDE = 24


def show_models(*, as_json: bool) -> int:
    def work() -> None:
        found = list_models()
        if as_json:
            show.as_json([_as_json(each) for each in found])
            return
        rows = [(each.model.id, f"{each.model.megabytes} MB", _where(each), each.model.label) for each in found]
        show.table(("model", "size", "here", "about"), rows, "There are no models.")

    return guarded(work)


def pull_model(id: str, *, yes: bool) -> int:
    async def work() -> None:
        model = known(id)
        state = state_of(model, models_folder())
        if not state.installed:
            print(
                f"{model.title}, {model.license}, {model.megabytes} MB into {state.path.parent}: {model.label}.",
                file=sys.stderr,
            )
            if not yes and not model.by_itself and not confirmed("Fetch it?"):
                print("Nothing was fetched.", file=sys.stderr)
                return
        path = await pull(id, progress=progress_line(id))
        print(path)

    quiet()
    return run(work)


def drop_model(id: str) -> int:
    def work() -> None:
        freed = remove_model(id)
        words = f"{id} is removed, {freed / 1e6:.0f} MB are free again." if freed else f"{id} was not here."
        print(words, file=sys.stderr)

    return guarded(work)


def progress_line(id: str) -> Callable[[int, int, str], None]:
    """Shows how far a download is: on a terminal in one line that moves, else a line each time something new begins."""
    moves = sys.stderr.isatty()
    last, at = "", 0.0

    def tell(done: int, total: int, words: str) -> None:
        nonlocal last, at
        fresh, now = words != last, time.monotonic()
        if not fresh and (not moves or now - at < _EVERY):
            return
        last, at = words, now
        line = f"{id}: {words}, {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        if not moves:
            print(line, file=sys.stderr, flush=True)
            return
        full = round(_WIDE * done / max(total, 1))
        bar = f"[{'#' * full}{'.' * (_WIDE - full)}] {line}"
        sys.stderr.write(f"\r\x1b[K{bar[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.write("\n" if words == "ready" else "")
        sys.stderr.flush()

    return tell


def _where(state: ModelState) -> str:
    if state.installed:
        return "yes"
    return f"{state.fetched / state.model.size:.0%} of it" if state.fetched else "no"


def _as_json(state: ModelState) -> dict[str, object]:
    model = state.model
    return {
        "id": model.id,
        "title": model.title,
        "label": model.label,
        "license": model.license,
        "bytes": model.size,
        "installed": state.installed,
        "fetchedBytes": state.fetched,
        "path": str(state.path),
    }
