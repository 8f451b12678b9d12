"""Who may do what: grants by name, and a matrix of tools and those who may call them.

Denied unless granted. A policy is plain data, read from TOML, and says of every verdict which of its lines made it.
"""

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.json import encode

ANY, REST = "*", "**"
_EVERYONE = ("*",)


class CommandRule(msgspec.Struct, frozen=True):
    """A command that nobody need be asked about: each word as it is, `*` for any one word, `**` last for any others.

    `who` are agents, roles and groups, as in the lines of a tool.
    """

    argv: tuple[str, ...]
    who: tuple[str, ...] = _EVERYONE

    def fits(self, argv: Sequence[str]) -> bool:
        words, rest = (self.argv[:-1], True) if self.argv[-1] == REST else (self.argv, False)
        if len(argv) < len(words) or (len(argv) > len(words) and not rest):
            return False
        return all(word in (ANY, given) for word, given in zip(words, argv, strict=False))

    @property
    def words(self) -> str:
        return " ".join(self.argv)


def rules_from(data: Any, where: str) -> tuple[CommandRule, ...]:
    """The `[[commands]]` of a policy file; ConfigError names the one that is wrong."""
    if not isinstance(data, list):
        raise ConfigError(f"{where}: commands are tables, each under [[commands]]")
    return tuple(rule_from(each, f"{where}: commands[{place}]") for place, each in enumerate(cast(list[Any], data), 1))


