"""Policy: grants of permissions, and a matrix of which agents and roles may call which tools.

Everything that is not granted is denied. A policy is plain data read from TOML; each verdict names the rule behind it.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.json import encode
from atlas_agents.tools.commands import ANY, REST, check_wildcards

Cell: TypeAlias = Literal["yes", "no", "ask"]
WhenTainted: TypeAlias = Literal["allow", "ask", "deny"]
"""Handling of a call once the session contains untrusted content."""
EVERYONE = "*"
"""Name that stands for every agent, role and group."""
_USER_PREFIX = "user:"
_CELLS: tuple[Cell, ...] = ("yes", "ask", "no")
WHEN_TAINTED: tuple[WhenTainted, ...] = ("allow", "ask", "deny")


class CommandRule(msgspec.Struct, frozen=True):
    """A command that needs no approval: literal arguments, `*` for any one, and `**` at the end for any others.

    Wildcards are only for programs that cannot run others or write files, such as `ls` and `grep`. `who` lists agents,
    roles and groups, as in the entries of a tool.
    """

    argv: tuple[str, ...]
    who: tuple[str, ...] = (EVERYONE,)

    def matches(self, argv: Sequence[str]) -> bool:
        pattern, rest = (self.argv[:-1], True) if self.argv[-1] == REST else (self.argv, False)
        if len(argv) < len(pattern) or (len(argv) > len(pattern) and not rest):
            return False
        return all(part in (ANY, given) for part, given in zip(pattern, argv, strict=False))

    @property
    def pattern(self) -> str:
        return " ".join(self.argv)


def parse_command_rules(data: Any, where: str) -> tuple[CommandRule, ...]:
    """Parse the `[[commands]]` of a policy file; raises ConfigError for an invalid one."""
    if not isinstance(data, list):
        raise ConfigError(f"{where}: commands must be a list of tables: expected [[commands]]")
    return tuple(
        parse_command_rule(each, f"{where}: commands[{number}]") for number, each in enumerate(cast(list[Any], data), 1)
    )


def parse_command_rule(given: "CommandRule | Mapping[str, Any]", where: str) -> CommandRule:
    """Parse a rule. One that could allow every program is refused: a wildcard as the program, or for `python3`."""
    try:
        rule = given if isinstance(given, CommandRule) else msgspec.convert(given, CommandRule, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: expected argv = [arguments] and, optionally, who = [names]: {error}") from None
    if isinstance(given, Mapping) and (unknown := set(given) - {"argv", "who"}):
        raise ConfigError(f"{where}: unknown key {sorted(unknown)[0]!r}; known keys: argv, who")
    if not rule.argv or rule.argv[0] in ("", ANY, REST):
        raise ConfigError(f"{where}: argv must start with the name of a program")
    if REST in rule.argv[:-1]:
        raise ConfigError(f"{where}: ** must be the last element of argv")
    check_wildcards(rule.argv, where)
    return rule


class Actor(msgspec.Struct, frozen=True):
    """Caller of a tool: an agent with its role, on behalf of a user of a tenant.

    Attributes:
        agent_id: Id of the agent.
        role: Role of the agent, which rules of a policy can name.
        user: The user for whom it works; empty if none was named.
        tenant: Tenant of the user.
    """

    agent_id: str
    role: str = ""
    user: str = ""
    tenant: str = "default"


class Verdict(msgspec.Struct, frozen=True):
    """The decision (yes, no or ask) and the rule behind it.

    Attributes:
        cell: `yes`, `no` or `ask`.
        rule: The rule that decided.
    """

    cell: Cell
    rule: str


class PermissionGrant(msgspec.Struct, frozen=True):
    """A granted permission, and the handling of calls that need it once the session contains untrusted content.

    Attributes:
        permission: Name of the permission.
        when_tainted: Whether such calls are allowed, asked about or denied in a session with untrusted content.
    """

    permission: str
    when_tainted: WhenTainted


class Policy:
    """A role × tool matrix and grants.

    An agent belongs to its role and to every group that lists it. For each tool the most specific entry decides: the
    agent's own, then those of its role and groups, then `*`. An entry for `server/*` applies to all tools of an MCP
    server or a plugin that have no entry of their own.

    Args:
        tools: For each tool, the cell of each agent, role, group or `*`: `yes`, `ask` or `no`.
        grants: Permissions such as `file:read` or `file:*` for agents, roles, groups and users (`user:ana`). A
            `PermissionGrant` also says what happens once the session contains untrusted content.
        groups: Members of each group.
        commands: Command rules: argument vectors that `bash` may run without approval.
        when_tainted: `allow`, `ask` or `deny` for each tool once the session contains untrusted content; `*` stands for
            every tool that has side effects or sends data out.
        name: Prefix of the rules that verdicts quote.
    """

    def __init__(
        self,
        *,
        tools: Mapping[str, Mapping[str, Cell]] | None = None,
        grants: Mapping[str, Sequence[str | PermissionGrant]] | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        commands: Sequence[CommandRule | Mapping[str, Any]] = (),
        when_tainted: Mapping[str, WhenTainted] | None = None,
        name: str = "policy",
    ) -> None:
        self.name = name
        self._cells = {tool: _check_cells(tool, cells) for tool, cells in (tools or {}).items()}
        self._grants: dict[str, tuple[str | PermissionGrant, ...]] = {
            subject: _check_grants(subject, given) for subject, given in (grants or {}).items()
        }
        self._when_tainted: dict[str, WhenTainted] = {
            key: check_when_tainted(f"when_tainted.{key}", value) for key, value in (when_tainted or {}).items()
        }
        self._groups = {
            group: frozenset(_name_tuple("groups", group, found)) for group, found in (groups or {}).items()
        }
        self._commands = tuple(
            parse_command_rule(rule, f"commands[{number}]") for number, rule in enumerate(commands, 1)
        )
        self._ranks = lru_cache(1024)(self._find_ranks)  # looked up for every tool of every round
        self._grantee = lru_cache(4096)(self._find_grantee)
        plain: list[Any] = [
            self._cells,
            self._grants,
            {group: sorted(members) for group, members in self._groups.items()},
            self._commands,
            self._when_tainted,
        ]
        self.version = hashlib.sha256(encode(msgspec.to_builtins(plain, order="sorted"))).hexdigest()[:16]

    @property
    def tools(self) -> dict[str, dict[str, Cell]]:
        """The cells of each tool that has an entry, by agent, role, group or `*`."""
        return {tool: dict(cells) for tool, cells in self._cells.items()}

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(sorted(self._groups))

    def with_tools(self, tools: Mapping[str, Mapping[str, Cell]]) -> "Policy":
        """Return a copy with these cells in addition; they replace cells of the same tool and subject."""
        merged: dict[str, Mapping[str, Cell]] = {**self._cells}
        for tool, cells in tools.items():
            merged[tool] = {**merged.get(tool, {}), **cells}
        return Policy(
            tools=merged,
            grants=self._grants,
            groups={group: sorted(members) for group, members in self._groups.items()},
            commands=self._commands,
            when_tainted=self._when_tainted,
            name=self.name,
        )

    def entry(self, tool: str) -> str:
        """Return the name of the entry that decides about a tool: its own, `server/*`, or an empty string."""
        return next((name for name in (tool, _namespace_entry(tool)) if name in self._cells), "")

    def deciding_subject(self, tool: str, agent_id: str, role: str = "") -> str:
        """Return the subject whose cell decides about a tool for an agent; an empty string if no cell does."""
        cells = self._cells.get(self.entry(tool), {})
        for rank in self._ranks(agent_id, role):
            if named := [subject for subject in rank if subject in cells]:
                return max(named, key=lambda name: _CELLS.index(cells[name]))
        return ""

    @classmethod
    def load(cls, path: Path | str, content: bytes | None = None) -> "Policy":
        """Read a policy file, or this content of it; raises ConfigError that names the file and the key."""
        path = Path(path)
        try:
            data = tomllib.loads((path.read_bytes() if content is None else content).decode("utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read policy {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"policy {path} is not valid TOML: {error}") from error
        return _parse(data, path.name)

    def verdict(self, tool: str, actor: Actor, *, needs: Sequence[str] = (), acts: bool = True) -> Verdict:
        """Decide whether an actor may call a tool that needs these permissions; `acts` if the tool has side effects."""
        grantee = ""
        for permission in needs:
            found = self._grantee(permission, actor)
            if found is None:
                return Verdict("no", f"{self.name}: {permission} is not granted to {_describe_actor(actor)}")
            grantee = found
        entry = tool if tool in self._cells else _namespace_entry(tool)
        if entry in self._cells:
            return self._cell(entry, actor)
        if grantee:
            return Verdict("yes", f"{self.name}: grants.{grantee}")
        if acts:
            return Verdict("no", f"{self.name}: {tool} has side effects, and no entry allows it")
        return Verdict("yes", f"{self.name}: {tool} has no side effects")

    def when_tainted(
        self, tool: str, actor: Actor, *, needs: Sequence[str] = (), acts: bool = True
    ) -> WhenTainted | None:
        """Return the handling of a call once the session contains untrusted content; None if the policy has no rule for
        it.

        The entry of the tool decides, then the strictest of the grants that it needs, then `*` for a tool that acts.
        """
        for entry in (tool, _namespace_entry(tool)):
            if entry in self._when_tainted:
                return self._when_tainted[entry]
        rules: list[WhenTainted] = [rule for permission in needs for rule in self._tainted_grants(permission, actor)]
        if rules:
            return _strictest(rules)
        return self._when_tainted.get(EVERYONE) if acts else None

    def _tainted_grants(self, permission: str, actor: Actor) -> list[WhenTainted]:
        """Return the rules of the grants that give a permission, for untrusted content."""
        granted = self._grants.get(self._grantee(permission, actor) or "", ())
        rules = [each for each in granted if isinstance(each, PermissionGrant)]
        return [each.when_tainted for each in rules if fnmatchcase(permission, each.permission)]

    def command(self, argv: Sequence[str], actor: Actor) -> Verdict | None:
        """Return the rule that lets this actor run a command without approval; None if there is none."""
        names = {name for rank in self._ranks(actor.agent_id, actor.role) for name in rank}
        for number, rule in enumerate(self._commands, 1):
            if rule.matches(argv) and not names.isdisjoint(rule.who):
                return Verdict("yes", f"{self.name}: commands[{number}], {rule.pattern}")
        return None

    def _cell(self, tool: str, actor: Actor) -> Verdict:
        cells = self._cells[tool]
        for rank in self._ranks(actor.agent_id, actor.role):
            named = [subject for subject in rank if subject in cells]
            if named:  # of several groups, the most restrictive
                subject = max(named, key=lambda name: _CELLS.index(cells[name]))
                return Verdict(cells[subject], f"{self.name}: tools.{tool}, {cells[subject]} for {subject}")
        return Verdict("no", f"{self.name}: tools.{tool} has no entry for {_describe_actor(actor)}")

    def _find_grantee(self, permission: str, actor: Actor) -> str | None:
        subjects = [subject for rank in self._ranks(actor.agent_id, actor.role) for subject in rank]
        for subject in (*subjects, f"{_USER_PREFIX}{actor.user}") if actor.user else subjects:
            if any(fnmatchcase(permission, _permission(each)) for each in self._grants.get(subject, ())):
                return subject
        return None

    def _find_ranks(self, agent_id: str, role: str) -> tuple[list[str], ...]:
        """Return the names that apply to an agent, most specific first: its own, its role and groups, everyone.

        An agent cannot take the name of a group or of a user.
        """
        own = [] if agent_id in self._groups or agent_id.startswith(_USER_PREFIX) else [agent_id]
        roles = [] if not role or role.startswith(_USER_PREFIX) else [role]
        groups = sorted(group for group, members in self._groups.items() if agent_id in members)
        return own, [*roles, *groups], [EVERYONE]


def _namespace_entry(tool: str) -> str:
    """Return the entry for all tools of the tool's MCP server or plugin; empty if it has none."""
    return f"{tool.partition('/')[0]}/*" if "/" in tool else ""


