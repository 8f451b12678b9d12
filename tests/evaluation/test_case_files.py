"""Case files: what a suite reads from YAML and Python, and the error for each kind of bad input."""

import sys
from pathlib import Path

import pytest

from atlas_agents import Agent, Atlas, ConfigError, Tool
from atlas_agents.core.paths import Secret
from atlas_agents.evaluation import Suite, read_suite
from atlas_agents.evaluation.cases import add_case, case_from_run
from atlas_agents.providers.testing import Scripted, calls, says
from atlas_agents.storage.sqlite import MemoryStore

CASES = """\
name: weather
agents:
  assistant:
    system_prompt: Be brief.
    settings: {temperature: 0}
    tools:
      - name: get_weather
        description: Tell the weather in a city.
        parameters: {city: string}
        result: 18 degrees
models: [fake/one]
expect: {max_seconds: 60}
cases:
  - id: lima
    input: How is the weather in Lima?
    tags: [simple]
    expect:
      contains: 18 degrees
      tool_calls: [{name: get_weather, arguments: {city: Lima}}]
  - id: thanks
    input:
      - {role: user, content: Hi}
      - {role: assistant, content: Hello}
      - {role: user, content: Thanks}
    expect: {tool_calls: none}
"""


def read(folder: Path, text: str, *, code: bool = False, name: str = "cases.yaml") -> Suite:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_suite(path, code=code)


def test_yaml_file_defines_agents_models_and_cases(tmp_path: Path) -> None:
    suite = read(tmp_path, CASES)
    assert (suite.name, [case.id for case in suite.cases], suite.models) == (
        "weather",
        ["lima", "thanks"],
        ("fake/one",),
    )
    assert [tool.name for tool in suite.agents[0].tools] == ["get_weather"]
    assert suite.cases[1].expect == {"max_seconds": 60, "tool_calls": "none"}
    assert suite.cases[0].tags == ("simple",)


def test_fingerprint_follows_the_cases_and_not_the_layout(tmp_path: Path) -> None:
    first = read(tmp_path, CASES).fingerprint
    assert read(tmp_path, f"# a comment\n{CASES}").fingerprint == first
    assert read(tmp_path, CASES.replace("Lima?", "Oslo?")).fingerprint != first


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("input: How is", "inptu: How is", r"cases.yaml:14: case 'lima': .*unknown field `inptu`"),
        ("id: thanks", "id: lima", r"cases.yaml:20: case 'lima': two cases have this id"),
        ("contains: 18 degrees", "contians: 18 degrees", r":14: case 'lima': unknown scorer 'contians': expected"),
        ("contains: 18 degrees", "contains: 18", r":14: case 'lima': contains: expected a text .*got 18; put quotes"),
        ("contains: 18 degrees", "regex: '('", r":14: case 'lima': regex: invalid regular expression '\('"),
        ("contains: 18 degrees", "json_schema: {type: strnig}", r":14: case 'lima': json_schema: "),
        (
            "contains: 18 degrees",
            "max_dollars: -1",
            r":14: case 'lima': max_dollars: expected a number above 0, got -1",
        ),
        ("contains: 18 degrees", "rubric: It is polite.", r":14: case 'lima': rubric needs a model that grades"),
        ("contains: 18 degrees", "function: os:getcwd", r":14: case 'lima': 'os:getcwd' is Python code.*--code"),
        ("tool_calls: none", "tool_calls: nothing", r":20: case 'thanks': tool_calls: expected none, a list"),
        ("tool_calls: none", "tool_calls: [{nmae: x}]", r":20: case 'thanks': tool_calls: .*`nmae`"),
        ("{tool_calls: none}", "{}", ""),
        ("expect: {max_seconds: 60}\n", "expect: {max_seconds: 60\n", r"cases.yaml:13: invalid YAML"),
        ("name: weather\n", "name: weather\nname: other\n", r"cases.yaml:2: duplicate key 'name'"),
        ("models: [fake/one]", "models: [one]", r"cases.yaml: .*'one'.*provider/model"),
        ("models: [fake/one]", "modles: [fake/one]", r"cases.yaml: .*unknown field `modles`"),
        ("{city: string}", "{city: text}", r"agent 'assistant': parameter 'city': unknown type 'text'"),
        ("id: thanks", "id: thanks\n    agents: [bob]", ""),
        ("role: user, content: Thanks", "role: assistant, content: Thanks", r"'thanks': the last message of input"),
        ("input: How is the weather in Lima?", "input: 7", r"'lima': invalid input 7: expected a text"),
        ("    tags: [simple]", "    max_rounds: 0", r"'lima': max_rounds must be at least 1"),
    ],
)
def test_mistake_in_a_file_is_named_with_its_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in CASES
    text = CASES.replace(old, new)
    if not expected:
        read(tmp_path, text)
        return
    with pytest.raises(ConfigError, match=expected):
        read(tmp_path, text)


