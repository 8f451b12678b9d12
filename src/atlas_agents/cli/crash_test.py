"""`atlas test crash`: simulate crashes and faults of your own agent, and report lost, repeated and unknown effects."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from inspect import isfunction, ismethod, signature
from typing import TYPE_CHECKING, Annotated, Any, cast

from atlas_agents.cli.command import EXIT_FAILED, EXIT_OK, Argument, Group, JsonFlag, Option, command
from atlas_agents.cli.output import plural, print_json, print_table, printable
from atlas_agents.core.errors import BadArguments, ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from atlas_agents.agents.agent import Agent
    from atlas_agents.providers.testing import Scripted
    from atlas_agents.testing.simulator import Build, SimulationReport
    from atlas_agents.tools.tool import Tool

app = Group()
_EXAMPLES = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "ann@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_MAX_DEPTH = 12
_DELEGATE = "delegate_task"


@command(app)
def crash(
    target: Annotated[
        str, Argument(metavar="TARGET", help="Your agent: package.module:name, or path/to/file.py:name.")
    ],
    message: Annotated[list[str] | None, Option(metavar="TEXT", help="A message of the user. Repeatable.")] = None,
    script: Annotated[
        str, Option(metavar="NAME", help="A Scripted model in the same module; by default each tool is called once.")
    ] = "",
    seeds: Annotated[int, Option(metavar="N", min=0, help="Number of seeds, each with up to four faults.")] = 20,
    seed: Annotated[int, Option(metavar="N", help="The first seed.")] = 0,
    only: Annotated[str, Option(metavar="CASE", help="Replay this case, such as seed=7 or crash@12.")] = "",
    run_tools: Annotated[bool, Option(help="Run your tools, many times, instead of doubles.")] = False,
    store: Annotated[
        str, Option(metavar="KIND", help="memory, or sqlite for a temporary file that each process opens.")
    ] = "memory",
    strict: Annotated[bool, Option(help="Fail for unknown outcomes as well.")] = False,
    as_json: JsonFlag = False,
) -> int:
    """Simulate a crash at every point of a turn and seeded faults, and report lost, repeated and unknown effects.

    The target is an Agent, a list of agents, a function that returns them, or a function of a Simulation, as the guide
    on testing describes. Models are never called: a script replaces them. Tools are replaced by doubles that only
    record the call, unless you pass --run-tools or the target takes a Simulation. Only delegate_task stays: each task
    runs a turn of the other agent, which calls each of its own tools once.

    Functions that write prompts, conditions and hooks of your agents do run, many times. Unless your own tools or
    doubles run, such code can neither open connections nor start processes, but it can change files.

    Exit codes: 0 nothing was lost or repeated, 1 something was, 2 invalid options or target.
    """
    from atlas_agents.core.plugins import find_attribute, import_module_of
    from atlas_agents.testing.replay import sealed
    from atlas_agents.testing.simulator import FaultSimulator

    module, name = import_module_of(target)
    found, messages = find_attribute(module, name), message or ["Hello"]
    own = _takes_simulation(found)
    build = _read_builder(found, target, run_tools)
    with sealed() if not (own or run_tools) else nullcontext():
        build = _with_scripts(build, _read_script(module, script) if script else None, len(messages))
        simulator = FaultSimulator(seed)
        report = simulator.run(build, messages, seeds=seeds, only=only, store=cast("Any", store))
    failed = bool(report.failures) or (strict and report.count("unknown") > 0)
    if as_json:
        print_json(_summary(report, target, failed))
    else:
        _print_report(report, target, failed, strict)
    return EXIT_FAILED if failed else EXIT_OK


def _takes_simulation(found: Any) -> bool:
    return (isfunction(found) or ismethod(found)) and len(signature(found).parameters) == 1


def _read_builder(found: Any, target: str, run_tools: bool) -> "Build":
    if _takes_simulation(found):
        return found
    if (isfunction(found) or ismethod(found)) and not signature(found).parameters:
        return lambda _: _prepare(found(), target, run_tools)
    prepared = _prepare(found, target, run_tools)
    return lambda _: prepared


def _prepare(found: Any, target: str, run_tools: bool) -> "list[Agent]":
    agents = _list_agents(found, target)
    return agents if run_tools else [agent.with_tools(list(map(_double_of, agent.tools))) for agent in agents]


def _list_agents(found: Any, target: str) -> "list[Agent]":
    from atlas_agents.agents.agent import Agent

    given = cast(Sequence[Any], found) if isinstance(found, (list, tuple)) else (found,)
    agents = [each for each in given if isinstance(each, Agent)]
    if not agents or len(agents) < len(given):
        expected = "an Agent, a list of agents, or a function that returns them"
        raise ConfigError(f"expected {expected} as {target!r}, got {found!r}")
    return agents


def _double_of(tool: "Tool") -> "Tool":
    """Return a double of a tool; delegating a task changes only the store of the simulation, so that stays real."""
    return tool if tool.name == _DELEGATE else make_double(tool)


def make_double(tool: "Tool") -> "Tool":
    """Return a tool with the same interface that does nothing; no function of the real one is called."""
    from atlas_agents.tools.tool import Tool

    result = example_value(tool.output_schema) if tool.output_schema else f"simulated result of {tool.name}"

    async def double(**arguments: Any) -> Any:
        return result

    return Tool(
        tool.name,
        double,
        description=tool.description or tool.name,
        parameters=tool.parameters,
        timeout=tool.timeout,
        permissions=tool.permissions,
        confirm=bool(tool.confirm),
        effect=tool.effect,
    )


def _read_script(module: "ModuleType", name: str) -> "Scripted":
    from atlas_agents.providers.testing import Scripted

    found = getattr(module, name, None)
    if not isinstance(found, Scripted):
        raise ConfigError(f"--script {name!r}: expected a Scripted model in {module.__name__!r}, got {found!r}")
    return found


def _with_scripts(build: "Build", first: "Scripted | None", turns: int) -> "Build":
    """Give each agent whose model is not scripted a script of its own; `first` is that of the first agent."""
    from atlas_agents.providers.testing import Scripted
    from atlas_agents.testing.faults import memory_simulation

    agents = _list_agents(build(memory_simulation()), "the target")
    scripts = {agent.id: _script_for(agent, agents[1:] if agent is agents[0] else (), turns) for agent in agents}
    if first is not None:
        scripts[agents[0].id] = first

    def scripted(simulation: Any) -> "list[Agent]":
        built = _list_agents(build(simulation), "the target")
        own = [any([isinstance(model, Scripted) for model in agent.models]) and first is None for agent in built]
        return [
            agent if has_own else agent.with_tools((), scripts[agent.id])
            for agent, has_own in zip(built, own, strict=True)
        ]

    return scripted


def _script_for(agent: "Agent", others: "Sequence[Agent]", turns: int) -> "Scripted":
    """Return a script that calls each tool of an agent once, delegates a task to each other one, and ends each turn."""
    from atlas_agents.providers.testing import Scripted, calls, says

    replies: list[Any] = []
    for tool in agent.tools:
        if tool.name == _DELEGATE:
            replies += [calls(_DELEGATE, target_agent=each.id, task_description="Do your part.") for each in others]
            continue
        arguments = example_value(tool.parameters)
        try:
            tool.check(arguments)
        except BadArguments as error:
            print(f"{tool.name} is not called: no example of its arguments fits ({error})", file=sys.stderr)
        else:
            replies.append(calls(tool.name, **arguments))
    return Scripted(*replies, *[says("Done.")] * (turns + len(others)))


def example_value(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """Return a value that matches a JSON schema, as far as its simple keywords tell."""
    root = schema if root is None else root
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return "example"
    given = cast(dict[str, Any], schema)
    if isinstance(reference := given.get("$ref"), str):
        return example_value(_resolve(reference, root), root, depth + 1)
    for key in ("const", "default"):
        if key in given:
            return given[key]
    for key in ("enum", "examples"):
        if given.get(key):
            return given[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if given.get(key):
            chosen = next((each for each in given[key] if each.get("type") != "null"), given[key][0])
            return example_value({**given, key: None, **chosen}, root, depth + 1)
    return _example_of_type(given, root, depth)


def _resolve(reference: str, root: Any) -> Any:
    found = root
    for part in reference.lstrip("#/").split("/"):
        found = cast(dict[str, Any], found).get(part) if isinstance(found, dict) else None
    return found


def _example_of_type(schema: dict[str, Any], root: Any, depth: int) -> Any:
    given = schema.get("type")
    kinds = cast(list[Any], given) if isinstance(given, list) else [given]
    match next((each for each in kinds if each != "null"), "null"):
        case "object":
            properties: dict[str, Any] = schema.get("properties") or {}
            required: list[str] = schema.get("required") or []
            return {name: example_value(properties.get(name), root, depth + 1) for name in required}
        case "array":
            return [example_value(schema.get("items"), root, depth + 1) for _ in range(schema.get("minItems", 0))]
        case "integer" | "number":
            return _example_number(schema)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            text = _EXAMPLES.get(str(schema.get("format")), "example")
            return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]


def _example_number(schema: dict[str, Any]) -> float:
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    step = schema.get("multipleOf", 1)
    value = least if least is not None else above + step if above is not None else step
    if most is not None:
        value = min(value, most)
    if below is not None and value >= below:
        value = below - step
    return value


def _summary(report: "SimulationReport", target: str, failed: bool) -> dict[str, Any]:
    return {
        "target": target,
        "ok": not failed,
        "points": report.points,
        "cases": len(report.cases),
        **{kind: report.count(kind) for kind in ("lost", "repeated", "unknown")},
        "effects": report.by_subject(),
        "failures": [
            {
                "case": case.case,
                "faults": [str(fault) for fault in case.faults],
                "findings": case.findings,
                "trace": case.trace,
            }
            for case in report.cases
            if case.failures
        ],
    }


def _print_report(report: "SimulationReport", target: str, failed: bool, strict: bool) -> None:
    kinds = ("happened", "lost", "repeated", "unknown")
    rows = [(name, *[counts[kind] for kind in kinds]) for name, counts in report.by_subject().items()]
    print_table(("effect", *kinds), rows, "The agent had no effects: its script calls no tool that acts.")
    if failed:
        try:
            report.raise_if_failed(allow_unknown=not strict)
        except AssertionError as error:
            print(f"\n{printable(str(error))}", file=sys.stderr)
        case = next(case.case for case in report.cases if case.failures or (strict and case.findings))
        print(f"\nReplay one with: atlas test crash {target} --only {case}", file=sys.stderr)
        return
    found = f"{plural(report.count('unknown'), 'outcome')} unknown" if report.count("unknown") else "no unknown outcome"
    print(f"\n{plural(len(report.cases), 'case')}: nothing was lost or repeated, {found}.", file=sys.stderr)
