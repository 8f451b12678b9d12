"""What would change in a file, as a unified diff that a person can read."""

import difflib

from atlas_agents.core.errors import ToolFailed
from atlas_agents.toolbox.files.content import as_text, sized

_AROUND = 3
_MOST = 1500


def changes(path: str, old: bytes | None, new: bytes) -> str:
    """The diff of a file's content; of what is no text, or too long, only the sizes."""
    if old == new:
        return f"{path}: nothing would change"
    try:
        after = as_text(new, path).text
        before = "" if old is None else as_text(old, path).text
    except ToolFailed:
        return f"{path}: {sized(len(old or b''))} that are no text, replaced by {sized(len(new))}"
    if "\r\n" in after and (old is None or "\r\n" in before):  # they differ in the ends of lines, or not at all
        mixed = any(text.count("\r\n") < text.count("\n") for text in (before, after))
        before, after = (before, after) if mixed else (before.replace("\r\n", "\n"), after.replace("\r\n", "\n"))
    head = [f"{path} is new, {sized(len(new))}"] if old is None else []
    return "\n".join([*head, *_diff(path, _lines(before), _lines(after))])


def _diff(path: str, old: list[str], new: list[str]) -> list[str]:
    """Only what lies between the first and the last line that differ is compared: that may take long."""
    start = _shared(old, new)
    end = _shared(old[start:][::-1], new[start:][::-1])
    begin, stop_old, stop_new = max(0, start - _AROUND), len(old) - end + _AROUND, len(new) - end + _AROUND
    left, right = old[begin:stop_old], new[begin:stop_new]
    if max(len(left), len(right)) > _MOST:
        return [f"{path}: {len(left):,} lines are replaced by {len(right):,}, from line {start + 1} on", *right[:_MOST]]
    found = list(difflib.unified_diff(left, right, n=_AROUND, lineterm=""))[2:]
    return [f"--- {path}", f"+++ {path}", *[_moved(line, begin) for line in found]]


def _moved(line: str, by: int) -> str:
    """A hunk's heading with the numbers that its lines have in the whole file."""
    if not line.startswith("@@"):
        return line
    _, old, new, _ = line.split(" ")
    return f"@@ -{_later(old[1:], by)} +{_later(new[1:], by)} @@"


def _later(place: str, by: int) -> str:
    number, comma, count = place.partition(",")
    return f"{int(number) + by}{comma}{count}"


def _lines(text: str) -> list[str]:
    """Lines with a sign where they end in a carriage return, or where the last has no end."""
    lines = [line[:-1] + "␍" if line.endswith("\r") else line for line in text.split("\n")]
    if lines[-1]:
        lines[-1] += " (no end of line)"
    else:
        lines.pop()
    return lines


def _shared(left: list[str], right: list[str]) -> int:
    """How many lines at the beginning are the same."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(left), len(right)))
