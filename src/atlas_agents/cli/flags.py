"""Options that many commands share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
