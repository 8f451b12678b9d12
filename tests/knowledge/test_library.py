"""Document library: import, refresh, search with positions, and removal."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from library_helpers import T, open_knowledge, pdf_file, word_file, write

from atlas_agents.core.errors import ConfigError, NotFound, ToolFailed
from atlas_agents.core.store import Where, Write
from atlas_agents.knowledge import library, loaders
from atlas_agents.knowledge.library import Knowledge, Progress, document_details
from atlas_agents.knowledge.loaders import Item, Sources
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore


@pytest.fixture
async def knowledge() -> AsyncIterator[Knowledge]:
    async with open_knowledge() as opened:
        yield opened


async def first(knowledge: Knowledge, question: str) -> tuple[str, str, str, str]:
    (found, *_) = await knowledge.search(T, question)
    return (
        document_details(found.document).name,
        found.passage.heading,
        found.passage.position,
        found.document.collection,
    )


async def test_imported_folder_is_searched_with_positions(knowledge: Knowledge, tmp_path: Path) -> None:
    write(tmp_path, sea_md="# Sea\n\n## Whales\n\nA whale breathes air.\n", land_txt="Horses eat grass.\n")
    (tmp_path / ".hidden.md").write_text("whale whale whale")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG whale")
    (tmp_path / "link.md").symlink_to("/etc/hostname")
    progress: list[Progress] = []
    report = await knowledge.add(T, str(tmp_path), category="nature", on_progress=progress.append)
    assert (report.added, report.passages, report.skipped) == (2, 2, [])
    assert [(each.done, each.total) for each in progress] == [(0, 2), (1, 2), (2, 2)]
    assert await first(knowledge, "whale") == (f"{tmp_path.name}/sea.md", "Sea > Whales", "line 5", "nature")
    assert [each.title for each in await knowledge.documents(T)] == [f"{tmp_path.name}/land.txt", "Sea"]


async def test_only_changed_files_are_read_again(knowledge: Knowledge, tmp_path: Path) -> None:
    write(tmp_path, a_md="# A\n\nwalrus\n", b_md="# B\n\nnarwhal\n", c_md="# C\n\ndolphin\n")
    await knowledge.add(T, str(tmp_path))
    write(tmp_path, a_md="# A\n\noctopus\n")
    (tmp_path / "b.md").unlink()
    report = await knowledge.add(T, str(tmp_path))
    assert (report.added, report.changed, report.unchanged, report.removed) == (0, 1, 1, 1)
    texts = {found.passage.text for found in await knowledge.search(T, "walrus narwhal octopus dolphin")}
    assert texts == {"octopus", "dolphin"}


async def test_refresh_covers_everything_that_was_added(knowledge: Knowledge, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, a_md=f"# A\n\nwalrus {name}\n")
        await knowledge.add(T, str(tmp_path / name), category=name)
    write(tmp_path / "one", b_md="# B\n\nnarwhal\n")
    write(tmp_path / "two", a_md="# A\n\noctopus\n")
    report = await knowledge.refresh(T)
    assert (report.added, report.changed, report.unchanged) == (1, 1, 1)
    assert (await first(knowledge, "octopus"))[3] == "two" and (await first(knowledge, "narwhal"))[3] == "one"
    with pytest.raises(NotFound):
        await knowledge.refresh(T, "/never/added")


async def test_missing_folder_keeps_its_documents_and_is_reported(knowledge: Knowledge, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    write(tmp_path / "one", a_md="walrus")
    await knowledge.add(T, str(tmp_path / "one"))
    (tmp_path / "one" / "a.md").unlink()
    (tmp_path / "one").rmdir()
    report = await knowledge.refresh(T)
    assert [source for source, _ in report.skipped] == [str(tmp_path / "one")]
    assert len(await knowledge.search(T, "walrus")) == 1


async def test_removal_deletes_everything(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    (tmp_path / "docs").mkdir()
    write(tmp_path / "docs", a_md="walrus one", b_md="walrus two")
    async with open_knowledge(store) as knowledge:
        await knowledge.add(T, str(tmp_path / "docs"))
        assert len(await knowledge.search(T, "walrus")) == 2
        assert await knowledge.remove(T, str(tmp_path / "docs" / "a.md")) == 1
        assert await knowledge.remove(T, str(tmp_path / "docs")) == 1
        assert await knowledge.search(T, "walrus") == await knowledge.documents(T) == []
        assert await store.search_text(T, Where("knowledge"), ["walrus"]) == []
        with pytest.raises(NotFound):
            await knowledge.remove(T, str(tmp_path / "docs"))
    await store.close()


async def test_duplicate_is_stored_once_until_the_original_is_removed(knowledge: Knowledge, tmp_path: Path) -> None:
    write(tmp_path, a_md="# A\n\nthe walrus\n", b_md="# A\n\nthe walrus\n", c_md="# C\n\nthe  walrus\n")
    report = await knowledge.add(T, str(tmp_path))
    assert (report.added, report.duplicates) == (2, 1)
    assert len(await knowledge.search(T, "walrus")) == 1, "the same words are shown once"
    (tmp_path / "a.md").unlink()
    await knowledge.refresh(T)
    assert (await knowledge.refresh(T)).added == 1
    assert {Path(each.source).name for each in await knowledge.documents(T)} == {"b.md", "c.md"}


async def test_category_is_stored_and_can_be_changed(knowledge: Knowledge, tmp_path: Path) -> None:
    write(tmp_path, a_md="walrus")
    await knowledge.add(T, str(tmp_path), category="sea")
    assert await knowledge.search(T, "walrus", category="land") == []
    assert len(await knowledge.search(T, "walrus", category="sea")) == 1
    assert (await knowledge.add(T, str(tmp_path), category="land")).changed == 1
    assert await knowledge.search(T, "walrus", category="sea") == []
    assert [each.collection for each in await knowledge.documents(T, category="land")] == ["land"]


async def test_category_is_kept_if_none_is_given(knowledge: Knowledge, tmp_path: Path) -> None:
    write(tmp_path, a_md="walrus", b_md="narwhal")
    await knowledge.add(T, str(tmp_path), category="sea")
    assert (await knowledge.add(T, str(tmp_path))).unchanged == 2
    write(tmp_path, a_md="octopus", b_md="narwhal", c_md="dolphin", d_md="narwhal")
    report = await knowledge.add(T, str(tmp_path))
    assert (report.changed, report.unchanged, report.added, report.duplicates) == (1, 1, 1, 1)
    assert {each.collection for each in await knowledge.documents(T)} == {"sea"}, "also of the new document"
    (tmp_path / "other").mkdir()
    await knowledge.add(T, str(write(tmp_path / "other", e_md="narwhal")))
    assert [Path(each.source).name for each in await knowledge.documents(T, category="general")] == ["e.md"]


async def test_another_embedder_reads_everything_again(tmp_path: Path) -> None:
    store = MemoryStore()
    write(tmp_path, a_md="walrus")
    async with open_knowledge(store, keywords_only=True) as plain:
        await plain.add(T, str(tmp_path))
        assert len(await plain.search(T, "walrus")) == 1
        assert (await plain.search(T, "a big sea animal with tusks")) == []
    async with open_knowledge(store) as knowledge:
        assert (await knowledge.refresh(T)).changed == 1
        assert len(await knowledge.search(T, "a big sea animal with tusks")) == 1


async def test_long_document_is_stored_in_batches_and_counts_when_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_BATCH_SIZE", 4)
    write(tmp_path, a_md="\n\n".join(f"# Part {n}\n\nwalrus number {n}" for n in range(10)))
    store = MemoryStore()
    async with open_knowledge(store) as knowledge:
        real, count = store.commit, 0

        async def failing(tenant: str, writes: Sequence[Write]) -> list[Any]:
            nonlocal count
            count += 1
            if count == 2:
                raise OSError("the power went")
            return await real(tenant, writes)

        monkeypatch.setattr(store, "commit", failing)
        with pytest.raises(OSError, match="power"):
            await knowledge.add(T, str(tmp_path))
        report = await knowledge.add(T, str(tmp_path))
        assert (report.changed, report.passages) == (1, 10)
        (document,) = await knowledge.documents(T)
        assert document.passages == 10 and (await knowledge.refresh(T)).unchanged == 1
        assert len(await knowledge.search(T, "walrus", max_results=20)) == 10


async def test_html_pdf_and_word_files_are_read(knowledge: Knowledge, tmp_path: Path) -> None:
    page = "<html><head><title>Seals</title></head><body><nav>menu</nav><main><h1>Seals</h1><h2>Food</h2><p>A seal "
    write(tmp_path, seals_html=f"{page}eats herring.</p><script>evil()</script></main></body></html>")
    (tmp_path / "narwhal.pdf").write_bytes(pdf_file("The narwhal has a tusk of ivory"))
    paper = word_file(
        ("Heading1", "Otters"),
        ("", "An otter holds hands while asleep."),
        table=[["name", "teeth"], ["sea otter", "32"]],
        title="On otters",
    )
    (tmp_path / "otters.docx").write_bytes(paper)
    report = await knowledge.add(T, str(tmp_path))
    assert (report.added, report.skipped) == (3, [])
    name = tmp_path.name
    assert await first(knowledge, "what do seals eat") == (f"{name}/seals.html", "Seals > Food", "", "general")
    assert (await first(knowledge, "narwhal tusk"))[::2] == (f"{name}/narwhal.pdf", "page 1")
    assert (await first(knowledge, "how many teeth has a sea otter"))[:2] == (f"{name}/otters.docx", "Otters")
    assert {each.title for each in await knowledge.documents(T)} == {"Seals", f"{name}/narwhal.pdf", "On otters"}
    found = await knowledge.search(T, "menu evil", max_results=20)
    assert not any("evil" in each.passage.text or "menu" in each.passage.text for each in found)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.docx", b"no zip"), ("a.pdf", b"%PDF-1.4 broken"), ("a.docx", word_file()[:-30]), ("a.pdf", b"")],
)
async def test_unreadable_files_are_reported_and_skipped(
    knowledge: Knowledge, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    write(tmp_path, b_md="walrus")
    report = await knowledge.add(T, str(tmp_path))
    assert report.added == 1 and [source for source, _ in report.skipped] == [f"{tmp_path.name}/{name}"]


async def test_word_file_with_xml_entities_is_rejected(knowledge: Knowledge, tmp_path: Path) -> None:
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">]>'
    paper = word_file(("", "x")).replace(b"<w:document", bomb + b"<w:document")
    (tmp_path / "a.docx").write_bytes(paper)
    report = await knowledge.add(T, str(tmp_path))
    assert report.added == 0 and len(report.skipped) == 1


async def test_oversized_file_is_skipped(knowledge: Knowledge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "MAX_SIZE", 10)
    write(tmp_path, a_md="x" * 11)
    assert "larger" in (await knowledge.add(T, str(tmp_path))).skipped[0][1]


@pytest.mark.parametrize("source", ["/no/such/folder", "/dev/null", "."])
async def test_unsupported_source_is_an_error(
    knowledge: Knowledge, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        await knowledge.add(T, source)


async def test_hidden_characters_are_removed(knowledge: Knowledge, tmp_path: Path) -> None:
    write(tmp_path, a_md="wal\u200brus \U000e0041\U000e0042 visible")
    await knowledge.add(T, str(tmp_path))
    assert [found.passage.text for found in await knowledge.search(T, "walrus")] == ["walrus  visible"]


@pytest.fixture
async def site() -> AsyncIterator[tuple[str, dict[str, str]]]:
    pages = {"/": "<html><body><main><h1>Crabs</h1><p>A crab walks sideways.</p></main></body></html>"}

    async def serve(request: web.Request) -> web.Response:
        if request.path not in pages:
            raise web.HTTPNotFound
        return web.Response(text=pages[request.path], content_type="text/html")

    app = web.Application()
    app.router.add_get("/{name:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"127.0.0.1:{runner.addresses[0][1]}", pages
    await runner.cleanup()


async def test_web_page_is_read_and_refreshed(site: tuple[str, dict[str, str]]) -> None:
    host, pages = site
    async with open_knowledge(sources=Sources(hosts=[host])) as knowledge:
        await knowledge.add(T, f"http://{host}/")
        assert (await first(knowledge, "crab"))[:2] == (f"http://{host}/", "Crabs")
        assert (await knowledge.refresh(T)).unchanged == 1
        pages["/"] = pages["/"].replace("sideways", "backwards")
        assert (await knowledge.refresh(T)).changed == 1
        assert "backwards" in (await knowledge.search(T, "crab"))[0].passage.text
        del pages["/"]
        report = await knowledge.refresh(T)
        assert len(report.skipped) == 1 and len(await knowledge.documents(T)) == 1, "a page that fails may come back"


async def test_local_addresses_are_not_read(site: tuple[str, dict[str, str]]) -> None:
    host, _ = site
    async with open_knowledge() as knowledge:
        report = await knowledge.add(T, f"http://{host}/")
        assert report.added == 0 and len(report.skipped) == 1
    with pytest.raises(ToolFailed):
        await Sources().fetch(Item(f"http://{host}/", "", ""))
