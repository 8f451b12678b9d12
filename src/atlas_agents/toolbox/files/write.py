"""`file_write` and `file_edit`: new content for a file, what a person is shown of it, and what a yes is bound to."""

import hashlib
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from atlas_agents.core.errors import BadArguments, NotPermitted, ToolFailed
from atlas_agents.toolbox.files.content import Text, as_text, counted, sized
from atlas_agents.toolbox.files.diff import changes
from atlas_agents.toolbox.files.read import split_lines
from atlas_agents.toolbox.files.root import Root
from atlas_agents.toolbox.files.target import Target, target
from atlas_agents.tools.reconcile import Happened, NotHappened

Arguments: TypeAlias = dict[str, Any]


class Change(msgspec.Struct, frozen=True):
    """What a file is to hold, and a sentence that says so once it does."""

    data: bytes
    told: str


Plan: TypeAlias = Callable[[Target, Arguments], Change]


def written(place: Target, arguments: Arguments) -> Change:
    """The whole content, as it was given."""
    data = _encoded(arguments["content"])
    lines = len(split_lines(arguments["content"]))
    was = "" if place.about is None else f", in place of {sized(place.about.st_size)}"
    return Change(data, f"wrote {place.where}: {counted(lines, 'line')}, {sized(len(data))}{was}")


def edited(place: Target, arguments: Arguments) -> Change:
    """The content with one text in the place of another, in the dress that the file had."""
    present = place.content()
    if present is None:
        raise ToolFailed(f"there is no {place.where}; file_write makes one")
    if place.is_secret or place.root.is_private(place.where):
        raise NotPermitted(f"{place.where} holds secrets: it is not read, searched or edited.")
    text = as_text(present, place.where)
    old, new = _dressed(text, arguments["old"], arguments["new"])
    places = _places(text.text, old)
    if not places:
        raise ToolFailed(_missing(place.where, text.text, old))
    if len(places) > 1 and not arguments.get("all"):
        where = ", ".join(str(each) for each in places[:10])
        raise ToolFailed(
            f"the old text stands in {place.where} {len(places)} times, in lines {where}; "
            "give more of what is around it, or say all"
        )
    data = text.bytes_of(text.text.replace(old, new))
    return Change(
        data,
        f"changed {counted(len(places), 'place')} in {place.where}, line {places[0]}{' and after' * (len(places) > 1)}",
    )


def carry_out(root: Root, plan: Plan, arguments: Arguments, *, approved: bool) -> str:
    """Do it. Whether a person must have been asked is seen once more, of the very place that is written to."""
    with target(root, arguments["path"], make=plan is written) as place:
        if place.asks and not approved:
            raise NotPermitted(f"{place.where} is written only when a person has agreed, and nobody was asked.")
        change = plan(place, arguments)
        place.put(change.data)
        return change.told


def must_ask(root: Root, arguments: Arguments) -> bool:
    """Whether a person is asked whatever the policy says: about prompts, settings, hooks and keys."""
    with target(root, arguments["path"]) as place:
        return place.asks


def preview(root: Root, plan: Plan, arguments: Arguments) -> str:
    """A unified diff, under a line that says what is special about the file."""
    with target(root, arguments["path"]) as place:
        change = plan(place, arguments)
        notes = [f"{place.where} says what agents are told or may do, or is run by others."] if place.asks else []
        if place.is_secret or place.is_too_long:
            return "\n".join([*notes, f"{place.where}: its present content is not shown", *_added(change.data)])
        return "\n".join([*notes, changes(place.where, place.content(), change.data)])


def facts(root: Root, arguments: Arguments) -> dict[str, Any]:
    """Where the file really is, and what it holds now: a yes is for the change that was shown."""
    with target(root, arguments["path"]) as place:
        if place.about is not None and (place.is_secret or place.is_too_long):
            state: Arguments = {"changed": place.about.st_mtime_ns, "number": place.about.st_ino}
        else:
            present = place.content()
            state = {"sha256": None if present is None else hashlib.sha256(present).hexdigest()}
        return {"folder": root.path, "file": place.where, **state}


def found_written(root: Root, arguments: Arguments) -> Happened | NotHappened:
    """A write is whole or not at all, and doing it again does no harm: only the content counts."""
    with target(root, arguments["path"]) as place:
        change = written(place, arguments)
        return Happened(change.told) if place.content() == change.data else NotHappened()


def found_edited(root: Root, arguments: Arguments) -> Happened | NotHappened | None:
    """An edit has happened if the new text is there and the old is not, and has not if it is the other way round."""
    with target(root, arguments["path"]) as place:
        present = place.content()
        if present is None:
            return None
        text = as_text(present, place.where)
        old, new = _dressed(text, arguments["old"], arguments["new"])
        if new and new in text.text and old not in text.text.replace(new, ""):
            return Happened(f"changed {place.where}")
        return NotHappened() if old in text.text and (not new or new not in text.text) else None


def _encoded(content: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise BadArguments("The content holds half a character; nothing was written.") from None


def _dressed(text: Text, old: str, new: str) -> tuple[str, str]:
    """Old and new text with the ends of lines that the file has, where it has not exactly those that were given."""
    if not old or old == new:
        raise BadArguments("Give the old text, and another one for its place; file_write replaces a whole file.")
    if old in text.text or text.newline == "\n":
        return old, new.replace("\r\n", "\n").replace("\n", text.newline) if "\r\n" not in old else new
    return _crlf(old), _crlf(new)


def _crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _places(text: str, old: str) -> list[int]:
    """The lines in which the text begins."""
    found: list[int] = []
    place, line, seen = text.find(old), 1, 0
    while place >= 0:
        line += text.count("\n", seen, place)
        found.append(line)
        seen, place = place, text.find(old, place + len(old))
    return found


def _missing(where: str, text: str, old: str) -> str:
    """That it is not there, and where something is that differs only in spaces."""
    squeezed, wanted = [" ".join(line.split()) for line in text.split("\n")], " ".join(old.split("\n")[0].split())
    near = [number for number, line in enumerate(squeezed, 1) if wanted and wanted in line]
    words = f"the old text is not in {where}; it must be exactly as in the file, without line numbers"
    return f"{words}. Line {near[0]} differs only in spaces or in what follows" if near else words


def _added(data: bytes) -> list[str]:
    return [f"+{line}" for line in data.decode(errors="replace").splitlines()]
