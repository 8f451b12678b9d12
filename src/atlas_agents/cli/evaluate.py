"""`atlas eval`: run a file of cases, show and compare the results, and make cases from stored runs."""

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from atlas_agents.cli import command as cli
from atlas_agents.cli.connect import TENANT, load_settings
from atlas_agents.cli.output import format_age, format_duration, one_line, plural, print_json, print_table, rewrite_line
from atlas_agents.core.errors import ConfigError

if TYPE_CHECKING:
    from atlas_agents.config.settings import Settings
    from atlas_agents.evaluation import (
        Evaluation,
        EvaluationOptions,
        EvaluationReport,
        Evaluator,
        Result,
        ResultFile,
        ScoreComparison,
        Suite,
    )

_DEFAULT = "run"
_MAX_SHOWN = 20
"""Maximum number of failed results that are explained below the table."""


class _FileCommand(cli.Command):
    """`atlas eval FILE`, which is short for `atlas eval run FILE`."""

    def parse(self, arguments: Sequence[str], path: str) -> dict[str, Any]:
        return super().parse([self.name, *arguments], path)


class _EvalGroup(cli.Group):
    """A group in which a word that is not a command is a case file."""

    def find(self, name: str) -> "cli.Command | cli.Group | None":
        return super().find(name) or _FileCommand(name, self.commands[_DEFAULT].callback)

    def run(self, arguments: Sequence[str], path: str) -> int:
        if arguments and arguments[0].startswith("-") and arguments[0] != "--help":
            return self.commands[_DEFAULT].run(arguments, path)
        return super().run(arguments, path)


app = _EvalGroup()
EvaluationId = Annotated[
    str, cli.Argument(metavar="ID", help="The id of an evaluation, a unique prefix of it, or a file with results.")
]


@cli.command(app, _DEFAULT)
async def run(
    file: Annotated[str, cli.Argument(metavar="FILE", help="The case file: .yaml, .yml or .py.")],
    model: Annotated[
        list[str] | None,
        cli.Option("--model", "-m", metavar="REF", help="Run with this model instead of the file's. Repeatable."),
    ] = None,
    agent: Annotated[
        list[str] | None,
        cli.Option("--agent", "-a", metavar="ID", help="Run only this agent of the file or workspace. Repeatable."),
    ] = None,
    repeat: Annotated[int, cli.Option(metavar="N", min=1, help="Number of runs of each case.")] = 1,
    parallel: Annotated[int, cli.Option(metavar="N", min=1, help="Number of concurrent turns.")] = 4,
    budget: Annotated[
        str | None,
        cli.Option(metavar="LIMITS", help="Limits of the whole evaluation, as 'dollars=2 tokens=500000'."),
    ] = None,
    seconds: Annotated[int, cli.Option("--timeout", metavar="SECONDS", min=1, help="Time limit of one case.")] = 600,
    out: Annotated[str | None, cli.Option(metavar="FILE", help="Write the report to this file as JSON.")] = None,
    junit: Annotated[str | None, cli.Option(metavar="FILE", help="Write the results as JUnit XML, for CI.")] = None,
    compare: Annotated[
        str | None, cli.Option(metavar="EARLIER", help="Compare with an earlier evaluation: its id or its file.")
    ] = None,
    min_score: Annotated[
        float | None,
        cli.Option(metavar="SCORE", help="Succeed if each mean score is at least this, from 0 to 1."),
    ] = None,
    resume: Annotated[
        bool, cli.Option("--resume", help="Continue the latest evaluation of this file that is not complete.")
    ] = False,
    code: Annotated[
        bool, cli.Option("--code", help="Let a YAML file import agents and scorers from Python modules.")
    ] = False,
    as_json: cli.JsonFlag = False,
) -> int:
    """Run every case of a file with every agent and model, and print a table of the results.

    Each case runs in a conversation of its own, and calls that need an approval are refused. A file without agents uses
    those of the workspace with their real tools, and with the policy, hooks, limits and budgets of the settings, which
    are counted from zero. A Python file is executed.

    Results are stored as they arrive: after a crash or Ctrl-C, --resume runs only what is missing.

    Exit codes: 0 every case passed, or each mean score reaches --min-score; 1 not, or worse than EARLIER beyond chance,
    or not complete; 2 invalid options, settings or cases; 130 stopped by Ctrl-C.
    """
    from atlas_agents.evaluation import EvaluationOptions, make_report, read_suite

    if min_score is not None and not 0 <= min_score <= 1:
        raise ConfigError(f"--min-score must be from 0 to 1, got {min_score}")
    settings, suite = load_settings(), read_suite(Path(file), code=code)
    earlier = _find(settings, compare) if compare else None
    models, agents, limits = tuple(model or ()), tuple(agent or ()), _read_budget(budget)
    options = EvaluationOptions(
        models=models, agents=agents, repeat=repeat, parallel=parallel, budget=limits, seconds=seconds
    )
    report = make_report(await _run(settings, suite, options, resume=resume), earlier)
    _show_report(report, as_json=as_json)
    _write_files(report, out, junit)
    return cli.EXIT_OK if _succeeded(report, min_score) else cli.EXIT_FAILED


