"""Cost of an agent library on top of the model, compared with others. README.md describes the method.

python bench/run.py setup             create one virtual environment per adapter with the newest packages
python bench/run.py bench [--quick]   measure (installs what is missing), then print the tables
python bench/run.py report            print the tables again, or write them with --markdown FILE
"""

import argparse
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from measure import Measure, running_server
from results import Results, report
from scenarios import SCENARIOS
from venvs import BENCH_FOLDER, FIRST, Venvs, adapter_names, constant, default_folder

ALL_SCENARIOS = ["import", "create", *SCENARIOS]
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def setup(options: argparse.Namespace) -> None:
    for adapter in options.only:
        options.venvs.install(adapter)


def bench(options: argparse.Namespace) -> None:
    for adapter in options.only:
        options.venvs.install_missing(adapter)
    results = Results.load(options.out) if options.append and options.out.exists() else Results(_machine())
    results.installed |= {adapter: options.venvs.contents(adapter) for adapter in options.only}
    with running_server() as server:
        measure = Measure(options.venvs, server, options.timeout)
        for number in range(results.rounds, results.rounds + options.rounds):
            one_round(number, options, measure, results)
    print_report(options)


def one_round(number: int, options: argparse.Namespace, measure: Measure, results: Results) -> None:
    """Measure every scenario with every adapter once, the adapters in random order."""
    for scenario in options.scenarios:
        adapters = [name for name in options.only if supports(name, scenario)]
        random.shuffle(adapters)
        for adapter in adapters:
            outcome = measure.take(adapter, scenario)
            if "error" in outcome:
                print(f"{adapter} {scenario}: {outcome['error'][-400:]}", file=sys.stderr)
            results.records.append({"round": number, "scenario": scenario, "adapter": adapter, **outcome})
            results.save(options.out)
    print(f"round {number + 1} done at {time.strftime('%T')}", file=sys.stderr)


def supports(adapter: str, scenario: str) -> bool:
    """Return whether an adapter supports a scenario: stored sessions, or hundreds of rounds."""
    durable = scenario in SCENARIOS and SCENARIOS[scenario].durable
    if durable or constant(adapter, "DURABLE", False):
        return durable and constant(adapter, "DURABLE", False)
    return scenario != "rounds" or constant(adapter, "LONG_TURNS", False)


def print_report(options: argparse.Namespace) -> None:
    text = report(Results.load(options.out))
    if options.markdown:
        write_between_marks(options.markdown, text)
    else:
        print(text)


def write_between_marks(path: Path, text: str) -> None:
    """Replace the text between the marks of a page."""
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"no marks in {path}: expected {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"Python {platform.python_version()}, {os.cpu_count()} × {cpu}, {time.strftime('%F')}"


def _parse_list(known: list[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return names

    return parse


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["setup", "bench", "report"])
    parser.add_argument("--quick", action="store_true", help=f"3 rounds of {', '.join(FIRST)} only")
    parser.add_argument("--only", type=_parse_list(adapter_names()), metavar="A,B", help="only these adapters")
    parser.add_argument("--scenarios", type=_parse_list(ALL_SCENARIOS), default=ALL_SCENARIOS, metavar="S1,S2")
    parser.add_argument("--rounds", type=int, help="number of rounds (default 5)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per measurement")
    parser.add_argument("--out", type=Path, default=BENCH_FOLDER / "results.json", help="the results file")
    parser.add_argument("--append", action="store_true", help="add rounds to an existing results file")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="report: write the tables there")
    parser.add_argument("--venvs", type=Path, default=default_folder(), help="folder of the virtual environments")
    options = parser.parse_args()
    options.venvs = Venvs(options.venvs.absolute())
    options.only = options.only or (list(FIRST) if options.quick else adapter_names())
    options.rounds = options.rounds or (3 if options.quick else 5)
    return options


if __name__ == "__main__":
    os.environ.setdefault("BENCH_OURS", str(BENCH_FOLDER.parent))
    chosen = parse_options()
    {"setup": setup, "bench": bench, "report": print_report}[chosen.command](chosen)
