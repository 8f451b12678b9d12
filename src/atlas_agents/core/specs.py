"""A tool as a model sees it: the one word that tools and providers share."""

from typing import Any

import msgspec


class ToolSpec(msgspec.Struct, frozen=True, dict=True):
    """Name, description and the JSON schema of the parameters. `__dict__` holds its bytes on a vendor's wire."""

    name: str
    description: str
    parameters: dict[str, Any]