@cli.command(app, "list")
def list_all(as_json: cli.JsonFlag = False) -> None:
    """List the evaluations of this machine, most recent first."""
    from atlas_agents.evaluation import list_evaluations

    found = list_evaluations(_folder(load_settings()))
    if as_json:
        print_json([{**_overview(each)} for each in found])
        return
    rows = [
        (each.id, each.name, format_age(each.started_at), f"{len(each.results)} of {each.total}", _passed(each))
        for each in found
    ]
    headers = ("evaluation", "name", "started", "results", "passed")
    print_table(headers, rows, "There are no evaluations. Run one with: atlas eval FILE")


@cli.command(app)
def show(
    id: EvaluationId,
    compare: Annotated[
        str | None, cli.Option(metavar="EARLIER", help="Compare with an earlier evaluation: its id or its file.")
    ] = None,
    as_json: cli.JsonFlag = False,
) -> None:
    """Show the results of an evaluation."""
    from atlas_agents.evaluation import make_report

    settings = load_settings()
    report = make_report(_find(settings, id), _find(settings, compare) if compare else None)
    _show_report(report, as_json=as_json)


@cli.command(app)
async def add(
    run_id: Annotated[str, cli.Argument(metavar="RUN", help="The id of a stored run; `atlas ask --json` prints it.")],
    to: Annotated[str, cli.Option(metavar="FILE", help="The YAML file to add the case to. It is created if missing.")],
    id: Annotated[
        str | None, cli.Option("--id", metavar="NAME", help="The id of the case; the run's by default.")
    ] = None,
) -> None:
    """Make a case of a stored run: its messages, and the tool calls that it made.

    The answer becomes the reference of the case, which graders see. Secrets are removed. Read the case before you rely
    on it: it expects the recorded behaviour, right or wrong.
    """
    from atlas_agents.app.model_setup import known_secrets
    from atlas_agents.config.open import open_store
    from atlas_agents.core.paths import Environment
    from atlas_agents.evaluation.cases import add_case, case_from_run

    settings = load_settings()
    store = open_store(settings)
    await store.open()
    try:
        secrets = known_secrets(settings, Environment())
        case = await case_from_run(store, TENANT, run_id, id or "", secrets=secrets)
    finally:
        await store.close()
    add_case(Path(to), case)
    print(f"Added case {case['id']} to {to}.", file=sys.stderr)


# Running


def _folder(settings: "Settings") -> Path:
    return settings.home / "evaluations"


def _read_budget(text: str | None) -> Any:
    from atlas_agents.core.budgets import read_budgets

    if text is None:
        return None
    (found,) = read_budgets(text, ("turn", "tenant"))
    return found


async def _run(settings: "Settings", suite: "Suite", options: "EvaluationOptions", *, resume: bool) -> "Evaluation":
    from asyncio import CancelledError

    async with _open_evaluator(settings, suite, options) as evaluator:
        file = _open_file(settings, evaluator, resume=resume)
        progress = _Progress(file.evaluation.results)
        try:
            evaluation = await evaluator.run(file, progress.show)
        except CancelledError:
            progress.clear()
            cli.print_error(f"stopped; to run the remaining cases: atlas eval {suite.source} --resume")
            raise
        progress.clear()
    if evaluation.stopped:
        cli.print_error(f"stopped after {plural(len(evaluation.results), 'result')}: {evaluation.stopped}")
    return evaluation


