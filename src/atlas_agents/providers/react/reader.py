"""Reading what a model writes in steps, while it writes: thoughts and the answer as they come, actions at the end.

Models keep to the form as well as they can. Labels may be bold, numbered or in capitals; text may stand before the
first one; and a model that invents its own observation is not heard any further.
"""

import re
from typing import Literal, TypeAlias

import msgspec

Section: TypeAlias = Literal["bare", "thought", "action", "input", "observation", "final"]
Voice: TypeAlias = Literal["thought", "words", "misread"]

_LABELS: dict[str, Section] = {
    "thought": "thought",
    "action": "action",
    "action input": "input",
    "observation": "observation",
    "final answer": "final",
}
_DECORATION = " \t>*_#`-"
_NAMES = r"(thought|action[ _]?input|action|observation|final[ _]?answer)"
_LABEL = re.compile(rf"[ \t>*_#`-]*{_NAMES}[ \t]*\d*[ \t]*[*_`]*[ \t]*:[*_`]*[ \t]?", re.IGNORECASE)
_ANYWHERE = re.compile(rf"\b{_NAMES}[ \t]*\d*:[ \t]*", re.IGNORECASE)
_FENCE = "```"
NONE = frozenset(("", "none", "n/a", "na", "no action", "nothing", "no tool", "null"))
_LONGEST_LABEL = 40


class Piece(msgspec.Struct, frozen=True):
    """A few words, and whose: the model's thoughts, or what it says to the user. `misread` says that what was given
    out as words up to here was a thought."""

    voice: Voice
    text: str = ""


class Action(msgspec.Struct):
    """What the model wrote after `Action:`, the name of a tool in its first line, and after `Action Input:`."""

    name: str = ""
    input: str = ""

    @property
    def is_none(self) -> bool:
        """It says that no tool is wanted."""
        return self.name.strip(" \t\r\n`'\"*.").lower() in NONE


class Reader:
    """One reply. `bare` text, before any label, is taken for the answer, until a label says that it was a thought."""

    def __init__(self) -> None:
        self.raw = ""
        self.actions: list[Action] = []
        self.section: Section = "bare"
        self.stopped = False
        """It began to invent an observation: nothing after that counts."""
        self.answered = False
        self._held = ""
        self._gap = ""
        self._fresh = True
        self._opening = ""  # a fence before anything else: around all of it, or part of an answer
        self._fenced = False
        self._begun = False

    def feed(self, text: str) -> list[Piece]:
        """What these words add for whoever listens."""
        self.raw += text
        self._held += text
        pieces: list[Piece] = []
        while self._held and not self.stopped:
            if self._fresh and self._undecided():
                break
            if self._fresh and (match := self._label()):
                pieces += self._begin(match)
                continue
            line, newline, rest = self._held.partition("\n")
            self._held, self._fresh = rest, bool(newline)
            pieces += self._take(line + newline)
        return pieces

    def end(self) -> list[Piece]:
        """The reply is over; what was held back is given out."""
        if self.stopped:
            return []
        match = self._label() if self._fresh else None
        pieces = self._begin(match) if match else []
        pieces += self._take(self._held)
        if not self.actions and not self.answered and _ANYWHERE.search(self.raw):
            pieces += self._read_anywhere()
        return pieces

    @property
    def said_something(self) -> bool:
        """There is an answer, or an action."""
        return bool(self.actions) or self.answered or (self.section == "bare" and self._begun)

    def _undecided(self) -> bool:
        """The line under way may yet become a label, or a fence around everything."""
        if self.section == "final":
            return self._fenced and "\n" not in self._held and _FENCE.startswith(self._held.strip()[: len(_FENCE)])
        start = self._held
        if "\n" in start or len(start) > _LONGEST_LABEL:
            return False
        match = _LABEL.match(start)
        if match:
            return match.end() == len(start)  # more decoration may follow
        bare = start.strip(_DECORATION).lower().replace("_", " ")
        return any(label.startswith(bare) or _only_decorated(bare, label) for label in (*_LABELS, _FENCE))

    def _label(self) -> re.Match[str] | None:
        return None if self.section == "final" else _LABEL.match(self._held)

    def _begin(self, label: re.Match[str]) -> list[Piece]:
        """A section begins with this label."""
        misread = self.section == "bare" and self._begun
        section = _section(label[1])
        self._held, self._fresh = self._held[label.end() :], False
        self._fenced = self._fenced or bool(self._opening)
        self.section, self._gap, self._begun, self._opening = section, "", False, ""
        if section != "input":
            self.actions = [action for action in self.actions if not action.is_none]
        if section == "observation":
            self.stopped = True
        elif section == "action" or (section == "input" and not self.actions):
            self.actions.append(Action())
        return [Piece("misread")] if misread else []

    def _take(self, text: str) -> list[Piece]:
        match self.section:
            case "action":
                self.actions[-1].name += text
            case "input":
                self.actions[-1].input += text
            case "thought":
                return self._say("thought", text)
            case "bare":
                if not self._begun and not self._opening and _is_fence(text):
                    self._opening = text
                    return []
                text, self._opening = self._opening + text, ""
                return self._say("words", text)
            case "final" if not self.actions:
                if self._fenced and _is_fence(text):
                    self._gap += text  # it counts only if more follows
                    return []
                self.answered = self.answered or bool(text.strip())
                return self._say("words", text)
            case _:
                pass  # an answer beside an action is not meant: the observation is still to come
        return []

    def _say(self, voice: Voice, text: str) -> list[Piece]:
        """Blank space at the ends of a section is left out."""
        if not self._begun:
            text = text.lstrip()
        words = text.rstrip()
        if not words:
            self._gap += text if self._begun else ""
            return []
        said, self._gap, self._begun = self._gap + words, text[len(words) :], True
        return [Piece(voice, said)]

    def _read_anywhere(self) -> list[Piece]:
        """Labels in the middle of lines count where there is nothing else."""
        found = [match for match in _ANYWHERE.finditer(self.raw) if _section(match[1]) != "thought"]
        pieces = [Piece("misread")] if self.section == "bare" and found else []
        for place, match in enumerate(found):
            end = found[place + 1].start() if place + 1 < len(found) else len(self.raw)
            text = self.raw[match.end() : end].strip()
            match _section(match[1]):
                case "final" if not self.actions:
                    self.answered = bool(text)
                    return [*pieces, Piece("words", text)] if text else pieces
                case "action":
                    self.actions.append(Action(text))
                case "input" if self.actions:
                    self.actions[-1].input = text
                case _:
                    break
        return pieces


def _is_fence(text: str) -> bool:
    line = text.strip()
    return line.startswith(_FENCE) and "\n" not in line and " " not in line


def _section(label: str) -> Section:
    name = label.lower().replace("_", " ")
    return _LABELS[{"actioninput": "action input", "finalanswer": "final answer"}.get(name, name)]


def _only_decorated(bare: str, label: str) -> bool:
    """`thought 2 **` can still become a label."""
    return bare.startswith(label) and not bare[len(label) :].strip(" \t*_`0123456789")
