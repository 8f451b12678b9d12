"""`file_read`, `file_list` and `file_search`: lines, encodings, images, patterns and matches."""

import base64
import os
import time
from pathlib import Path
from typing import Any

import pytest
from calling_tools import call

from atlas_agents.builtin_tools.files import file_tools
from atlas_agents.builtin_tools.files.read import GlobPattern
from atlas_agents.providers.base import render_result
from checks import cpu_factor, monitor_loop


async def succeed(root: Path, name: str, **arguments: Any) -> Any:
    result = await call(file_tools(root), name, **arguments)
    assert result.status == "ok", result.result
    return result.result


async def fail(root: Path, name: str, **arguments: Any) -> str:
    result = await call(file_tools(root), name, **arguments)
    assert result.status == "error"
    return str(result.result)


# Lines


async def test_lines_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "tea.txt").write_text("green\nblack\n\nwhite")
    assert await succeed(tmp_path, "file_read", path="tea.txt") == (
        "[tea.txt, 4 lines]\n     1\tgreen\n     2\tblack\n     3\t\n     4\twhite"
    )


@pytest.mark.parametrize(
    ("start", "lines", "heading", "numbers", "ending"),
    [
        (1, 2, "showing lines 1 to 2", [1, 2], "… 8 more lines; continue with start=3"),
        (9, 50, "showing lines 9 to 10", [9, 10], ""),
        (-3, 2, "showing lines 8 to 9", [8, 9], "… 1 more line; continue with start=10"),
        (-50, 1, "showing lines 1 to 1", [1], "… 9 more lines; continue with start=2"),
    ],
)
async def test_range_of_lines_is_read(
    start: int, lines: int, heading: str, numbers: list[int], ending: str, tmp_path: Path
) -> None:
    (tmp_path / "ten").write_text("".join(f"line {number}\n" for number in range(1, 11)))
    text = await succeed(tmp_path, "file_read", path="ten", start=start, lines=lines)
    shown = [f"{number:>6}\tline {number}" for number in numbers]
    assert text.split("\n") == [f"[ten, 10 lines, {heading}]", *shown, *([ending] if ending else [])]


async def test_long_file_is_continued_and_long_lines_are_cut(tmp_path: Path) -> None:
    (tmp_path / "much").write_text("x" * 5000 + "\n" + ("y" * 1000 + "\n") * 100)
    text = await succeed(tmp_path, "file_read", path="much")
    assert len(text) < 60_000
    assert "(5,000 characters in this line)" in text
    assert text.split("\n")[-1].startswith("… ") and "continue with start=" in text.split("\n")[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"start": 0}, "counts from 1"),
        ({"lines": 0}, "at least 1"),
        ({"start": 5}, "has only 1 line; use start=1 or less"),
    ],
)
async def test_invalid_line_numbers_are_rejected(arguments: dict[str, int], words: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one\n")
    assert words in await fail(tmp_path, "file_read", path="one", **arguments)


async def test_empty_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "nothing").touch()
    assert await succeed(tmp_path, "file_read", path="nothing") == "nothing is empty"


# Encodings and file types


