"""`atlas doctor`: run all checks of an installation and print the problems with their remedies."""

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from atlas_agents.cli.command import EXIT_FAILED, EXIT_OK, JsonFlag, command, command_group
from atlas_agents.cli.connect import load_settings
from atlas_agents.cli.output import one_line, plural, print_json, without_code_hints
from atlas_agents.core.errors import AtlasError, ConfigError

if TYPE_CHECKING:
    from atlas_agents.cli.doctor_machine import CheckResult
    from atlas_agents.config.settings import Settings

    Check: TypeAlias = Callable[[Settings], Iterator[CheckResult] | AsyncIterator[CheckResult]]

app = command_group()
_SIGNS = {"ok": "✓", "notice": "!", "broken": "✗"}
_COLOURS = {"ok": "32", "notice": "33", "broken": "31"}
_CHECK_SECONDS = 20.0


@command(app)
async def doctor(as_json: JsonFlag = False) -> int:
    """Diagnose problems with this installation.

    Prints what is wrong and how to fix it. Exit codes: 0 nothing is broken, 1 something is.
    """
    results = await run_checks()
    problems = sum(result.state == "broken" for result in results)
    if as_json:
        print_json({"healthy": problems == 0, "findings": results})
        return EXIT_FAILED if problems else EXIT_OK
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for result in results:
        _print_result(result, colours=colours)
    notices = sum(result.state == "notice" for result in results)
    print(f"\n{plural(problems, 'problem')}, {plural(notices, 'notice')}.")
    return EXIT_FAILED if problems else EXIT_OK


def _print_result(result: "CheckResult", *, colours: bool) -> None:
    sign = _SIGNS[result.state]
    if colours:
        sign = f"\x1b[{_COLOURS[result.state]}m{sign}\x1b[0m"
    print(f"{sign} {result.what}: {one_line(without_code_hints(result.words), 500)}")
    if result.remedy:
        print(f"    → {one_line(result.remedy, 500)}")


async def run_checks() -> "list[CheckResult]":
    """Run all checks; one that fails to run counts as a problem."""
    from atlas_agents.cli import doctor_machine as machine

    results = [*machine.check_python(), *machine.check_clock()]
    try:
        settings = load_settings()
    except ConfigError as error:
        return [
            *results,
            machine.broken("settings", str(error), "fix this first; the other checks need valid settings"),
        ]
    results += machine.check_settings(settings)
    for name, check in _checks():
        results += await _run_check(name, check, settings)
    return results


def _checks() -> "tuple[tuple[str, Check], ...]":
    from atlas_agents.cli import doctor_agents as agents
    from atlas_agents.cli import doctor_machine as machine

    return (
        ("home", machine.check_home),
        ("disk", machine.check_disk),
        ("token", machine.check_token),
        ("trust", agents.check_trust),
        ("workspace", agents.check_workspace),
        ("policy", agents.check_policy),
        ("models", agents.check_models),
        ("plugins", agents.check_plugins),
        ("sandbox", agents.check_sandbox),
        ("search", agents.check_search),
        ("mcp", agents.check_mcp),
        ("database", machine.check_database),
        ("redis", machine.check_redis),
        ("gateway", machine.check_gateway),
        ("telegram", agents.check_telegram),
        ("x", agents.check_x),
    )


async def _run_check(name: str, check: "Check", settings: "Settings") -> "list[CheckResult]":
    import asyncio

    from atlas_agents.cli.doctor_machine import broken

    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            found = check(settings)
            if isinstance(found, AsyncIterator):
                return [result async for result in found]
            return list(found)
    except TimeoutError:
        return [broken(name, f"no answer within {_CHECK_SECONDS:g} s")]
    except (AtlasError, OSError) as error:
        return [broken(name, str(error))]
