"""Helpers for the tests of documents and memories."""

import hashlib
import io
import zipfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from atlas_agents.core.store import Store
from atlas_agents.knowledge.embedding import Embedder, LocalEmbedder
from atlas_agents.knowledge.library import Knowledge
from atlas_agents.knowledge.loaders import Sources
from atlas_agents.storage.sqlite import MemoryStore

HERE = Path(__file__).parent
T = "acme"
EMBEDDER = LocalEmbedder()
"""Shared, because loading its table takes half a second."""


class BenchmarkQuestion(NamedTuple):
    """A question of the benchmark, and the section that answers it."""

    document: str
    heading: str
    question: str

    @property
    def held_out(self) -> bool:
        """Whether the question belongs to the half that was never used for tuning."""
        return hashlib.sha256(self.question.encode()).digest()[0] % 2 == 1


def read_questions() -> list[BenchmarkQuestion]:
    lines = (HERE / "questions.txt").read_text().splitlines()
    return [BenchmarkQuestion(*(piece.strip() for piece in line.split("|"))) for line in lines if line.strip()]


@asynccontextmanager
async def open_knowledge(
    store: Store | None = None,
    embedder: Embedder | None = None,
    sources: Sources | None = None,
    *,
    keywords_only: bool = False,
) -> AsyncGenerator[Knowledge]:
    """Open a document library in memory or in `store`."""
    chosen = None if keywords_only else embedder or EMBEDDER
    knowledge = Knowledge(store or MemoryStore(), chosen, sources or Sources())
    try:
        yield knowledge
    finally:
        await knowledge.close()


def write(folder: Path, **texts: str) -> Path:
    """Write files with these contents; `a_md` is a.md."""
    for name, text in texts.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_text(text)
    return folder


def word_file(*paragraphs: tuple[str, str], table: Sequence[Sequence[str]] = (), title: str = "") -> bytes:
    """Build a Word document from (style, text) paragraphs."""
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    body = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>'
        for style, text in paragraphs
    )
    rows = "".join(
        "<w:tr>" + "".join(f"<w:tc><w:p><w:r><w:t>{cell}</w:t></w:r></w:p></w:tc>" for cell in row) + "</w:tr>"
        for row in table
    )
    core = f'<c xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></c>'
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(
            "word/document.xml", f"<w:document {space}><w:body>{body}<w:tbl>{rows}</w:tbl></w:body></w:document>"
        )
        file.writestr("docProps/core.xml", core)
    return archive.getvalue()


def pdf_file(text: str) -> bytes:
    """Build a PDF document of one line."""
    stream = f"BT /F1 12 Tf 10 50 Td ({text}) Tj ET"
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 100]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(stream)}>>stream\n{stream}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    content, offsets = "%PDF-1.4\n", [0] * len(objects)
    for number, each in enumerate(objects):
        offsets[number] = len(content)
        content += f"{number + 1} 0 obj{each}endobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    content_end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer<</Root 1 0 R/Size {size}>>\nstartxref\n"
    return f"{content}{content_end}{len(content)}\n%%EOF".encode()
