"""`atlas replay RUN`: replay a finished run offline, save it as a test, or fork it."""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from atlas_agents.cli import command as cli
from atlas_agents.cli.connect import TENANT, load_settings
from atlas_agents.cli.output import (
    describe_error,
    format_call,
    format_result,
    format_time,
    one_line,
    plural,
    print_json,
    print_table,
    printable,
)
from atlas_agents.core.errors import ConfigError

if TYPE_CHECKING:
    from atlas_agents.agents.atlas import Atlas
    from atlas_agents.config.settings import Settings
    from atlas_agents.core.approvals import Question
    from atlas_agents.core.store import Store
    from atlas_agents.testing.comparison import ReplayResult
    from atlas_agents.testing.replay import AgentSource
    from atlas_agents.testing.run_record import RunRecord

app = cli.Group()
EXIT_DIFFERENT = 1
EXIT_IMPOSSIBLE = 2


@cli.command(app)
async def replay(
    run: Annotated[str, cli.Argument(metavar="RUN", help="Id of a run, key of a session for its last run, or a file.")],
    agents: Annotated[
        str | None,
        cli.Option(metavar="TARGET", help="Agents of your own code: package.module:name, or path/to/file.py:name."),
    ] = None,
    save: Annotated[
        str | None, cli.Option(metavar="FILE", help="Save the run as a pytest case, without secrets.")
    ] = None,
    force: Annotated[bool, cli.Option("--force", help="Replace the files of an earlier --save.")] = False,
    list_only: Annotated[bool, cli.Option("--list", help="List the steps of the run.")] = False,
    fork: Annotated[
        int | None, cli.Option(metavar="STEP", min=2, help="Continue live from this step, in a scratch session.")
    ] = None,
    model: Annotated[str | None, cli.Option(metavar="REF", help="With --fork: the model that continues.")] = None,
    prompt: Annotated[str | None, cli.Option(metavar="FILE", help="With --fork: another system prompt.")] = None,
    policy: Annotated[str | None, cli.Option(metavar="FILE", help="With --fork: another policy.")] = None,
    allow_tools: Annotated[
        str | None, cli.Option(metavar="NAME,…", help="With --fork: tools that are run; others are simulated.")
    ] = None,
    as_json: cli.JsonFlag = False,
) -> int:
    """Replay a finished run offline, save it as a test, or fork it.

    A replay prints the first difference from the record, caused by a change of prompts, tools, policy or code. It uses
    the recorded replies, failed attempts, results and approvals. No model is called, no tool is run and nothing is
    stored. Some of your code still runs: prompt functions, conditions of rules and approvals, and hooks for requests.
    It can neither open connections nor start processes, but it can change files.

    With --fork, the turn continues live from a step. Nothing is stored either. A tool call gets the result of the same
    call in the record, unless its tool is in --allow-tools: such calls run, with the usual approvals. Budgets and daily
    limits apply to the fork alone; earlier usage does not count.

    Exit codes: 0 the run is the same; 1 it differs, also by a tool that is missing or has another schema, or the fork
    failed; 2 it cannot be replayed: it is unknown, has not ended, is damaged, or its agent does not exist.
    """
    from atlas_agents.core.errors import StoreError
    from atlas_agents.testing.run_record import ReplayError

    changes = _ForkChanges(fork, model, prompt, policy, allow_tools)
    try:
        changes.check()
        settings = load_settings()
        async with _open_agents(settings, agents) as atlas:
            record = await _read_record(settings, atlas, run)
            if list_only:
                return _list_steps(record, as_json=as_json)
            if fork is not None:
                return await _fork(record, atlas, changes, as_json=as_json)
            if save is not None:
                return await _save(record, atlas, Path(save), _source(agents, settings, Path(save)), force=force)
            return await _compare(record, atlas, as_json=as_json)
    except (ReplayError, StoreError) as error:
        cli.print_error(describe_error(error))
        return EXIT_IMPOSSIBLE


class _ForkChanges(NamedTuple):
    """Options of a fork: the step from which the run continues live, and the changes."""

    step: int | None
    model: str | None
    prompt: str | None
    policy: str | None
    allow_tools: str | None

    def check(self) -> None:
        """Raise ConfigError for options that have an effect only with --fork."""
        given = [name for name, value in self._asdict().items() if value is not None]
        if given and self.step is None:
            raise ConfigError(f"--{given[0].replace('_', '-')} needs --fork STEP; list the steps with --list")


def _list_steps(record: "RunRecord", *, as_json: bool) -> int:
    from atlas_agents.testing.fork import list_steps

    steps = list_steps(record)
    if as_json:
        print_json(steps)
        return cli.EXIT_OK
    rows = [(each.number, format_time(each.at), each.kind, one_line(each.text, 300)) for each in steps]
    print_table(("step", "time", "kind", "content"), rows, "The run has no steps.")
    return cli.EXIT_OK


async def _fork(record: "RunRecord", atlas: "Atlas", changes: _ForkChanges, *, as_json: bool) -> int:
    from atlas_agents.testing.fork import fork
    from atlas_agents.tools.policy import Policy

    result = await fork(
        record,
        atlas,
        changes.step or 2,
        model=changes.model or "",
        system_prompt=_read_prompt(changes.prompt),
        policy=Policy.load(changes.policy) if changes.policy is not None else None,
        allow_tools=[name.strip() for name in (changes.allow_tools or "").split(",") if name.strip()],
        approve=_ask,
    )
    if as_json:
        print_json(result)
    else:
        for call in result.calls:
            shown = format_result(call.tool, call.status, call.result, None if call.status == "ok" else call.status)
            print(f"{format_call(call.tool, call.arguments)}\n{shown} ({call.source})", file=sys.stderr)
        if result.error is None:
            print(printable(result.answer))
        else:
            cli.print_error(f"the fork failed: {result.error}")
    return cli.EXIT_OK if result.error is None else cli.EXIT_FAILED


