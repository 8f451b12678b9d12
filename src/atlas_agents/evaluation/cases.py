"""Case files: read a suite of evaluation cases from YAML or Python, and check all of it before anything runs."""

import hashlib
import importlib
import runpy
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.core import install_command
from atlas_agents.core.errors import AtlasError, ConfigError
from atlas_agents.core.messages import Message, split_messages
from atlas_agents.core.paths import Secret, read_text_file, write_file
from atlas_agents.core.plugins import import_target
from atlas_agents.core.store import Store
from atlas_agents.core.text import list_known
from atlas_agents.evaluation.scorers import ScoreOutcome, make_scorers, rubrics
from atlas_agents.providers.catalogue import parse_model_ref
from atlas_agents.tools.redact import Redactor, hide_named
from atlas_agents.tools.tool import Tool

_MAX_BYTES = 16 * 1024 * 1024
_MAX_NODES = 1_000_000
"""Maximum number of values of a YAML file after its aliases are expanded."""
_TYPES = ("string", "number", "integer", "boolean", "array", "object")


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case of an evaluation.

    Args:
        id: Name that is unique in the suite.
        input: The message of the user, or a conversation that ends with one.
        expect: Expectations by the name of the scorer.
        tags: Names of groups that the case belongs to.
        agents: Ids of the agents that run it; all agents of the suite if empty.
        max_rounds: Maximum number of model calls of the turn. A turn that ends there is scored, not an error.
        reference: An answer that is known to be good, for graders and your own functions.
    """

    id: str
    input: Any
    expect: dict[str, Any]
    tags: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    max_rounds: int | None = None
    reference: str = ""


class Suite:
    """Cases, the agents that run them and the models that these use.

    Args:
        name: Name of the suite.
        cases: The cases.
        agents: The agents that run each case.
        models: References of the models that each agent uses in turn; the agent's own model if empty.
        grader: Reference of the model that grades rubrics.
        source: Origin of the suite, for error messages.
        load: Imports `module:function` for the scorer `function`; by default every module that can be imported. A YAML
            file refuses it unless `code` is given.
        lines: Line of each case in its file.
    """

    def __init__(
        self,
        name: str,
        *,
        cases: Sequence[Case],
        agents: Sequence[Agent] = (),
        models: Sequence[str] = (),
        grader: str = "",
        source: str = "",
        load: Callable[[str], Any] | None = None,
        lines: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.cases = tuple(cases)
        self.agents = tuple(agents)
        self.models = tuple(models)
        self.grader = grader
        self.source = source or name
        self._lines = tuple(lines)
        load = load or import_target
        self.scorers: dict[str, tuple[ScoreOutcome, ...]] = {}
        """The scorers of each case, by its id."""
        for at, case in enumerate(self.cases):
            with self._errors_at(at):
                self._check(case, load)
        if not self.cases:
            raise ConfigError(f"{self.source}: there are no cases: expected at least one under `cases`")
        for ref in (*self.models, *([grader] if grader else [])):
            with _prefixed(self.source):
                parse_model_ref(ref)

    def _check(self, case: Case, load: Callable[[str], Any]) -> None:
        if not case.id.strip():
            raise ConfigError("the id is empty: expected a name that is unique in the file")
        if case.id in self.scorers:
            raise ConfigError("two cases have this id; choose another id for one of them")
        if not case.expect:
            raise ConfigError("expect is empty: name at least one scorer, for example contains")
        if case.max_rounds is not None and case.max_rounds < 1:
            raise ConfigError(f"max_rounds must be at least 1, got {case.max_rounds}")
        if not isinstance(case.input, (str, list, tuple, Message)):
            raise ConfigError(
                f"invalid input {case.input!r}: expected a text or a list of messages; put quotes around it"
            )
        if split_messages(cast(Any, case).input)[1] is None:
            raise ConfigError("the last message of input must be one of the user")
        self.scorers[case.id] = make_scorers(case.expect, load)
        if any(not (rubric.model or self.grader) for rubric in rubrics(case.expect)):
            raise ConfigError("rubric needs a model that grades: set `grader` in the file, or `model` in the rubric")

    @contextmanager
    def _errors_at(self, at: int) -> Generator[None, None, None]:
        line = f":{self._lines[at]}" if at < len(self._lines) else ""
        case = self.cases[at]
        with _prefixed(f"{self.source}{line}: case {case.id or at + 1!r}"):
            yield

    def check_agents(self, agents: Sequence[Agent]) -> None:
        """Raise ConfigError if a case names an agent that is not among these."""
        known = [agent.id for agent in agents]
        for at, case in enumerate(self.cases):
            for id in case.agents:
                if id not in known:
                    with self._errors_at(at):
                        raise ConfigError(f"unknown agent {id!r}; {list_known('agents', known)}")

    @property
    def fingerprint(self) -> str:
        """Digest of the cases, to recognise a file that was changed."""
        content = [
            [case.id, case.input, case.expect, case.agents, case.max_rounds, case.reference] for case in self.cases
        ]
        encoded = msgspec.json.encode([content, self.grader], enc_hook=_name_of, order="deterministic")
        return hashlib.sha256(encoded).hexdigest()


def _name_of(value: Any) -> str:
    return getattr(value, "__qualname__", "") or repr(value)


@contextmanager
def _prefixed(place: str) -> Generator[None, None, None]:
    """Name the place in the message of a ConfigError."""
    try:
        yield
    except (AtlasError, msgspec.ValidationError) as error:
        raise ConfigError(f"{place}: {error}") from error


def read_suite(path: Path, *, code: bool = False) -> Suite:
    """Read a suite from a YAML file, or from a Python file that defines `suite`.

    A Python file is executed. A YAML file is data: it may import agents and scorers only with `code`.
    """
    try:
        if path.suffix == ".py":
            return _read_python(path)
        if path.suffix not in (".yaml", ".yml"):
            raise ConfigError(f"{path}: unknown kind of case file {path.suffix!r}: expected .yaml, .yml or .py")
        return _read_yaml(path, read_text_file(path, _MAX_BYTES), code=code)
    except OSError as error:
        raise ConfigError(f"cannot read the case file {path}: {error.strerror}") from error


def _read_python(path: Path) -> Suite:
    with path.open("rb"):
        pass  # a missing file is reported like that of every other kind
    with _importing_from(path.parent):
        try:
            found = runpy.run_path(str(path)).get("suite")
        except AtlasError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{path}: the file raised {type(error).__name__}: {error}") from error
    if not isinstance(found, Suite):
        raise ConfigError(f"{path}: expected a variable `suite` with a Suite, got {type(found).__name__}")
    return found


@contextmanager
def _importing_from(folder: Path) -> Generator[None, None, None]:
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _refuse_code(reference: str) -> Any:
    raise ConfigError(f"{reference!r} is Python code, which a YAML file may not import; pass --code if you trust it")


# YAML


class _ToolData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    result: Any = "ok"


class _AgentData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    system_prompt: str = ""
    model: str | None = None
    tools: tuple[_ToolData, ...] = ()
    settings: dict[str, Any] = {}
    tool_choice: str = "auto"
    max_rounds: int = 10


class _SuiteData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cases: list[dict[str, Any]]
    name: str = ""
    agents: dict[str, _AgentData | str] = {}
    models: tuple[str, ...] = ()
    grader: str = ""
    expect: dict[str, Any] = {}
    max_rounds: int | None = None


def _read_yaml(path: Path, text: str, *, code: bool) -> Suite:
    content, lines = _parse_yaml(path, text)
    with _prefixed(str(path)):
        data = msgspec.convert(content, _SuiteData)

    def load(reference: str) -> Any:
        return import_target(reference, path.parent) if code else _refuse_code(reference)

    agents: list[Agent] = []
    for id, each in data.agents.items():
        with _prefixed(f"{path}: agent {id!r}"):
            agents.append(_make_agent(id, each, load))
    defaults: dict[str, Any] = {"expect": {}, "max_rounds": data.max_rounds}
    cases: list[Case] = []
    for at, each in enumerate(data.cases):
        with _prefixed(f"{path}:{lines[at]}: case {each.get('id') or at + 1!r}"):
            case = msgspec.convert(defaults | each, Case)
            cases.append(msgspec.structs.replace(case, expect={**data.expect, **case.expect}))
    return Suite(
        data.name or path.stem,
        cases=cases,
        agents=agents,
        models=data.models,
        grader=data.grader,
        source=str(path),
        load=load,
        lines=lines,
    )


def _make_agent(id: str, data: _AgentData | str, load: Callable[[str], Any]) -> Agent:
    if isinstance(data, str):
        found = load(data)
        if not isinstance(found, Agent):
            raise ConfigError(f"{data!r} is {type(found).__name__}: expected an Agent")
        return found
    return Agent(
        id,
        model=data.model,
        system_prompt=data.system_prompt,
        settings=data.settings or None,
        tool_choice=data.tool_choice,
        max_rounds=data.max_rounds,
        tools=[_make_tool(each) for each in data.tools],
    )


def _make_tool(data: _ToolData) -> Tool:
    """Return a simulated tool, which has no effect and always returns the same result."""

    async def answer(**arguments: Any) -> Any:
        return data.result

    return Tool(data.name, answer, description=data.description, parameters=_schema(data.parameters), effect="pure")


def _schema(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema as it is, or make one of names and types such as `city: string`."""
    if parameters.get("type") == "object":
        return parameters
    for name, kind in parameters.items():
        if isinstance(kind, str) and kind not in _TYPES:
            raise ConfigError(f"parameter {name!r}: unknown type {kind!r}: expected one of {', '.join(_TYPES)}")
    properties = {name: {"type": kind} if isinstance(kind, str) else kind for name, kind in parameters.items()}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _parse_yaml(path: Path, text: str) -> tuple[Any, list[int]]:
    """Return the content of a YAML file, and the line of each case."""
    yaml = _import_yaml(path)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _check_nodes(path, node)
        content = loader.construct_document(node) if node is not None else None
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        marked: Any = error
        line = marked.problem_mark.line + 1 if marked.problem_mark else 1
        raise ConfigError(f"{path}:{line}: invalid YAML: {marked.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: invalid YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping with `cases`, got {type(content).__name__}")
    return cast(Any, content), _case_lines(node)