@asynccontextmanager
async def _open_evaluator(
    settings: "Settings", suite: "Suite", options: "EvaluationOptions"
) -> AsyncGenerator["Evaluator", None]:
    """Open the providers, or the workspace with everything that guards its agents if the file defines none."""
    from atlas_agents.agents.atlas import Atlas
    from atlas_agents.app.app import build_registry, open_scratch_runtime
    from atlas_agents.app.model_setup import known_secrets
    from atlas_agents.core.paths import Environment
    from atlas_agents.core.plugins import Plugins
    from atlas_agents.evaluation import Evaluator

    if suite.agents:
        environment = Environment()
        registry = build_registry(settings, environment, Plugins(settings.disabled_plugins))
        async with Atlas(suite.agents, registry=registry) as atlas:
            atlas.keep_secret(*known_secrets(settings, environment))
            yield Evaluator(suite, options, atlas=atlas)
        return
    async with open_scratch_runtime(settings) as runtime:
        yield Evaluator(suite, options, atlas=runtime.atlas)


def _open_file(settings: "Settings", evaluator: "Evaluator", *, resume: bool) -> "ResultFile":
    from atlas_agents.core.paths import make_private_folder
    from atlas_agents.evaluation import ResultFile, list_evaluations

    folder = make_private_folder(make_private_folder(settings.home) / "evaluations")
    source = str(Path(evaluator.suite.source).resolve())
    if not resume:
        evaluation = evaluator.start()
        return ResultFile.create(folder / f"{evaluation.id}.jsonl", evaluation)
    for each in list_evaluations(folder):
        if str(Path(each.file).resolve()) == source and not each.complete:
            return ResultFile.read(folder / f"{each.id}.jsonl")
    raise ConfigError(f"nothing to resume: no evaluation of {source} is incomplete; run it without --resume")


class _Progress:
    """Progress line on standard error; silent when that is not a terminal."""

    def __init__(self, earlier: Sequence["Result"]) -> None:
        self._results = [*earlier]

    def show(self, result: "Result", done: int, total: int) -> None:
        self._results.append(result)
        if sys.stderr.isatty():
            passed = sum(each.status == "passed" for each in self._results)
            rewrite_line(f"{done} of {total}, {passed} passed  {one_line(f'{result.case} {result.model}', 200)}")

    def clear(self) -> None:
        if sys.stderr.isatty():
            rewrite_line("")


def _find(settings: "Settings", given: str) -> "Evaluation":
    """Return an evaluation by its id, a prefix of it, or a file with its results."""
    from atlas_agents.core.text import list_known
    from atlas_agents.evaluation import list_evaluations, read_evaluation

    if Path(given).is_file():
        return read_evaluation(Path(given))
    known = list_evaluations(_folder(settings))
    matching = [each for each in known if each.id.startswith(given)]
    if len(matching) == 1:
        return matching[0]
    names = list_known("evaluations", [each.id for each in known])
    problem = "ambiguous evaluation" if matching else "evaluation not found:"
    raise ConfigError(f"{problem} {given!r}; {names}; run: atlas eval list")


def _write_files(report: "EvaluationReport", out: str | None, junit: str | None) -> None:
    from atlas_agents.evaluation import write_junit, write_report

    if out is not None:
        write_report(Path(out), report)
    if junit is not None:
        write_junit(Path(junit), report.evaluation)


def _succeeded(report: "EvaluationReport", min_score: float | None) -> bool:
    if not report.evaluation.complete or any(each.is_worse for each in report.comparisons):
        return False
    if min_score is not None:
        return all(column.mean_score >= min_score for column in report.columns)
    return all(result.status == "passed" for result in report.evaluation.results)


# Output


def _overview(evaluation: "Evaluation") -> dict[str, Any]:
    return {
        "id": evaluation.id,
        "name": evaluation.name,
        "file": evaluation.file,
        "started_at": evaluation.started_at,
        "agents": evaluation.agents,
        "models": evaluation.models,
        "results": len(evaluation.results),
        "total": evaluation.total,
        "passed": sum(result.status == "passed" for result in evaluation.results),
    }


def _passed(evaluation: "Evaluation") -> str:
    passed = sum(result.status == "passed" for result in evaluation.results)
    return f"{passed / len(evaluation.results):.0%}" if evaluation.results else "-"


