"""`atlas doctor`: run all checks of an installation and print the problems with their remedies."""

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from atlas_agents.cli.command import EXIT_FAILED, EXIT_OK, Group, JsonFlag, command
from atlas_agents.cli.connect import load_settings
from atlas_agents.cli.output import one_line, plural, print_json, without_code_hints
from atlas_agents.core.errors import AtlasError, ConfigError

if TYPE_CHECKING:
    from atlas_agents.cli.doctor_checks import CheckResult
    from atlas_agents.config.settings import Settings

    Check: TypeAlias = Callable[[Settings], Iterator[CheckResult] | AsyncIterator[CheckResult]]

app = Group()
_SIGNS = {"ok": "✓", "notice": "!", "broken": "✗"}
_COLOURS = {"ok": "32", "notice": "33", "broken": "31"}
_CHECK_SECONDS = 20.0


@command(app)
async def doctor(as_json: JsonFlag = False) -> int:
    """Diagnose problems with this installation.

    Prints each problem with a remedy. Exit codes: 0 nothing is broken, 1 something is.
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
    from atlas_agents.cli import doctor_checks as checks

    results = [*checks.check_python(), *checks.check_clock()]
    try:
        settings = load_settings()
    except ConfigError as error:
        return [
            *results,
            checks.broken("settings", str(error), "fix this first; the other checks need valid settings"),
        ]
    results += checks.check_settings(settings)
    for name, check in _checks():
        results += await _run_check(name, check, settings)
    return results


def _checks() -> "tuple[tuple[str, Check], ...]":
    from atlas_agents.cli import doctor_checks as checks

    return (
        ("home", checks.check_home),
        ("disk", checks.check_disk),
        ("token", checks.check_token),
        ("trust", checks.check_trust),
        ("workspace", checks.check_workspace),
        ("policy", checks.check_policy),
        ("models", checks.check_models),
        ("plugins", checks.check_plugins),
        ("sandbox", checks.check_sandbox),
        ("search", checks.check_search),
        ("mcp", checks.check_mcp),
        ("database", checks.check_database),
        ("redis", checks.check_redis),
        ("gateway", checks.check_gateway),
        ("telegram", checks.check_telegram),
        ("x", checks.check_x),
    )


async def _run_check(name: str, check: "Check", settings: "Settings") -> "list[CheckResult]":
    import asyncio

    from atlas_agents.cli.doctor_checks import broken

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