def _case_lines(node: Any) -> list[int]:
    for key, value in node.value:
        if key.value == "cases" and value.id == "sequence":
            return [each.start_mark.line + 1 for each in value.value]
    return []


def _check_nodes(path: Path, root: Any) -> None:
    """Raise ConfigError for duplicate keys, which would be lost, and for aliases that expand beyond the limit."""
    sizes: dict[int, int] = {}

    def measure(node: Any, above: frozenset[int]) -> int:
        if id(node) in above:
            raise ConfigError(f"{path}:{node.start_mark.line + 1}: an alias refers to itself")
        if id(node) in sizes:
            return sizes[id(node)]
        children: list[Any] = []
        if node.id == "mapping":
            _check_keys(path, node)
            children = [part for pair in node.value for part in pair]
        elif node.id == "sequence":
            children = node.value
        size = 1 + sum(measure(child, above | {id(node)}) for child in children)
        if size > _MAX_NODES:
            raise ConfigError(f"{path}: its aliases expand to more than {_MAX_NODES:,} values")
        sizes[id(node)] = size
        return size

    if root is not None:
        measure(root, frozenset())


def _check_keys(path: Path, node: Any) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        name = str(key.value)
        if name in seen:
            raise ConfigError(f"{path}:{key.start_mark.line + 1}: duplicate key {name!r}; remove one of the two")
        seen.add(name)