def _read_prompt(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompt: cannot read {file!r}: {error}") from error


def _ask(question: "Question") -> bool:
    """Ask the person at the terminal about a call of an allowed tool; without a terminal it is refused."""
    shown = format_call(question.tool, question.arguments)
    if not sys.stdin.isatty():
        cli.print_error(f"{question.tool} needs an approval, and was refused: standard input is not a terminal")
        return False
    return cli.confirm(f"{shown}\n{printable(question.preview)}\nAllow this call?".replace("\n\n", "\n"))


@asynccontextmanager
async def _open_agents(settings: "Settings", agents: str | None) -> "AsyncGenerator[Atlas]":
    """Open the agents of the workspace, or those that `module:name` or `file.py:name` names."""
    if agents is None:
        from atlas_agents.app.app import open_scratch_runtime

        async with open_scratch_runtime(settings) as runtime:
            yield runtime.atlas
        return
    from atlas_agents.app.model_setup import known_secrets
    from atlas_agents.core.paths import Environment
    from atlas_agents.testing.replay import load_agents

    atlas = load_agents(agents)
    atlas.keep_secret(*known_secrets(settings, Environment()))
    yield atlas


async def _read_record(settings: "Settings", atlas: "Atlas", run: str) -> "RunRecord":
    """Read a run from a file that was saved, from the store of the agents, or from that of the settings."""
    from atlas_agents.config.open import open_store
    from atlas_agents.storage.sqlite import MemoryStore
    from atlas_agents.testing.run_record import RunRecord

    if run.endswith(".json"):
        return RunRecord.load(run)
    own = atlas.store
    store = open_store(settings) if own is None or isinstance(own, MemoryStore) else own
    await store.open()
    try:
        return await RunRecord.read(store, await _find_run(store, run), TENANT)
    finally:
        await store.close()


async def _find_run(store: "Store", run: str) -> str:
    """Return the id of a run, or of the last run of a session."""
    from atlas_agents.testing.run_record import ReplayError

    if await store.run(TENANT, run) is not None:
        return run
    if found := await store.runs(TENANT, run, last=1):
        return found[0].id
    ids = "the ids of runs are in the web UI and in: atlas audit list --json"
    raise ReplayError(f"not found: run or session {run!r}; {ids}; those of sessions in: atlas sessions list")


def _source(agents: str | None, settings: "Settings", path: Path) -> "AgentSource":
    """Return how the saved test builds the agents."""
    from atlas_agents.testing.replay import AgentSource

    here = path.absolute().parent
    if agents is not None:
        where, _, name = agents.rpartition(":")
        if not where.endswith(".py"):
            return AgentSource(f"load_agents({agents!r})")
        file = os.path.relpath(Path(where).expanduser().absolute(), here)
        return AgentSource(f"load_agents(str(RECORD.parent / {file!r}) + {':' + name!r})")
    folder = os.path.relpath(settings.workspace, here)
    imports = "from atlas_agents.app.app import load_workspace_agents\nfrom atlas_agents.testing import replay"
    return AgentSource(f"load_workspace_agents(RECORD.parent / {folder!r})", imports)


async def _save(record: "RunRecord", atlas: "Atlas", path: Path, source: "AgentSource", *, force: bool) -> int:
    from atlas_agents.testing.replay import save_case

    before = await save_case(record, atlas, path, source, force=force)
    if before.difference is not None:
        shown = printable(str(before.difference))
        print(f"The test expects what the agents do now. The recorded run differs in {shown}", file=sys.stderr)
    print(f"Saved {path} and {path.with_suffix('.json').name}. Check that they contain nothing private.")
    return cli.EXIT_OK


async def _compare(record: "RunRecord", atlas: "Atlas", *, as_json: bool) -> int:
    from atlas_agents.testing.replay import replay as replay_record

    result = await replay_record(record, atlas)
    if as_json:
        print_json(_as_json(result))
    else:
        _print_result(result)
    return cli.EXIT_OK if result.same else EXIT_DIFFERENT


def _as_json(result: "ReplayResult") -> dict[str, object]:
    return {
        "run": result.run_id,
        "same": result.same,
        "status": result.status,
        "answer": result.answer,
        "error": result.error,
        "rounds": result.rounds,
        "differences": [
            {"kind": each.kind, "where": each.where, "summary": each.summary, "diff": each.diff}
            for each in result.differences
        ],
        "notCompared": result.not_compared,
    }


def _print_result(result: "ReplayResult") -> None:
    run = one_line(result.run_id, 200)
    if result.difference is None:
        print(f"Run {run} is the same: {plural(result.rounds, 'round')}, {result.status}.")
    else:
        print(f"Run {run} differs in {printable(str(result.difference))}")
        if others := len(result.differences) - 1:
            print(f"There {'is' if others == 1 else 'are'} {plural(others, 'more difference')}; see --json.")
    for each in result.not_compared:
        print(f"Not compared: {printable(each)}.", file=sys.stderr)
