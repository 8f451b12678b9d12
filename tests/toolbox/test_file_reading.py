"""What a model reads of files: lines, encodings, pictures, folders and what is found in them."""

import base64
import os
import time
from pathlib import Path
from typing import Any

import pytest
from calling_tools import call

from atlas_agents.builtin_tools.files import file_tools
from atlas_agents.builtin_tools.files.listing import Pattern
from atlas_agents.providers.base import render_result
from checks import beating


async def told(root: Path, name: str, **arguments: Any) -> Any:
    result = await call(file_tools(root), name, **arguments)
    assert result.status == "ok", result.result
    return result.result


async def refused(root: Path, name: str, **arguments: Any) -> str:
    result = await call(file_tools(root), name, **arguments)
    assert result.status == "error"
    return str(result.result)


# Lines


async def test_lines_have_numbers(tmp_path: Path) -> None:
    (tmp_path / "tea.txt").write_text("green\nblack\n\nwhite")
    assert await told(tmp_path, "file_read", path="tea.txt") == (
        "[tea.txt, 4 lines]\n     1\tgreen\n     2\tblack\n     3\t\n     4\twhite"
    )


@pytest.mark.parametrize(
    ("start", "lines", "heading", "numbers", "ending"),
    [
        (1, 2, "lines 1 to 2 follow", [1, 2], "… 8 more lines; go on with start=3"),
        (9, 50, "lines 9 to 10 follow", [9, 10], ""),
        (-3, 2, "lines 8 to 9 follow", [8, 9], "… 1 more line; go on with start=10"),
        (-50, 1, "lines 1 to 1 follow", [1], "… 9 more lines; go on with start=2"),
    ],
)
async def test_a_range_of_lines(
    start: int, lines: int, heading: str, numbers: list[int], ending: str, tmp_path: Path
) -> None:
    (tmp_path / "ten").write_text("".join(f"line {number}\n" for number in range(1, 11)))
    text = await told(tmp_path, "file_read", path="ten", start=start, lines=lines)
    shown = [f"{number:>6}\tline {number}" for number in numbers]
    assert text.split("\n") == [f"[ten, 10 lines, {heading}]", *shown, *([ending] if ending else [])]


async def test_what_is_too_much_goes_on_later_and_what_is_too_long_is_cut(tmp_path: Path) -> None:
    (tmp_path / "much").write_text("x" * 5000 + "\n" + ("y" * 1000 + "\n") * 100)
    text = await told(tmp_path, "file_read", path="much")
    assert len(text) < 60_000
    assert "(5,000 characters in this line)" in text
    assert text.split("\n")[-1].startswith("… ") and "go on with start=" in text.split("\n")[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"start": 0}, "counted from 1"),
        ({"lines": 0}, "at least one"),
        ({"start": 5}, "has only 1 line; start at 1 or before"),
    ],
)
async def test_lines_that_are_not_there(arguments: dict[str, int], words: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one\n")
    assert words in await refused(tmp_path, "file_read", path="one", **arguments)


async def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "nothing").touch()
    assert await told(tmp_path, "file_read", path="nothing") == "nothing is empty"


# What the bytes are


