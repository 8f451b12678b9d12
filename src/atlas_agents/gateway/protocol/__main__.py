"""Print the protocol: `python -m atlas_agents.gateway.protocol schema | asyncapi | typescript`."""

import sys

import msgspec

from atlas_agents.gateway.protocol.documents import asyncapi, json_schema, typescript

FORMS = ("schema", "asyncapi", "typescript")


def document(form: str) -> str:
    """Return the protocol in one of the three formats."""
    if form == "typescript":
        return typescript()
    made = json_schema() if form == "schema" else asyncapi()
    return msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in FORMS:
        sys.stderr.write(f"usage: expected one of: {', '.join(FORMS)}\n")
        return 2
    sys.stdout.write(document(arguments[0]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
