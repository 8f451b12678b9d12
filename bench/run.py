"""Cost of an agent library on top of the model, compared with others. README.md describes the method.

python bench/run.py setup             create one virtual environment per adapter with the newest packages
python bench/run.py bench [--quick]   measure (installs what is missing), then print tables and bars
python bench/run.py report            print the tables again, or write them with --markdown FILE
"""

import argparse
import os
import platform
import random
import sys
import time
from pathlib import Path

from check import all_bars, bars_table
from measure import Cores, Measure, running_server
from results import Results
from scenarios import SCENARIOS
from tables import long_report, short_page
from venvs import BENCH_FOLDER, FIRST, Venvs, adapter_names, constant, default_folder

ALL_SCENARIOS = ["import", "create", *SCENARIOS]
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def setup(options: argparse.Namespace) -> None:
    for adapter in options.only:
        options.venvs.install(adapter)


def bench(options: argparse.Namespace) -> None:
    for adapter in options.only:
        options.venvs.install_missing(adapter)
    append = options.append and options.out.exists()
    results = Results.load(options.out) if append else Results(_machine(options.pin))
    results.installed |= {adapter: options.venvs.contents(adapter) for adapter in options.only}
    cores = Cores.separate() if options.pin else Cores()
    with running_server(cores) as server:
        measure = Measure(options.venvs, server, cores, options.timeout, options.perf)
        for _ in range(options.rounds):
            one_round(options, measure, results)
    report(options)


def one_round(options: argparse.Namespace, measure: Measure, results: Results) -> None:
    """Measure every scenario with every adapter once, the adapters in random order."""
    number = len(results.loads)
    results.loads.append(os.getloadavg()[0])
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
    """Return whether an adapter supports a scenario: stored sessions, the Responses API, or hundreds of rounds."""
    durable = scenario in SCENARIOS and SCENARIOS[scenario].durable
    if durable or constant(adapter, "DURABLE", False):
        return durable and constant(adapter, "DURABLE", False)
    if scenario in SCENARIOS and SCENARIOS[scenario].responses:
        return constant(adapter, "RESPONSES", False)
    return scenario != "rounds" or constant(adapter, "LONG_TURNS", False)


def report(options: argparse.Namespace) -> None:
    results = Results.load(options.out)
    if options.markdown:
        write_between_marks(options.markdown, short_page(results))
        return
    print(long_report(results))
    if "ours" in results.installed:
        print("\n" + bars_table(all_bars(results)))


def write_between_marks(path: Path, text: str) -> None:
    """Replace the text between the marks of a page; a page without marks is replaced as a whole."""
    page = path.read_text() if path.exists() else ""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}" if begin and end else text + "\n")


def _machine(pinned: bool) -> dict[str, object]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return {
        "python": platform.python_version(),
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "pinned": pinned,
        "date": time.strftime("%F"),
    }


def _parse_list(known: list[str]):
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
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="report: write the short tables there")
    parser.add_argument("--venvs", type=Path, default=default_folder(), help="folder of the virtual environments")
    parser.add_argument("--no-pin", dest="pin", action="store_false", help="let the kernel choose the cores")
    parser.add_argument("--perf", metavar="EVENT", help="also count this perf event, such as instructions:u")
    options = parser.parse_args()
    options.venvs = Venvs(options.venvs.absolute())
    options.only = options.only or (list(FIRST) if options.quick else adapter_names())
    options.rounds = options.rounds or (3 if options.quick else 5)
    return options


if __name__ == "__main__":
    os.environ.setdefault("BENCH_OURS", str(BENCH_FOLDER.parent))
    chosen = parse_options()
    {"setup": setup, "bench": bench, "report": report}[chosen.command](chosen)
