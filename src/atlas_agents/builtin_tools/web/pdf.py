"""PDF as text. The library is pure Python: a hostile file can be slow in it, and nothing worse."""

import io
import logging
import warnings

from pypdf import PdfReader
from pypdf.errors import PyPdfError

from atlas_agents.core.errors import ToolFailed


def read_pdf(content: bytes, most_pages: int, most_characters: int) -> tuple[str, str, tuple[str, ...]]:
    """Title, text of the first pages, and what was left out."""
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it complains about most files
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _read(PdfReader(io.BytesIO(content)), most_pages, most_characters)
    except ToolFailed:
        raise
    except MemoryError:
        raise
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError) as error:
        raise ToolFailed(f"the PDF is damaged or cannot be read: {str(error)[:200]}") from None


def _read(reader: PdfReader, most_pages: int, most_characters: int) -> tuple[str, str, tuple[str, ...]]:
    if reader.is_encrypted and not reader.decrypt(""):
        raise ToolFailed("the PDF is locked with a password")
    count = len(reader.pages)
    title = str((reader.metadata.title if reader.metadata else "") or "")
    pieces: list[str] = []
    size = 0
    for number in range(min(count, most_pages)):
        text = reader.pages[number].extract_text()
        pieces.append(f"[page {number + 1} of {count}]\n{text.strip()}")
        size += len(text)
        if size > most_characters:
            break
    notes: list[str] = []
    if len(pieces) < count:
        notes.append(f"Only {len(pieces)} of its {count} pages were read.")
    if not size:
        notes.append("There is no text in it; it may be a scan.")
    return title, "\n\n".join(pieces), tuple(notes)