def _strictest(rules: Sequence[WhenTainted]) -> WhenTainted:
    return WHEN_TAINTED[max([WHEN_TAINTED.index(rule) for rule in rules])]


def _permission(grant: str | PermissionGrant) -> str:
    return grant.permission if isinstance(grant, PermissionGrant) else grant


def check_when_tainted(where: str, value: Any) -> WhenTainted:
    """Return the value; raises ConfigError unless it is `allow`, `ask` or `deny`."""
    if value not in WHEN_TAINTED:
        raise ConfigError(f"{where} must be allow, ask or deny, got {value!r}")
    return value


def _check_grants(subject: str, given: Sequence[str | PermissionGrant]) -> tuple[str | PermissionGrant, ...]:
    _name_tuple("grants", subject, cast(Any, given))
    for each in given:
        if isinstance(each, PermissionGrant):
            check_when_tainted(f"grants.{subject}: when_tainted of {each.permission}", each.when_tainted)
    return tuple(given)


def _describe_actor(actor: Actor) -> str:
    return f"{actor.agent_id} ({actor.role})" if actor.role else actor.agent_id


def _check_cells(tool: str, cells: Mapping[str, Cell]) -> dict[str, Cell]:
    for subject, cell in cells.items():
        if cell not in _CELLS:
            raise ConfigError(f"tools.{tool}.{subject} must be yes, ask or no, got {cell!r}")
        if subject.startswith(_USER_PREFIX):
            raise ConfigError(f"tools.{tool}.{subject}: expected an agent, role or group; users can only have grants")
    return dict(cells)