# Cases from stored runs


async def case_from_run(
    store: Store, tenant: str, run_id: str, id: str = "", *, secrets: Sequence[Secret] = ()
) -> dict[str, Any]:
    """Return a case of a stored run: its conversation, the tool calls it made, and its answer.

    These secrets, those of the environment, and values that look like secrets are removed. A value that is a secret by
    its name, such as a password in the arguments of a call, is removed wherever it occurs.
    """
    row = await store.run(tenant, run_id)
    if row is None:
        raise ConfigError(f"run not found: {run_id!r}; run `atlas ask --json`, or look under Activity in the web UI")
    if row.status != "done":
        raise ConfigError(f"run {run_id!r} has no answer: its status is {row.status!r}; choose a run that is done")
    stored = await store.messages(tenant, row.session)
    own = [each.message for each in stored if each.run_id == run_id]
    first = next((each.seq for each in stored if each.run_id == run_id), None)
    if first is None or not own:
        raise ConfigError(f"the messages of run {run_id!r} are no longer stored; choose a newer run")
    earlier = [each.message for each in stored if each.seq < first]
    talk = [each for each in [*earlier, *_until_user(own)] if each.role in ("user", "assistant") and each.text]
    calls = [{"name": call.name, "arguments": call.arguments} for message in own for call in message.tool_calls]
    answer = next((each.text for each in reversed(own) if each.role == "assistant"), "")
    text_only = [{"role": each.role, "content": each.text} for each in talk]
    hide = hide_named(Redactor([each.reveal() for each in secrets]).value, _call_data([*earlier, *own]))
    return hide(
        {
            "id": id or f"run-{run_id[-8:]}",
            "input": text_only[0]["content"] if len(text_only) == 1 else text_only,
            "expect": {"tool_calls": calls or "none"},
            **({"reference": answer} if answer else {}),
        }
    )


