"""Text that means the same to a shell and without one: plain words, and nothing that a shell would act on."""

import re
import string

_BARE = frozenset(string.ascii_letters + string.digits + "_@%+:,./-=")
_QUOTED = frozenset(map(chr, range(0x20, 0x7F)))
_DOUBLE = _QUOTED - frozenset('$`\\!"')
_SHELLS_OWN = {
    *(":", ".", "[", "[[", "]]", "{", "}", "!", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd"),
    *("command", "compgen", "complete", "compopt", "continue", "coproc", "declare", "dirs", "disown", "do", "done"),
    *("elif", "else", "enable", "esac", "eval", "exec", "exit", "export", "fc", "fg", "fi", "for", "function"),
    *("getopts", "hash", "help", "history", "if", "in", "jobs", "let", "local", "logout", "mapfile", "popd"),
    *("pushd", "read", "readarray", "readonly", "return", "select", "set", "shift", "shopt", "source", "suspend"),
    *("then", "time", "times", "trap", "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait"),
    *("while"),
}
"""What a shell does by itself: there is no program of that name, or another one."""
_PARTS = re.compile(r"[;&|\n]+")
_PATHS = re.compile(r"[\s;&|<>()`'\"$={}]+")


def plain_words(text: str) -> list[str] | None:
    """The words of a command that a shell would neither change nor act on; None if there is any doubt.

    Letters, digits and a few signs stand for themselves, and so does printable ASCII in quotes, without `$`, backquote,
    backslash and `!` in double ones. Everything else may mean something.
    """
    words: list[str] = []
    word: list[str] | None = None
    place = 0
    while place < len(text):
        char = text[place]
        if char in " \t":
            words += ["".join(word)] if word is not None else []
            word = None
            place += 1
            continue
        word = [] if word is None else word
        if char in "'\"":
            end = text.find(char, place + 1)
            inside = text[place + 1 : end]
            if end < 0 or not (_QUOTED if char == "'" else _DOUBLE).issuperset(inside):
                return None
            word.append(inside)
            place = end + 1
        elif char in _BARE:
            word.append(char)
            place += 1
        else:
            return None
    words += ["".join(word)] if word is not None else []
    return words if words and _is_program(words[0]) else None


def _is_program(word: str) -> bool:
    return bool(word) and "=" not in word and word not in _SHELLS_OWN


def count_parts(text: str) -> int:
    """How many commands a text may hold, counted too high rather than too low."""
    return sum(bool(part.strip()) for part in _PARTS.split(text))


def path_like(text: str) -> list[str]:
    """All pieces of a text that may be the name of a file."""
    return [piece for piece in _PATHS.split(text) if piece]
