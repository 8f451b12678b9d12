"""Names for things that have none: unique, and not drawn from the clock."""

import uuid


def new_id() -> str:
    """A random UUID, as 32 hexadecimal digits."""
    return uuid.uuid4().hex