@pytest.mark.parametrize(
    ("content", "heading"),
    [
        ("Käse\n".encode(), "[f, 1 line]"),
        (b"\xef\xbb\xbf" + "Käse\n".encode(), "[f, 1 line, UTF-8 with a byte order mark]"),
        (b"\xff\xfe" + "Käse\n".encode("utf-16-le"), "[f, 1 line, UTF-16-LE]"),
        (b"\xfe\xff" + "Käse\n".encode("utf-16-be"), "[f, 1 line, UTF-16-BE]"),
        ("Käse\n".encode("latin-1"), "[f, 1 line, not UTF-8, decoded as Latin-1 (a guess)]"),
        ("Käse\r\n".encode(), "[f, 1 line]"),
    ],
)
async def test_encoding_is_detected(content: bytes, heading: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    assert await succeed(tmp_path, "file_read", path="f") == f"{heading}\n     1\tKäse"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x00\x01\x02" * 100, "binary data, 300 bytes"),
        (b"%PDF-1.7\n...", "a PDF, which this tool cannot read"),
        (b"PK\x03\x04rest", "a ZIP archive"),
        (b"SQLite format 3\0rest", "a SQLite database"),
        (b"\x7fELF\x02", "an executable"),
        (b"\xff\xfe\x00", "starts like utf-16-le text but is not"),
        (bytes(range(1, 9)) * 50, "binary data"),
    ],
)
async def test_binary_file_is_rejected_with_its_type(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    assert words in await fail(tmp_path, "file_read", path="f")


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBP", "image/webp"),
    ],
)
async def test_images_are_shown_to_the_model(head: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(head + b"\x00rest")
    result = await call(file_tools(tmp_path), "file_read", path="f")
    text, images = render_result(result)
    assert text.startswith(f'"(f, {kind}, ')
    assert [(each.media_type, base64.b64decode(each.data)) for each in images] == [(kind, head + b"\x00rest")]


async def test_large_image_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(800_000))
    assert "image too large: 781.3 KB, max 700.0 KB" in await fail(tmp_path, "file_read", path="f")


async def test_beginning_and_end_of_a_large_log_can_be_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        for number in range(400_000):
            log.write(f"line {number} of a long log file\n")
    first = await succeed(tmp_path, "file_read", path="log", lines=2)
    assert first.endswith("     1\tline 0 of a long log file\n     2\tline 1 of a long log file")
    last = await succeed(tmp_path, "file_read", path="log", start=-2)
    assert last.split("\n")[1:] == ["line 399998 of a long log file", "line 399999 of a long log file"]
    assert "read its end with a negative start" in await fail(tmp_path, "file_read", path="log", start=399_000)


# Missing files


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("note.txt", "not found: note.txt; did you mean notes.txt?"),
        ("NOTES.TXT", "not found: NOTES.TXT; did you mean notes.txt?"),
        ("docs/giude.md", "not found: docs/giude.md; did you mean docs/guide.md?"),
        ("other/guide.md", "there is no folder other; use file_list to see what exists"),
        ("zzz", "not found: zzz; use file_list to see what is in the folder"),
        ("docs", "docs is a folder; use file_list to see what is in it"),
        ("notes.txt/x", "notes.txt/x is not a folder, or is inside something that is not a folder"),
    ],
)
async def test_errors_say_what_to_do(path: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").write_text("g")
    assert words in await fail(tmp_path, "file_read", path=path)


# Folders


def create_files(root: Path) -> None:
    for path in ("a.py", "b.txt", "src/c.py", "src/deep/d.py", ".hidden", "node_modules/x/y.js", ".git/config"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("12345")
    (root / "link").symlink_to("src/c.py")


async def test_folder_is_listed_with_sizes_and_omissions(tmp_path: Path) -> None:
    create_files(tmp_path)
    assert (await succeed(tmp_path, "file_list")).split("\n") == [
        "[.: 3 files, 2 folders, 2 hidden omitted, contents not listed: node_modules]",
        *("a.py  5 bytes", "b.txt  5 bytes", "link -> src/c.py", "node_modules/", "src/"),
    ]


async def test_pattern_matches_in_all_folders(tmp_path: Path) -> None:
    create_files(tmp_path)
    found = (await succeed(tmp_path, "file_list", pattern="*.py")).split("\n")[1:]
    assert found == ["a.py  5 bytes", "src/c.py  5 bytes", "src/deep/d.py  5 bytes"]
    assert (await succeed(tmp_path, "file_list", path="src", depth=2)).split("\n")[1:] == [
        *("src/c.py  5 bytes", "src/deep/", "src/deep/d.py  5 bytes"),
    ]
    assert "nothing matches *.rs" in await succeed(tmp_path, "file_list", pattern="*.rs")


async def test_hidden_files_are_listed_on_request(tmp_path: Path) -> None:
    create_files(tmp_path)
    text = await succeed(tmp_path, "file_list", hidden=True)
    assert ".hidden  5 bytes" in text and ".git/" in text and ".git/config" not in text
    assert ".git/config  5 bytes" in await succeed(tmp_path, "file_list", path=".git")


async def test_long_listing_is_cut_and_the_rest_counted(tmp_path: Path) -> None:
    for number in range(700):
        (tmp_path / f"{number:03}").touch()
    lines = (await succeed(tmp_path, "file_list")).split("\n")
    assert len(lines) == 501 and "200 more not shown" in lines[0]


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a/b/c.py", True),
        ("src/*.py", "src/a/b.py", False),
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/a/b/c.py", True),
        ("**/test_*", "a/test_x", True),
        ("[ab].txt", "c.txt", False),
    ],
)
def test_glob_pattern(pattern: str, path: str, matches: bool) -> None:
    assert GlobPattern(pattern).matches(path) is matches