def test_unusable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the case file .*missing.yaml: No such file"):
        read_suite(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match=r"unknown kind of case file '.txt': expected .yaml"):
        read(tmp_path, CASES, name="cases.txt")
    for text, problem in (
        ("", "expected a mapping"),
        ("cases: []", "there are no cases"),
        ("- a", "expected a mapping"),
    ):
        with pytest.raises(ConfigError, match=problem):
            read(tmp_path, text)
    with pytest.raises(ConfigError, match=r"cases.yaml:1: an alias refers to itself"):
        read(tmp_path, "cases: &a [*a]")
    with pytest.raises(ConfigError, match="not valid UTF-8"):
        (tmp_path / "cases.yaml").write_bytes(b"name: \xff")
        read_suite(tmp_path / "cases.yaml")


def test_aliases_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(ConfigError, match="aliases expand to more than"):
        read(tmp_path, "\n".join([*lines, "cases: *a11"]))


def test_yaml_imports_code_from_its_folder_only_if_allowed(tmp_path: Path) -> None:
    (tmp_path / "eval_scorers_here.py").write_text("def polite(outcome): return 'please' in outcome.answer\n")
    text = CASES.replace("contains: 18 degrees", "function: eval_scorers_here:polite")
    with pytest.raises(ConfigError, match="may not import; pass --code"):
        read(tmp_path, text)
    assert "eval_scorers_here" not in sys.modules
    assert read(tmp_path, text, code=True).cases[0].id == "lima"
    with pytest.raises(ConfigError, match=r"'lima': module 'eval_scorers_here' has no attribute 'rude'"):
        read(tmp_path, text.replace(":polite", ":rude"), code=True)
    with pytest.raises(ConfigError, match=r"'lima': no installed module 'missing_module'"):
        read(tmp_path, text.replace("eval_scorers_here:", "missing_module:"), code=True)


def test_python_file_defines_a_suite(tmp_path: Path) -> None:
    text = (
        "from atlas_agents import Agent\n"
        "from atlas_agents.evaluation import Case, Suite\n"
        "def short(outcome): return len(outcome.answer) < 9\n"
        "case = Case(id='a', input='Hi', expect={'function': short})\n"
        "suite = Suite('mine', cases=[case], agents=[Agent('bot', model='fake/one')])\n"
    )
    suite = read(tmp_path, text, name="cases.py")
    assert (suite.name, suite.cases[0].id, suite.agents[0].id) == ("mine", "a", "bot")
    with pytest.raises(ConfigError, match="expected a variable `suite` with a Suite, got NoneType"):
        read(tmp_path, "x = 1", name="cases.py")
    with pytest.raises(ConfigError, match=r"the file raised ZeroDivisionError"):
        read(tmp_path, "1 / 0", name="cases.py")
    with pytest.raises(ConfigError, match=r"the file raised SystemExit: 0"):
        read(tmp_path, "import sys; sys.exit(0)", name="cases.py")
    with pytest.raises(ConfigError, match="cannot read the case file"):
        read_suite(tmp_path / "missing.py")


async def test_case_of_a_stored_run_has_no_password_of_its_calls() -> None:
    password, known = "tiger-Wq7-lake-93", "correct-horse-Zx81"

    def login(user: str, password: str) -> str:
        return "ok"

    parameters = {"user": {"type": "string"}, "password": {"type": "string"}}
    tool = Tool("login", login, parameters=parameters, effect="pure", in_process=True)
    replies = calls("login", user="ann", password=password), says(f"I used {password} and {known}")
    store = MemoryStore()
    await store.open()
    async with Atlas([Agent("bot", model=Scripted(*replies), tools=[tool])], store=store) as atlas:
        await atlas.ask(f"log in with {password}", session="s")
        (run,) = await store.runs("default", "s")
        case = await case_from_run(store, "default", run.id, secrets=[Secret(known)])
    await store.close()
    assert case["input"].startswith("log in with ") and case["reference"].startswith("I used ")
    assert case["expect"]["tool_calls"][0]["arguments"]["user"] == "ann"
    assert password not in str(case) and known not in str(case)


def test_case_is_added_to_the_file_behind_a_link_whose_permissions_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "shared.yaml", tmp_path / "cases.yaml"
    real.write_text("cases:\n  - {id: a, input: Hi, expect: {contains: x}}\n")
    real.chmod(0o640)
    link.symlink_to(real)
    add_case(link, {"id": "b", "input": "Ho", "expect": {"contains": "y"}})
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o640
    assert [case.id for case in read_suite(real).cases] == ["a", "b"]
    add_case(tmp_path / "new.yaml", {"id": "c", "input": "Ho", "expect": {"contains": "y"}})
    assert (tmp_path / "new.yaml").stat().st_mode & 0o777 == 0o600