def _name_tuple(section: str, subject: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str):  # it would be split into letters, and the star in "file:*" would grant everything
        raise ConfigError(f"{section}.{subject} must be a list of names, got {names!r}")
    return tuple(names)


_HEADER = re.compile(r"""\s*\[\s*tools\s*\.\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*\]\s*(?:\#.*)?""")
_CELL_KEY = re.compile(r"\s*(yes|ask|no)\s*=")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def edit_cells(content: bytes, tool: str, cells: Mapping[str, Cell], where: str = "policy") -> bytes:
    """Return a policy file in which a tool has exactly these cells; all other lines stay byte for byte.

    Without cells the tool has no entry, because an empty one would deny the tool to everyone.
    """
    text = content.decode("utf-8")
    end = "\r" if "\r\n" in text else ""
    lines = text.split("\n")
    headers = [
        index for index, line in enumerate(lines) if (match := _HEADER.fullmatch(line)) and tool in match.groups()
    ]
    if headers:
        start = headers[0] + 1
        stop = next((index for index in range(start, len(lines)) if lines[index].lstrip().startswith("[")), len(lines))
        body = _edit_table(lines[start:stop], cells, end)
        if cells or any(line.strip() and not line.lstrip().startswith("#") for line in body):
            lines[start:stop] = body
        else:
            lines[headers[0] : stop] = body if any(line.strip() for line in body) else []
    elif cells:
        while len(lines) > 1 and not lines[-1].strip():
            lines.pop()
        name = tool if _BARE_KEY.fullmatch(tool) else json.dumps(tool, ensure_ascii=False)
        blank = [end] if any(line.strip() for line in lines) else []
        lines = [line for line in lines if line.strip() or blank]
        lines += [*blank, f"[tools.{name}]{end}", *(line + end for line in _cell_lines(cells)), ""]
    edited = "\n".join(lines).encode()
    advice = f"write the entry as a table [tools.{tool}] with yes, ask and no, or edit the file"
    try:
        found = Policy.load(where, edited).tools.get(tool)
    except ConfigError as error:
        raise ConfigError(f"{where}: tools.{tool} cannot be edited here: {advice} ({error})") from error
    if found != (dict(cells) or None):
        raise ConfigError(f"{where}: tools.{tool} cannot be edited here: {advice}")
    return edited


