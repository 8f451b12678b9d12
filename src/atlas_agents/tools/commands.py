"""Rules about commands, in the words that a program is started with: never in a shell's text, which means what a shell
makes of it."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from atlas_agents.core.errors import ConfigError

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
