"""The tables of docs/reference/protocol.md, generated from the protocol's models (`make texts`)."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from atlas_agents.gateway.protocol.documents import components
from atlas_agents.gateway.protocol.events import PLAIN, RUN_EVENTS, SERVER_EVENTS
from atlas_agents.gateway.protocol.frames import CODES
from atlas_agents.gateway.protocol.methods import METHODS

PAGE = Path(__file__).parent.parent / "docs/reference/protocol.md"


def filled(page: str) -> str:
    """Return the page with its tables as the models are now."""
    for name, lines in (("methods", _methods()), ("events", _events()), ("errors", _errors())):
        mark = re.compile(rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
        page = mark.sub(lambda found, lines=lines: found[1] + "\n".join(lines) + "\n" + found[2], page)
    return page


def _methods() -> list[str]:
    rows = [
        f"| `{method.name}` | {method.scope} | {method.purpose} | {_fields(method.params.__name__)} "
        f"| {_fields(method.result.__name__)} |"
        for method in METHODS.values()
    ]
    return ["| method | scope | description | params | result |", "|---|---|---|---|---|", *rows]


def _events() -> list[str]:
    rows = [
        f"| `{name}` | {' '.join((kind.__doc__ or '').split())} | {_fields(kind.__name__)} "
        f"| {', '.join(f'`{key}`' for key in PLAIN.get(name, ()))} |"
        for name, kind in {**RUN_EVENTS, **SERVER_EVENTS}.items()
    ]
    return ["| event | description | data | in the plain profile |", "|---|---|---|---|", *rows]


def _errors() -> list[str]:
    return ["| kind | code |", "|---|---|", *(f"| `{kind}` | {code} |" for kind, code in CODES.items())]


def _fields(model: str) -> str:
    """Return the names of a model's fields, optional ones with a question mark."""
    found = _definitions()[model]
    required = set(found.get("required", ()))
    return ", ".join(f"`{name}`" if name in required else f"`{name}?`" for name in found.get("properties", {})) or "–"


@cache
def _definitions() -> dict[str, Any]:
    return components()[1]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
