"""A workspace as it stands, and as it is edited."""

import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import msgspec

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.hidden import Finding, hidden_characters
from atlas_agents.workspace.agents import AgentSpec, parse_agents
from atlas_agents.workspace.files import NAMES, Look, look, read, write_defaults
from atlas_agents.workspace.skills import FOLDER, Skill, read_skills, skill_files, skills_prompt

logger = logging.getLogger(__name__)
_BETWEEN = "\n\n---\n\n"
_ALONE = AgentSpec("assistant")
"""Who answers in a workspace that names nobody."""


class WorkspaceState(msgspec.Struct, frozen=True):
    """What the files say. With `errors` the last edit was refused, and all else is as it was before."""

    prompt: str = ""
    agents: tuple[AgentSpec, ...] = (_ALONE,)
    findings: tuple[Finding, ...] = ()
    errors: tuple[str, ...] = ()
    skills: tuple[Skill, ...] = ()


class Workspace:
    """A folder with `AGENTS.md`, `SOUL.md`, `TOOLS.md` and `skills`, of which any may be missing."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self._state: WorkspaceState | None = None
        self._seen: Look = ()

    def prepare(self) -> bool:
        """First run: make the folder and write the default files, unless any of them is there. True if it did."""
        return write_defaults(self.path)

    def make_skills(self) -> None:
        """Make the folder of the skills, empty: what is there can be kept from being changed, what is not cannot."""
        with suppress(OSError):
            (self.path / FOLDER).mkdir(exist_ok=True)

    @property
    def state(self) -> WorkspaceState:
        """What was read last; reads the files if they were not read yet."""
        return self._state or self.load()

    def system_prompt(self) -> str:
        """The files that exist, in their order, joined by a line `---`."""
        return self.state.prompt

    def load(self) -> WorkspaceState:
        """Read the files now; ConfigError names file, line and key, and what was read before stays."""
        seen = self._look()
        state = self._read()
        self._state, self._seen = state, seen
        _log(state)
        return state

    async def watch(self, *, every: float = 1.0, clock: Clock = SYSTEM_CLOCK) -> AsyncGenerator[WorkspaceState, None]:
        """Each new state after an edit, without a thread: the files are looked at every second.

        An edit counts when all looks the same twice in a row: until then it may be half written. One that cannot be
        used is told in `errors`, once, and changes nothing else.
        """
        told = self.state
        used = before = self._seen
        while True:
            await clock.sleep(every)
            now = self._look()
            settled, before = now == before, now
            if now == used or not settled:
                continue
            state = self._again(told)
            if self._look() != now:  # it was written to while it was read
                continue
            used = now
            if state != told:
                self._state = told = state
                _log(state)
                yield state

    def _look(self) -> Look:
        return look(self.path, skill_files(self.path))

    def _again(self, old: WorkspaceState) -> WorkspaceState:
        """What the files say now, or what they said before and why that stays."""
        try:
            return self._read()
        except ConfigError as error:
            return msgspec.structs.replace(old, errors=(str(error),))

    def _read(self) -> WorkspaceState:
        if not self.path.is_dir():
            raise ConfigError(f"{self.path}: there is no such folder; make it, or set ATLAS_WORKSPACE to another one")
        texts = {name: text for name in NAMES if (text := read(self.path, name)) is not None}
        agents = parse_agents(texts.get("AGENTS.md", ""), str(self.path / "AGENTS.md"))
        findings = [finding for name, text in texts.items() for finding in hidden_characters(text, name)]
        skills, more = read_skills(self.path)
        pieces = [*texts.values(), *([skills_prompt(skills)] if skills else ())]
        return WorkspaceState(_BETWEEN.join(pieces), agents or (_ALONE,), (*findings, *more), skills=skills)


def _log(state: WorkspaceState) -> None:
    for error in state.errors:
        logger.warning("the workspace stays as it was: %s", error)
    for finding in () if state.errors else state.findings:
        logger.warning("%s", finding)
