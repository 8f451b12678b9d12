"""PDF as text, with pure Python: a hostile file can only be slow."""

import io
import logging
import warnings

from pypdf import PdfReader
from pypdf.errors import PyPdfError

from atlas_agents.core.errors import ToolFailed


def read_pdf(content: bytes, max_pages: int, max_characters: int) -> tuple[str, str, tuple[str, ...]]:
    """Return title, text of the first pages, and notes about what is missing."""
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns about most files
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _read(PdfReader(io.BytesIO(content)), max_pages, max_characters)
    except ToolFailed:
        raise
    except MemoryError:
        raise
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OSError) as error:
        raise ToolFailed(f"cannot read the PDF: {str(error)[:200]}") from None


def _read(reader: PdfReader, max_pages: int, max_characters: int) -> tuple[str, str, tuple[str, ...]]:
    if reader.is_encrypted and not reader.decrypt(""):
        raise ToolFailed("the PDF is encrypted with a password")
    count = len(reader.pages)
    title = str((reader.metadata.title if reader.metadata else "") or "")
    pieces: list[str] = []
    size = 0
    for number in range(min(count, max_pages)):
        text = reader.pages[number].extract_text()
        pieces.append(f"[page {number + 1} of {count}]\n{text.strip()}")
        size += len(text)
        if size > max_characters:
            break
    notes: list[str] = []
    if len(pieces) < count:
        notes.append(f"Only {len(pieces)} of {count} pages were read.")
    if not size:
        notes.append("The PDF contains no text; it may be a scan.")
    return title, "\n\n".join(pieces), tuple(notes)
