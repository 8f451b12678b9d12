"""`atlas doctor`: what is wrong with an installation, and how to mend it."""

import sys

from atlas_agents.cli import show
from atlas_agents.cli.border import DONE, NO_ANSWER, quiet, run
from atlas_agents.cli.doctor.examination import examine
from atlas_agents.cli.doctor.finding import Finding
from atlas_agents.cli.words import for_people, one_line

_SIGNS = {"ok": "✓", "notice": "!", "broken": "✗"}
_COLOURS = {"ok": "32", "notice": "33", "broken": "31"}


def doctor(*, as_json: bool) -> int:
    """Look at everything; 1 if something is broken."""
    quiet()
    return run(lambda: _doctor(as_json=as_json))


async def _doctor(*, as_json: bool) -> int:
    findings = await examine()
    broken = sum(finding.state == "broken" for finding in findings)
    if as_json:
        show.as_json({"healthy": broken == 0, "findings": findings})
        return NO_ANSWER if broken else DONE
    colours = sys.stdout.isatty() and _wanted()
    for finding in findings:
        _print(finding, colours=colours)
    notices = sum(finding.state == "notice" for finding in findings)
    print(f"\n{_count(broken, 'thing')} broken, {_count(notices, 'notice')}.")
    return NO_ANSWER if broken else DONE


def _print(finding: Finding, *, colours: bool) -> None:
    sign = _SIGNS[finding.state]
    if colours:
        sign = f"\x1b[{_COLOURS[finding.state]}m{sign}\x1b[0m"
    print(f"{sign} {finding.what}: {one_line(for_people(finding.words), 500)}")
    if finding.remedy:
        print(f"    → {one_line(finding.remedy, 500)}")


def _wanted() -> bool:
    import os

    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
