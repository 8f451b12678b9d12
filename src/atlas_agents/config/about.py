"""How a setting says what it is for."""

from msgspec import Meta


def about(description: str, **extra: str) -> Meta:
    """What a field is for. `default` says in words what no constant says, `variable` is a name of an own kind."""
    return Meta(description=description, extra=extra)