def _edit_table(body: list[str], cells: Mapping[str, Cell], end: str) -> list[str]:
    """Return the lines of a table with other lists of names; lists that do not change stay as they are."""
    kept: list[str] = []
    last, index = 0, 0
    lists = {cell: [name for name, value in cells.items() if value == cell] for cell in _CELLS}
    while index < len(body):
        match = _CELL_KEY.match(body[index])
        size = _assignment_size(body[index:]) if match else 1
        found = body[index : index + size]
        index += size
        if match:
            cell = cast(Cell, match[1])
            names = lists.pop(cell)
            if set(_parse_lines(found)[cell]) != set(names):
                found = [_cell_line(cell, names) + end] if names else []
        kept += found
        last = len(kept) if any(line.strip() for line in found) else last
    added = [_cell_line(cell, names) + end for cell, names in lists.items() if names]
    return [*kept[:last], *added, *kept[last:]]


def _assignment_size(lines: list[str]) -> int:
    """Return how many lines an assignment has: a list may span several."""
    for size in range(1, len(lines) + 1):
        try:
            _parse_lines(lines[:size])
        except tomllib.TOMLDecodeError:
            continue
        return size
    return 1


def _parse_lines(lines: Sequence[str]) -> dict[str, Any]:
    return tomllib.loads("\n".join([line.removesuffix("\r") for line in lines]))


