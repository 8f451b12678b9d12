"""`atlas models …`: list, download and remove the models that run on this machine."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from atlas_agents.cli.command import JsonFlag, YesFlag, command, command_group, confirm
from atlas_agents.cli.output import print_json, print_table, show_download

if TYPE_CHECKING:
    from atlas_agents.local.models import ModelState

app = command_group()
Name = Annotated[str, typer.Argument(metavar="MODEL", help="The name of the model, as `list` shows it.")]


@command(app, "list")
def list_models(as_json: JsonFlag = False) -> None:
    """List the models that can run on this machine and which are installed."""
    from atlas_agents.local import models

    found = models.list_models()
    if as_json:
        print_json([_as_json(each) for each in found])
        return
    rows = [(each.model.id, f"{each.model.megabytes} MB", _installed(each), each.model.label) for each in found]
    print_table(("model", "size", "installed", "about"), rows, "There are no models.")


@command(app)
async def pull(model: Name, yes: YesFlag = False) -> None:
    """Download a model, or resume an interrupted download, and verify its checksum."""
    from atlas_agents.local.download import pull as download
    from atlas_agents.local.models import find_model, model_state, models_folder

    wanted = find_model(model)
    state = model_state(wanted, models_folder())
    if not state.installed:
        print(
            f"{wanted.title} ({wanted.license}), {wanted.megabytes} MB, to {state.path.parent}: {wanted.label}.",
            file=sys.stderr,
        )
        if not yes and not wanted.auto_download and not confirm("Download it?"):
            print("Nothing was downloaded.", file=sys.stderr)
            return
    print(await download(model, progress=show_download(model)))


@command(app)
def remove(model: Name) -> None:
    """Remove a model from this machine."""
    from atlas_agents.local.models import remove_model

    freed = remove_model(model)
    print(f"{model}: removed, {freed / 1e6:.0f} MB freed." if freed else f"{model}: not installed.", file=sys.stderr)


def _installed(state: "ModelState") -> str:
    if state.installed:
        return "yes"
    return f"{state.fetched / state.model.size:.0%}" if state.fetched else "no"


def _as_json(state: "ModelState") -> dict[str, object]:
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