@pytest.mark.parametrize(
    ("content", "heading"),
    [
        ("Käse\n".encode(), "[f, 1 line]"),
        (b"\xef\xbb\xbf" + "Käse\n".encode(), "[f, 1 line, UTF-8 with a byte order mark]"),
        (b"\xff\xfe" + "Käse\n".encode("utf-16-le"), "[f, 1 line, UTF-16-LE]"),
        (b"\xfe\xff" + "Käse\n".encode("utf-16-be"), "[f, 1 line, UTF-16-BE]"),
        ("Käse\n".encode("latin-1"), "[f, 1 line, not UTF-8, read as Latin-1, which is a guess]"),
        ("Käse\r\n".encode(), "[f, 1 line]"),
    ],
)
async def test_encodings(content: bytes, heading: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    assert await told(tmp_path, "file_read", path="f") == f"{heading}\n     1\tKäse"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x00\x01\x02" * 100, "binary data of 300 bytes"),
        (b"%PDF-1.7\n...", "a PDF; its text cannot be read here yet"),
        (b"PK\x03\x04rest", "an archive or an office document"),
        (b"SQLite format 3\0rest", "a database"),
        (b"\x7fELF\x02", "a program"),
        (b"\xff\xfe\x00", "begins like utf-16-le text and is not"),
        (bytes(range(1, 9)) * 50, "binary data"),
    ],
)
async def test_what_is_no_text_is_refused_by_what_it_is(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    assert words in await refused(tmp_path, "file_read", path="f")


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBP", "image/webp"),
    ],
)
async def test_pictures_are_shown_to_the_model(head: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(head + b"\x00rest")
    result = await call(file_tools(tmp_path), "file_read", path="f")
    words, pictures = render_result(result)
    assert words.startswith(f'"(f, {kind}, ')
    assert [(each.media_type, base64.b64decode(each.data)) for each in pictures] == [(kind, head + b"\x00rest")]


async def test_a_picture_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(800_000))
    assert "a picture of 781.3 KB; at most 700.0 KB can be shown" in await refused(tmp_path, "file_read", path="f")


async def test_the_ends_of_a_long_log_can_be_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        for number in range(400_000):
            log.write(f"line {number} of a long log file\n")
    first = await told(tmp_path, "file_read", path="log", lines=2)
    assert first.endswith("     1\tline 0 of a long log file\n     2\tline 1 of a long log file")
    last = await told(tmp_path, "file_read", path="log", start=-2)
    assert last.split("\n")[1:] == ["line 399998 of a long log file", "line 399999 of a long log file"]
    assert "read its end with a negative start" in await refused(tmp_path, "file_read", path="log", start=399_000)


# What is not there


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("note.txt", "there is no note.txt; near it: notes.txt"),
        ("NOTES.TXT", "there is no NOTES.TXT; near it: notes.txt"),
        ("docs/giude.md", "there is no docs/giude.md; near it: docs/guide.md"),
        ("other/guide.md", "there is no folder other; file_list shows what there is"),
        ("zzz", "there is no zzz; file_list shows what is in the folder"),
        ("docs", "docs is a folder; file_list shows what is in it"),
        ("notes.txt/x", "notes.txt/x is no folder, or lies in something that is none"),
    ],
)
async def test_errors_say_what_to_do(path: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").write_text("g")
    assert words in await refused(tmp_path, "file_read", path=path)


# Folders


def forest(root: Path) -> None:
    for path in ("a.py", "b.txt", "src/c.py", "src/deep/d.py", ".hidden", "node_modules/x/y.js", ".git/config"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("12345")
    (root / "link").symlink_to("src/c.py")


async def test_a_folder_is_listed_with_sizes_and_what_is_left_out(tmp_path: Path) -> None:
    forest(tmp_path)
    assert (await told(tmp_path, "file_list")).split("\n") == [
        "[.: 3 files, 2 folders, 2 hidden left out, not entered: node_modules]",
        *("a.py  5 bytes", "b.txt  5 bytes", "link -> src/c.py", "node_modules/", "src/"),
    ]


async def test_a_pattern_looks_in_all_folders(tmp_path: Path) -> None:
    forest(tmp_path)
    found = (await told(tmp_path, "file_list", pattern="*.py")).split("\n")[1:]
    assert found == ["a.py  5 bytes", "src/c.py  5 bytes", "src/deep/d.py  5 bytes"]
    assert (await told(tmp_path, "file_list", path="src", depth=2)).split("\n")[1:] == [
        *("src/c.py  5 bytes", "src/deep/", "src/deep/d.py  5 bytes"),
    ]
    assert "nothing that fits *.rs" in await told(tmp_path, "file_list", pattern="*.rs")


async def test_hidden_ones_are_listed_when_asked_for(tmp_path: Path) -> None:
    forest(tmp_path)
    text = await told(tmp_path, "file_list", hidden=True)
    assert ".hidden  5 bytes" in text and ".git/" in text and ".git/config" not in text
    assert ".git/config  5 bytes" in await told(tmp_path, "file_list", path=".git")


async def test_of_very_many_files_some_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    for number in range(700):
        (tmp_path / f"{number:03}").touch()
    lines = (await told(tmp_path, "file_list")).split("\n")
    assert len(lines) == 501 and "200 more are not shown" in lines[0]


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "a/b/c.py", True),
        ("src/*.py", "src/a/b.py", False),
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/a/b/c.py", True),
        ("**/test_*", "a/test_x", True),
        ("[ab].txt", "c.txt", False),
    ],
)
def test_patterns(pattern: str, path: str, fits: bool) -> None:
    assert Pattern(pattern).fits(path) is fits