def _cell_lines(cells: Mapping[str, Cell]) -> list[str]:
    lists = {cell: [name for name, value in cells.items() if value == cell] for cell in _CELLS}
    return [_cell_line(cell, names) for cell, names in lists.items() if names]


def _cell_line(cell: str, names: Sequence[str]) -> str:
    return f"{cell} = [{', '.join(json.dumps(name, ensure_ascii=False) for name in names)}]"


def _parse(data: Mapping[str, Any], where: str) -> Policy:
    for key in data:
        if key not in ("groups", "grants", "tools", "commands", "when_tainted"):
            known = "groups, grants, tools, commands, when_tainted"
            raise ConfigError(f"{where}: unknown section {key!r}; known sections: {known}")
    tools: dict[str, dict[str, Cell]] = {}
    tainted = _parse_when_tainted(data.get("when_tainted", {}), where)
    for tool, entries in _table(data, "tools", where).items():
        if isinstance(entries, dict) and "when_tainted" in entries:
            given = dict(cast(dict[str, Any], entries))
            if tool in tainted:
                raise ConfigError(f"{where}: when_tainted.{tool} and tools.{tool}.when_tainted: keep one of them")
            tainted[tool] = check_when_tainted(f"{where}: tools.{tool}.when_tainted", given.pop("when_tainted"))
            if given:
                tools[tool] = _parse_cells(tool, given, where)
        else:
            tools[tool] = _parse_cells(tool, entries, where)
    return Policy(
        tools=tools,
        grants=_parse_grants(data, where),
        groups=_name_lists(data, "groups", where),
        commands=parse_command_rules(data.get("commands", []), where),
        when_tainted=tainted,
        name=where,
    )


def _parse_cells(tool: str, entries: Any, where: str) -> dict[str, Cell]:
    """Convert `yes = [...]`, `ask = [...]`, `no = [...]` to one cell per subject, which may appear only once."""
    if not isinstance(entries, dict):
        raise ConfigError(f"{where}: tools.{tool} must be a table with yes, ask and no")
    cells: dict[str, Cell] = {}
    for cell, subjects in cast(dict[str, Any], entries).items():
        if cell not in _CELLS or not isinstance(subjects, list):
            raise ConfigError(f"{where}: tools.{tool}.{cell}: expected yes, ask or no = [names]")
        for subject in cast(list[Any], subjects):
            if subject in cells:
                raise ConfigError(f"{where}: tools.{tool} lists {subject!r} twice; keep one entry")
            cells[str(subject)] = cell
    return cells


def _table(data: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    table = data.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {key} must be a table")
    return cast(dict[str, Any], table)


def _parse_when_tainted(given: Any, where: str) -> dict[str, WhenTainted]:
    """Parse one rule for all tools that act, or a table with a rule for each tool."""
    if not isinstance(given, dict):
        return {EVERYONE: check_when_tainted(f"{where}: when_tainted", given)}
    rules = cast(dict[str, Any], given)
    return {tool: check_when_tainted(f"{where}: when_tainted.{tool}", rule) for tool, rule in rules.items()}


def _parse_grants(data: Mapping[str, Any], where: str) -> dict[str, list[str | PermissionGrant]]:
    """Parse the grants: permissions, or tables of a permission and `when_tainted`."""
    found: dict[str, list[str | PermissionGrant]] = {}
    for subject, items in _table(data, "grants", where).items():
        if not isinstance(items, list):
            raise ConfigError(f"{where}: grants.{subject} must be a list of names")
        found[subject] = [_parse_grant(item, f"{where}: grants.{subject}") for item in cast(list[Any], items)]
    return found


def _parse_grant(given: Any, where: str) -> str | PermissionGrant:
    if isinstance(given, str):
        return given
    try:
        return msgspec.convert(given, PermissionGrant, strict=True)
    except msgspec.ValidationError as error:
        expected = "a permission, or { permission = name, when_tainted = 'allow', 'ask' or 'deny' }"
        raise ConfigError(f"{where}: expected {expected}: {error}") from None


def _name_lists(data: Mapping[str, Any], key: str, where: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, items in _table(data, key, where).items():
        if not isinstance(items, list) or not all(isinstance(item, str) for item in cast(list[Any], items)):
            raise ConfigError(f"{where}: {key}.{name} must be a list of names")
        found[name] = cast(list[str], items)
    return found