def _call_data(messages: Sequence[Message]) -> list[Any]:
    """Return the arguments and results of the tool calls in messages."""
    arguments = [call.arguments for message in messages for call in message.tool_calls]
    return [*arguments, *[each.result for message in messages for each in message.tool_results]]


def _until_user(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the first messages of a run, up to and including the message of the user."""
    at = next((at for at, message in enumerate(messages) if message.role == "user"), -1)
    return messages[: at + 1]


def add_case(path: Path, case: Mapping[str, Any]) -> None:
    """Append a case to a YAML file, or create the file. Existing content is kept as it is."""
    yaml = _import_yaml(path)
    item = yaml.safe_dump([msgspec.to_builtins(case)], sort_keys=False, allow_unicode=True, width=120)
    entry = "".join(f"  {line}\n" for line in item.splitlines())
    if not path.exists():
        _write_text(path, f"cases:\n{entry}")
        return
    text = read_text_file(path, _MAX_BYTES)
    before, _ = _parse_yaml(path, text)
    if case["id"] in [each.get("id") for each in before.get("cases") or ()]:
        raise ConfigError(f"{path} has a case with the id {case['id']!r} already; choose another with --id")
    added = f"{text.rstrip()}\n{entry}"
    problem = (
        f"cannot add to {path}: its list of cases must be at the end, indented by two spaces; add it by hand:\n{item}"
    )
    try:
        after, _ = _parse_yaml(path, added)
    except ConfigError as error:
        raise ConfigError(problem) from error
    if after != {**before, "cases": [*(before.get("cases") or ()), msgspec.to_builtins(case)]}:
        raise ConfigError(problem)
    _write_text(path, added)


def _write_text(path: Path, text: str) -> None:
    """Write a file, or the target of a link, and keep its permissions; a new file is private."""
    try:
        target = path.resolve()
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        write_file(target, text.encode(), mode=mode)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; check the folder and its permissions") from error


def _import_yaml(path: Path) -> Any:
    try:
        return importlib.import_module("yaml")
    except ImportError as error:
        command = install_command("eval")
        raise ConfigError(f"{path}: YAML needs an optional package; run: {command}, or write a .py file") from error