def rule_from(given: "CommandRule | Mapping[str, Any]", where: str) -> CommandRule:
    """One rule, checked: a program by name or path, and no star in its place, which would be everything."""
    try:
        rule = given if isinstance(given, CommandRule) else msgspec.convert(given, CommandRule, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: write argv = [words] and, if you like, who = [names]: {error}") from None
    if isinstance(given, Mapping) and (unknown := set(given) - {"argv", "who"}):
        raise ConfigError(f"{where}: there is no {sorted(unknown)[0]!r}; there are argv and who")
    if not rule.argv or rule.argv[0] in ("", ANY, REST):
        raise ConfigError(f"{where}: argv begins with the name of a program")
    if REST in rule.argv[:-1]:
        raise ConfigError(f"{where}: ** stands for the rest, so it comes last")
    return rule


Cell: TypeAlias = Literal["yes", "no", "ask"]
EVERYONE = "*"
_USER = "user:"
_CELLS: tuple[Cell, ...] = ("yes", "ask", "no")


class Actor(msgspec.Struct, frozen=True):
    """Who wants to call: an agent with its role, for a user of a tenant."""

    agent_id: str
    role: str = ""
    user: str = ""
    tenant: str = "default"


class Verdict(msgspec.Struct, frozen=True):
    """yes, no or ask, and the rule that says so."""

    cell: Cell
    rule: str


class Policy:
    """A role × tool matrix and grants.

    `groups` are roles by another door: an agent belongs to a group that lists it, besides the role it has itself.
    `tools` gives each tool's cells; the closest line wins: the agent's own, then its roles', then `*`. A line for
    `server/*` is for all tools of an MCP server or a plugin that have none of their own. `grants` gives permissions
    such as `file:read` or `file:*` to agents, roles and users (`user:ana`). `commands` may be run without asking.

    Args:
        tools: For each tool, the cell of each agent, role, group or `*`: `yes`, `ask` or `no`.
        grants: Permissions such as `file:read` or `file:*` for agents, roles, groups and users (`user:ana`).
        groups: Members of each group.
        commands: Command rules: argument vectors that `bash` may run without approval.
        name: Prefix of the rules that verdicts quote.
    """

    def __init__(
        self,
        *,
        tools: Mapping[str, Mapping[str, Cell]] | None = None,
        grants: Mapping[str, Sequence[str]] | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        commands: Sequence[CommandRule | Mapping[str, Any]] = (),
        name: str = "policy",
    ) -> None:
        self.name = name
        self._cells = {tool: _checked_cells(tool, cells) for tool, cells in (tools or {}).items()}
        self._grants = {subject: _names("grants", subject, names) for subject, names in (grants or {}).items()}
        self._groups = {group: frozenset(_names("groups", group, found)) for group, found in (groups or {}).items()}
        self._commands = tuple(rule_from(rule, f"commands[{place}]") for place, rule in enumerate(commands, 1))
        self._ranks = lru_cache(1024)(self._find_ranks)  # the same few are asked for again and again, for every tool
        self._holder = lru_cache(4096)(self._find_holder)
        plain: list[Any] = [
            self._cells,
            self._grants,
            {group: sorted(members) for group, members in self._groups.items()},
        ]
        plain += [self._commands] if self._commands else []  # a policy without any keeps its version
        self.version = hashlib.sha256(encode(msgspec.to_builtins(plain, order="sorted"))).hexdigest()[:16]

    @classmethod
    def load(cls, path: Path | str) -> "Policy":
        """Read a policy file; ConfigError names the file and the key that is wrong."""
        path = Path(path)
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"the policy {path} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"the policy {path} is no TOML: {error}") from error
        return _from_data(data, path.name)

    def verdict(self, tool: str, actor: Actor, *, needs: Sequence[str] = (), acts: bool = True) -> Verdict:
        """May this actor call this tool, which needs these permissions and has effects or not?"""
        holder = ""
        for permission in needs:
            found = self._holder(permission, actor)
            if found is None:
                return Verdict("no", f"{self.name}: no grant of {permission} to {_who(actor)}")
            holder = found
        line = tool if tool in self._cells else f"{tool.partition('/')[0]}/*" if "/" in tool else ""
        if line in self._cells:
            return self._cell(line, actor)
        if holder:
            return Verdict("yes", f"{self.name}: grants.{holder}")
        if acts:
            return Verdict("no", f"{self.name}: {tool} has effects and no line grants it")
        return Verdict("yes", f"{self.name}: {tool} has no effects")

    def command(self, argv: Sequence[str], actor: Actor) -> Verdict | None:
        """The rule that lets this actor run this command unasked; None if there is none."""
        names = {name for rank in self._ranks(actor.agent_id, actor.role) for name in rank}
        for place, rule in enumerate(self._commands, 1):
            if rule.fits(argv) and not names.isdisjoint(rule.who):
                return Verdict("yes", f"{self.name}: commands[{place}], {rule.words}")
        return None

    def tools_of(self, actor: Actor) -> dict[str, Cell]:
        """The matrix as one actor sees it."""
        return {tool: self._cell(tool, actor).cell for tool in self._cells}

    def _cell(self, tool: str, actor: Actor) -> Verdict:
        cells = self._cells[tool]
        for rank in self._ranks(actor.agent_id, actor.role):
            named = [subject for subject in rank if subject in cells]
            if named:  # of several groups, the most cautious
                subject = max(named, key=lambda name: _CELLS.index(cells[name]))
                return Verdict(cells[subject], f"{self.name}: tools.{tool}, {cells[subject]} for {subject}")
        return Verdict("no", f"{self.name}: tools.{tool} has no line for {_who(actor)}")

    def _find_holder(self, permission: str, actor: Actor) -> str | None:
        subjects = [subject for rank in self._ranks(actor.agent_id, actor.role) for subject in rank]
        for subject in (*subjects, f"{_USER}{actor.user}") if actor.user else subjects:
            if any(fnmatchcase(permission, pattern) for pattern in self._grants.get(subject, ())):
                return subject
        return None

    def _find_ranks(self, agent_id: str, role: str) -> tuple[list[str], ...]:
        """Names under which an agent may stand in a line, closest first: itself, its role and groups, everyone.

        One that is called like a group, or like a user, is neither.
        """
        own = [] if agent_id in self._groups or agent_id.startswith(_USER) else [agent_id]
        roles = [] if not role or role.startswith(_USER) else [role]
        groups = sorted(group for group, members in self._groups.items() if agent_id in members)
        return own, [*roles, *groups], [EVERYONE]


def _who(actor: Actor) -> str:
    return f"{actor.agent_id} ({actor.role})" if actor.role else actor.agent_id


def _checked_cells(tool: str, cells: Mapping[str, Cell]) -> dict[str, Cell]:
    for subject, cell in cells.items():
        if cell not in _CELLS:
            raise ConfigError(f"tools.{tool}.{subject} must be yes, ask or no, not {cell!r}")
        if subject.startswith(_USER):
            raise ConfigError(f"tools.{tool}.{subject}: a user has grants; cells are for agents, roles and groups")
    return dict(cells)


def _names(section: str, subject: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):  # its letters would be names, and the star in "file:*" a grant of everything
        raise ConfigError(f"{section}.{subject} must be a list of names, not {names!r}")
    return tuple(names)


def _from_data(data: Mapping[str, Any], where: str) -> Policy:
    for key in data:
        if key not in ("groups", "grants", "tools", "commands"):
            raise ConfigError(f"{where}: there is no section {key!r}; there are groups, grants, tools and commands")
    tools: dict[str, dict[str, Cell]] = {}
    for tool, lines in _table(data, "tools", where).items():
        tools[tool] = _cells_of(tool, lines, where)
    return Policy(
        tools=tools,
        grants=_lists(data, "grants", where),
        groups=_lists(data, "groups", where),
        commands=rules_from(data.get("commands", []), where),
        name=where,
    )


def _cells_of(tool: str, lines: Any, where: str) -> dict[str, Cell]:
    """`yes = [...]`, `ask = [...]`, `no = [...]` as one cell per subject; nobody may stand in two of them."""
    if not isinstance(lines, dict):
        raise ConfigError(f"{where}: tools.{tool} must be a table with yes, ask and no")
    cells: dict[str, Cell] = {}
    for cell, subjects in cast(dict[str, Any], lines).items():
        if cell not in _CELLS or not isinstance(subjects, list):
            raise ConfigError(f"{where}: tools.{tool}.{cell}: write yes, ask or no = [names]")
        for subject in cast(list[Any], subjects):
            if subject in cells:
                raise ConfigError(f"{where}: tools.{tool} names {subject!r} twice")
            cells[str(subject)] = cell
    return cells


def _table(data: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {key} must be a table")
    return cast(dict[str, Any], table)


def _lists(data: Mapping[str, Any], key: str, where: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, items in _table(data, key, where).items():
        if not isinstance(items, list) or not all(isinstance(item, str) for item in cast(list[Any], items)):
            raise ConfigError(f"{where}: {key}.{name} must be a list of names")
        found[name] = cast(list[str], items)
    return found