def test_no_pattern_takes_long() -> None:
    began = time.process_time()
    assert not Pattern("*a" * 60 + "b").fits("a" * 250)
    assert not Pattern("/".join(["**", "a"] * 20) + "/b").fits("/".join(["a"] * 60))
    assert time.process_time() - began < 1


# Searching


async def test_lines_are_found_with_those_around_them(tmp_path: Path) -> None:
    (tmp_path / "tea.md").write_text("one\ntwo tea\nthree\nfour\nfive\nsix Tea\n")
    (tmp_path / "picture").write_bytes(b"\0tea")
    assert await told(tmp_path, "file_search", query="tea", context=1) == (
        "[1 line in 1 of 1 file; skipped: 1 file, no text, too long or secret]\n"
        "tea.md\n     1- one\n     2: two tea\n     3- three"
    )
    assert (await told(tmp_path, "file_search", query="tea", ignore_case=True, context=1)).count("⋮") == 1
    assert (await told(tmp_path, "file_search", query="^(two|six) [tT]ea$", regex=True)).count("ea") == 3
    assert "nothing was found in 1 file" in await told(tmp_path, "file_search", query="^two tea", path="tea.md")


async def test_secrets_are_not_found(tmp_path: Path) -> None:
    for name in (".env", "id_rsa", "server.pem", "notes.txt"):
        (tmp_path / name).write_text("password = hunter2\n")
    os.link(tmp_path / ".env", tmp_path / "plain.txt")
    text = await told(tmp_path, "file_search", query="hunter2", hidden=True)
    assert [line for line in text.split("\n")[1:] if not line.startswith(" ")] == ["notes.txt"]


async def test_a_search_says_when_there_is_more(tmp_path: Path) -> None:
    (tmp_path / "many").write_text("tea\n" * 1000)
    (tmp_path / "other").write_text("tea\n")
    text = await told(tmp_path, "file_search", query="tea")
    assert text.count("\n") == 201 and "there is more" in text


async def test_a_match_far_out_in_a_long_line_is_shown(tmp_path: Path) -> None:
    (tmp_path / "minified.js").write_text("x" * 2000 + "needle" + "y" * 100_000)
    text = await told(tmp_path, "file_search", query="needle")
    assert "needle" in text and len(text) < 1000


@pytest.mark.parametrize("query", ["(", "*", "(?P<a>x)(?P<a>y)", ""])
async def test_a_query_that_is_none(query: str, tmp_path: Path) -> None:
    assert (await call(file_tools(tmp_path), "file_search", query=query, regex=True)).error == "bad_arguments"


@pytest.mark.slow
async def test_an_endless_expression_ends_and_holds_up_nobody(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a" * 40 + "!\n")
    async with beating() as heart:
        text = await told(tmp_path, "file_search", query="(a+)+$", regex=True)
    assert "stopped after 3 s of work" in text
    assert heart.beats > 30  # the loop was free all the while


async def test_reading_is_quick_when_warm(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("line\n" * 1000)
    await told(tmp_path, "file_read", path="f")
    took: list[float] = []
    for _ in range(5):
        began = time.process_time()
        await told(tmp_path, "file_read", path="f")
        took.append(time.process_time() - began)
    assert min(took) < 0.02  # a house and a turn around it included