def _show_report(report: "EvaluationReport", *, as_json: bool) -> None:
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _print_report(report: "EvaluationReport") -> None:
    evaluation = report.evaluation
    if not evaluation.results:
        print("There are no results.", file=sys.stderr)
        return
    _print_cases(evaluation)
    _print_failures(evaluation)
    print()
    for column in report.columns:
        low, high = column.interval.low, column.interval.high
        cost = "cost unknown" if column.dollars is None else f"${column.dollars:.4f}"
        errors = f", {plural(column.errors, 'error')}" if column.errors else ""
        print(
            f"{one_line(f'{column.agent} {column.model}', 200)}: {column.passed} of {column.results} passed{errors} "
            f"({column.pass_rate:.0%}, 95 % interval {low:.0%} to {high:.0%}), mean score {column.mean_score:.2f}, "
            f"{column.tokens:,} tokens, {cost}, median {format_duration(column.median_seconds)}"
        )
    _print_tags(report)
    for comparison in report.comparisons:
        print()
        _print_comparison(comparison, report.earlier)
    print(f"\nEvaluation {one_line(evaluation.id, 200)}", file=sys.stderr)


def _print_tags(report: "EvaluationReport") -> None:
    """Print how many results of each tag passed, by model."""
    if not report.tags:
        return
    models = list(dict.fromkeys(each.model for each in report.tags))
    rows: dict[str, dict[str, str]] = {}
    for each in report.tags:
        rows.setdefault(each.tag, {})[each.model] = f"{each.passed} of {each.results}"
    print()
    print_table(("tag", *models), [(tag, *(row.get(model, "-") for model in models)) for tag, row in rows.items()], "")


def _print_cases(evaluation: "Evaluation") -> None:
    agents: dict[tuple[str, str], set[str]] = {}
    for result in evaluation.results:
        agents.setdefault((result.case, result.model), set()).add(result.agent)
    by_model = all(len(found) == 1 for found in agents.values())  # each case runs with one agent only
    cells: dict[str, dict[str, list[Result]]] = {}
    for result in evaluation.results:
        name = result.model if by_model else f"{result.agent} {result.model}"
        cells.setdefault(result.case, {}).setdefault(name, []).append(result)
    names = list(dict.fromkeys(name for found in cells.values() for name in found))
    rows = [(case, *(_cell(found.get(name, [])) for name in names)) for case, found in cells.items()]
    print_table(("case", *names), rows, "There are no results.")


def _cell(results: Sequence["Result"]) -> str:
    if not results:
        return "-"
    if len(results) > 1:
        return f"{sum(result.status == 'passed' for result in results)} of {len(results)}"
    (result,) = results
    return f"{result.status} {result.score:.2f}" if result.status == "failed" and result.score else result.status


def _print_failures(evaluation: "Evaluation") -> None:
    from atlas_agents.evaluation.report import explain

    failed = [result for result in evaluation.results if result.status != "passed"]
    if failed:
        print()
    for result in failed[:_MAX_SHOWN]:
        print(one_line(f"{result.status}: {result.case} ({result.agent} {result.model}): {explain(result)}", 600))
    if len(failed) > _MAX_SHOWN:
        print(f"… and {len(failed) - _MAX_SHOWN} more")


def _print_comparison(comparison: "ScoreComparison", earlier: str) -> None:
    now = one_line(f"{comparison.agent} {comparison.model}", 200)
    before = one_line(f"{comparison.earlier_agent} {comparison.earlier_model}", 200)
    other = f"{before if before != now else 'itself'} in {one_line(earlier, 200)}"
    print(f"{now} compared with {other}, {plural(comparison.cases, 'case')}:")
    for change in comparison.changes[:_MAX_SHOWN]:
        print(f"  {one_line(change.case, 60)}: {change.before:.2f} before, {change.after:.2f} now")
    print(f"  difference of the mean scores: {comparison.difference:+.2f}{_explain(comparison)}")
    if comparison.only_now or comparison.only_earlier:
        print(
            f"  not compared: {comparison.only_now} only in this one, {comparison.only_earlier} only in the earlier one"
        )


def _explain(comparison: "ScoreComparison") -> str:
    if comparison.interval is None:
        return " (too few cases for a confidence interval)"
    low, high = comparison.interval.low, comparison.interval.high
    meaning = "worse" if comparison.is_worse else "better" if comparison.is_better else ""
    conclusion = f"{meaning} beyond chance" if meaning else "the interval includes 0, so chance may explain it"
    return f", 95 % interval {low:+.2f} to {high:+.2f}: {conclusion}"
