"""How much of the web is let in."""

import msgspec


class Caps(msgspec.Struct, frozen=True):
    """Bytes of a page (unpacked), seconds, redirects. `reading` are the seconds to make text of what came."""

    size: int = 5_000_000
    pdf_size: int = 15_000_000
    connect: float = 10.0
    total: float = 25.0
    redirects: int = 5
    reading: float = 15.0


CAPS = Caps()
