"""Commands run without a shell only if bash would split them into exactly the same arguments."""

import os
import random
import string
import subprocess
from pathlib import Path

import pytest

from atlas_agents.builtin_tools.bash import build_argv, split_plain_command
from atlas_agents.core.errors import BadArguments

SEED = 20261115
PIECES = [
    *('"$a"', '"$(b)"', '"`b`"', '"\\\\"', '"!!"', "'$a'", "'`b`'", "'\\\\'", '"a\'b"', "$a", "a=$b"),
    *string.ascii_letters[:8],
    *(
        " ",
        "  ",
        "\t",
        "'",
        '"',
        "''",
        '""',
        "'a b'",
        '"c d"',
        "-x",
        "--y=z",
        "/tmp/f",
        "./g",
        "a.b",
        "1",
        "=",
        ":",
        "%",
        "@",
    ),
    *(";", "&&", "||", "|", "&", "\n", "\r", "\\", "\\\n", "$", "$(", "`", "${IFS}", "$'", "<(", ">(", ">", "<", "<<E"),
    *(
        "{a,b}",
        "~",
        "*",
        "?",
        "[a]",
        "!",
        "#",
        "(",
        ")",
        "\x00",
        "\x1b",
        "\u00a0",
        "\u200b",
        "\u202e",
        "é",
        "\ud800",
        "^",
        ",",
    ),
]


def random_texts(count: int) -> list[str]:
    """Return random texts, half of them only of pieces that a plain command can contain."""
    rng = random.Random(SEED)
    plain = [
        piece for piece in PIECES if not set(piece) & set(";&|\n\r\\$`<>{}~*?[]!#()^\x00\x1b\u00a0\u200b\u202eé\ud800")
    ]
    texts: list[str] = []
    for number in range(count):
        pieces = PIECES if number % 2 else plain
        texts.append("".join(rng.choice(pieces) for _ in range(rng.randint(1, 14))))
    return texts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ls", ["ls"]),
        ("  git  status\t--short ", ["git", "status", "--short"]),
        ("echo 'a b' \"c d\"", ["echo", "a b", "c d"]),
        ("echo a'b'\"c\"d", ["echo", "abcd"]),
        ("echo ''", ["echo", ""]),
        ("grep -n '$(x) `y` \\ ; | & > <' f", ["grep", "-n", "$(x) `y` \\ ; | & > <", "f"]),
        ('echo "don\'t; stop"', ["echo", "don't; stop"]),
        ("./run.sh --key=value a,b:c@d%e", ["./run.sh", "--key=value", "a,b:c@d%e"]),
    ],
)
def test_plain_command_is_split(text: str, words: list[str]) -> None:
    assert split_plain_command(text) == words


@pytest.mark.parametrize(
    "text", ["", "  ", "A=1 ls", "cd /tmp", ". x", ": x", "eval ls", "if", "while", "time ls", "exec ls", "''", "'' x"]
)
def test_command_that_needs_a_shell_is_not_split(text: str) -> None:
    assert split_plain_command(text) is None


def test_bash_splits_accepted_commands_the_same_way() -> None:
    """Of ten thousand texts, those that are accepted are passed to one bash, which prints its arguments."""
    accepted = [
        (text, words) for text in random_texts(10_000) if (words := split_plain_command(f"r {text}")) is not None
    ]
    assert len(accepted) > 2000
    script = 'r() { printf "%d\\0" $#; printf "%s\\0" "$@"; }\n' + "\n".join(f"r {text}" for text, _ in accepted)
    done = subprocess.run(["bash", "--norc", "--noprofile"], input=script.encode(), capture_output=True, check=True)
    printed = done.stdout.split(b"\0")
    for text, (_, *words) in accepted:
        count = int(printed.pop(0))
        arguments = [printed.pop(0).decode() for _ in range(max(1, count))][:count]
        assert arguments == words, text
    assert done.stderr == b""


@pytest.mark.slow
def test_program_receives_the_approved_bytes(tmp_path: Path) -> None:
    """For ten thousand texts, the program receives exactly the bytes that the approval covers.

    Every twentieth one is run: a program receives its arguments as they are, if they can be passed at all.
    """
    recorder = tmp_path / "recorder"
    recorder.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    recorder.chmod(0o755)
    out = tmp_path / "out"
    checked = 0
    with out.open("w+b") as file:
        for text in random_texts(10_000):
            try:
                argv, in_shell = build_argv({"command": text}, str(recorder))
            except BadArguments:
                assert not text.strip() or "\0" in text or "\ud800" in text or len(text) > 10_000
                continue
            assert not in_shell or argv[-1] == text
            if not in_shell:
                argv = (str(recorder), *argv)
            checked += 1
            if checked % 20:
                assert b"\0" not in b"".join(word.encode() for word in argv), text
                continue
            file.seek(0)
            file.truncate()
            pid = os.posix_spawn(recorder, argv, {}, file_actions=[(os.POSIX_SPAWN_DUP2, file.fileno(), 1)])
            os.waitpid(pid, 0)
            file.seek(0)
            assert file.read() == b"".join(word.encode() + b"\0" for word in argv[1:]), text
    assert checked > 6000


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "; ".join(["ls"] * 51)},
        {"command": "\n".join(["ls"] * 51)},
        {"command": "echo " + "x" * 1_000_000},
        {"argv": ["echo", "x" * 1_000_000]},
        {"argv": ["echo"] * 257},
        {"argv": []},
        {"argv": [""]},
        {"command": "   "},
        {"command": "ls", "argv": ["ls"]},
        {},
        {"command": "ls \0"},
        {"argv": ["ls", "\ud800"]},
    ],
)
def test_command_over_the_limits_is_rejected(arguments: dict[str, object]) -> None:
    with pytest.raises(BadArguments):
        build_argv(arguments, "/bin/bash")