def test_pattern_matching_is_fast() -> None:
    began = time.process_time()
    assert not GlobPattern("*a" * 60 + "b").matches("a" * 250)
    assert not GlobPattern("/".join(["**", "a"] * 20) + "/b").matches("/".join(["a"] * 60))
    assert time.process_time() - began < 10 * cpu_factor()


# Searching


async def test_matches_are_shown_with_context(tmp_path: Path) -> None:
    (tmp_path / "tea.md").write_text("one\ntwo tea\nthree\nfour\nfive\nsix Tea\n")
    (tmp_path / "picture").write_bytes(b"\0tea")
    assert await succeed(tmp_path, "file_search", query="tea", context=1) == (
        "[1 line in 1 of 1 file; skipped: 1 file (binary, too large or secret)]\n"
        "tea.md\n     1- one\n     2: two tea\n     3- three"
    )
    assert (await succeed(tmp_path, "file_search", query="tea", ignore_case=True, context=1)).count("⋮") == 1
    assert (await succeed(tmp_path, "file_search", query="^(two|six) [tT]ea$", regex=True)).count("ea") == 3
    assert "no matches in 1 file" in await succeed(tmp_path, "file_search", query="^two tea", path="tea.md")


async def test_secrets_are_not_searched(tmp_path: Path) -> None:
    for name in (".env", "id_rsa", "server.pem", "notes.txt"):
        (tmp_path / name).write_text("password = hunter2\n")
    os.link(tmp_path / ".env", tmp_path / "plain.txt")
    text = await succeed(tmp_path, "file_search", query="hunter2", hidden=True)
    assert [line for line in text.split("\n")[1:] if not line.startswith(" ")] == ["notes.txt"]


async def test_search_reports_more_matches(tmp_path: Path) -> None:
    (tmp_path / "many").write_text("tea\n" * 1000)
    (tmp_path / "other").write_text("tea\n")
    text = await succeed(tmp_path, "file_search", query="tea")
    assert text.count("\n") == 201 and "there are more matches" in text


async def test_match_in_a_long_line_is_shown(tmp_path: Path) -> None:
    (tmp_path / "minified.js").write_text("x" * 2000 + "needle" + "y" * 100_000)
    text = await succeed(tmp_path, "file_search", query="needle")
    assert "needle" in text and len(text) < 1000


@pytest.mark.parametrize("query", ["(", "*", "(?P<a>x)(?P<a>y)", ""])
async def test_invalid_query_is_rejected(query: str, tmp_path: Path) -> None:
    assert (await call(file_tools(tmp_path), "file_search", query=query, regex=True)).error == "bad_arguments"


@pytest.mark.slow
async def test_endless_regular_expression_is_stopped_without_blocking_the_loop(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a" * 40 + "!\n")
    async with monitor_loop() as monitor:
        text = await succeed(tmp_path, "file_search", query="(a+)+$", regex=True)
    assert "stopped after 3 s of CPU time" in text
    assert monitor.rounds > 30  # the event loop was not blocked


async def test_reading_is_fast(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("line\n" * 1000)
    await succeed(tmp_path, "file_read", path="f")
    took: list[float] = []
    for _ in range(5):
        began = time.process_time()
        await succeed(tmp_path, "file_read", path="f")
        took.append(time.process_time() - began)
    assert min(took) < 0.04 * cpu_factor()  # includes the setup of an Atlas and a turn
