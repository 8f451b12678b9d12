"""`atlas eval`: tables, files for CI, comparison, exit codes, and resuming after a crash."""

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from atlas_command import Home, eventually

pytestmark = pytest.mark.timeout(600)
CASES = """\
name: greetings
agents:
  bot: {system_prompt: Be brief.}
models: [http/rules-1]
cases:
  - {id: hello, tags: [easy], input: Hello, expect: {contains: Hello}}
  - {id: bye, tags: [easy], input: Bye, expect: {exact: 'You wrote: Bye'}}
  - {id: number, input: Two, expect: {contains: ['Two', '2']}}
"""
PASSING = CASES.replace(", '2'", "")
GATE = """\
import asyncio
from pathlib import Path

async def wait_for_file(outcome):
    if not Path("go").exists():
        await asyncio.Event().wait()
    return True
"""
GUARD = """\
from atlas_agents import Interceptor, Refused

def refuse(call):
    raise Refused("the clock is closed")

guard = Interceptor(tool_call=refuse)
"""


def write(home: Home, text: str, name: str = "cases.yaml") -> str:
    home.folder.mkdir(exist_ok=True)
    (home.folder / name).write_text(text)
    return name


def test_table_shows_each_case_and_why_one_failed(home: Home) -> None:
    done = home.run("eval", write(home, CASES))
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["CASE", "HTTP/RULES-1"]
    assert [line.split() for line in lines[1:4]] == [
        ["hello", "passed"],
        ["bye", "passed"],
        ["number", "failed", "0.50"],
    ]
    assert "failed: number (bot http/rules-1): contains: missing '2' in 'You wrote: Two'" in lines
    assert "bot http/rules-1: 2 of 3 passed (67%, 95 % interval 21% to 94%), mean score 0.83" in done.stdout
    assert re.search(r"easy +2 of 2", done.stdout)


def test_exit_code_follows_the_results_and_the_least_score(home: Home) -> None:
    assert home.run("eval", write(home, PASSING)).returncode == 0
    file = write(home, CASES)
    assert home.run("eval", file, "--min-score", "0.8").returncode == 0
    assert home.run("eval", file, "--min-score", "0.9").returncode == 1
    refused = home.run("eval", file, "--min-score", "80")
    assert refused.returncode == 2 and "--min-score must be from 0 to 1, got 80" in refused.stderr


def test_report_and_junit_files_are_written(home: Home) -> None:
    file = write(home, CASES.replace("Bye, expect", '"HTTP 400", expect'))
    done = home.run("eval", file, "--out", "report.json", "--junit", "junit.xml", "--repeat", "2", "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads((home.folder / "report.json").read_text())
    assert (report["columns"][0]["passed"], report["columns"][0]["errors"], report["columns"][0]["results"]) == (
        2,
        2,
        6,
    )
    root = ElementTree.parse(home.folder / "junit.xml").getroot()
    suite = root.find("testsuite")
    assert suite is not None
    assert {name: suite.attrib[name] for name in ("name", "tests", "failures", "errors")} == {
        **{"name": "bot http/rules-1", "tests": "6"},
        **{"failures": "2", "errors": "2"},
    }
    cases = {case.attrib["name"]: case for case in suite}
    assert len(cases["hello"]) == 0 and "hello (repeat 2)" in cases
    failure, error = cases["number"].find("failure"), cases["bye"].find("error")
    assert failure is not None and error is not None
    assert "missing '2'" in failure.attrib["message"] and error.attrib["message"]


def test_comparison_says_what_changed_and_whether_chance_may_explain_it(home: Home) -> None:
    cases = [f"  - {{id: c{n}, input: Word {n}, expect: {{contains: Word}}}}" for n in range(12)]
    start = CASES[: CASES.index("  - {id: hello")]
    file = write(home, start + "\n".join(cases))
    first = home.run("eval", file, "--out", "first.json")
    assert first.returncode == 0, first.stderr
    (id,) = [each["id"] for each in json.loads(home.run("eval", "list", "--json").stdout)]
    same = home.run("eval", file, "--compare", id[:8])
    assert same.returncode == 0, same.stderr
    assert "difference of the mean scores: +0.00, 95 % interval +0.00 to +0.00: the interval includes 0" in same.stdout
    worse = (start + "\n".join(cases)).replace("contains: Word", "contains: Missing", 6)
    compared = home.run("eval", write(home, worse), "--compare", "first.json", "--min-score", "0.1")
    assert compared.returncode == 1
    assert "c0: 1.00 before, 0.00 now" in compared.stdout
    assert re.search(r"mean scores: -0\.50, 95 % interval -0\.\d\d to -0\.\d\d: worse beyond chance", compared.stdout)
    missing = home.run("eval", file, "--compare", "nothing")
    assert missing.returncode == 2 and "evaluation not found: 'nothing'; evaluations: " in missing.stderr


def test_file_without_agents_uses_those_of_the_workspace(home: Home) -> None:
    text = "cases:\n  - {id: a, input: act now, expect: {tool_calls: [demo__act], contains: came out}}\n"
    done = home.run("eval", write(home, text), "--agent", "assistant", "--json")
    (result,) = json.loads(done.stdout)["evaluation"]["results"]
    assert (result["agent"], result["model"]) == ("assistant", "http/rules-1"), done.stderr
    assert result["calls"][0]["status"] == "error" and not (home.folder / "acted").exists()
    assert home.run("sessions", "list").stderr == "There are no sessions.\n"
    unknown = home.run("eval", "cases.yaml", "--agent", "bob")
    assert unknown.returncode == 2 and "unknown agent 'bob'; agents: assistant, poet" in unknown.stderr


def test_agents_of_the_workspace_keep_their_hooks_and_limits(home: Home) -> None:
    file = write(home, "cases:\n  - {id: a, input: 'What time is it?', expect: {tool_calls: [current_time]}}\n")
    package = home.folder / "guards" / "guard_plugin-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: guard-plugin\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[atlas_agents.interceptors]\nguard = eval_guard_plugin:guard\n")
    (package.parent / "eval_guard_plugin.py").write_text(GUARD)
    path = os.pathsep.join([str(home.folder / "plugins"), str(package.parent)])
    for env, expected in (({}, "It came out"), ({"PYTHONPATH": path}, "the clock is closed")):
        done = home.run("eval", file, "--agent", "assistant", "--json", **env)
        (result,) = json.loads(done.stdout)["evaluation"]["results"]
        assert expected in result["answer"], result
        assert (result["calls"][0].get("status", "ok") == "error") == bool(env)
    limited = home.run("eval", file, "--agent", "assistant", ATLAS_BUDGETS="tenant requests=1")
    assert limited.returncode == 1 and "the budget of the tenant of 1 model request" in limited.stderr


def test_budget_stops_the_evaluation_and_a_larger_one_resumes_it(home: Home) -> None:
    file = write(home, PASSING)
    stopped = home.run("eval", file, "--budget", "requests=1", "--parallel", "1")
    assert stopped.returncode == 1 and "stopped after 1 result: " in stopped.stderr
    resumed = home.run("eval", file, "--budget", "requests=5", "--resume", "--json")
    assert resumed.returncode == 0 and len(json.loads(resumed.stdout)["evaluation"]["results"]) == 3
    nothing = home.run("eval", file, "--resume")
    assert nothing.returncode == 2 and "nothing to resume: no evaluation of" in nothing.stderr
    unwritable = home.run("eval", file, "--out", "/proc/nowhere/report.json")
    assert unwritable.returncode == 2 and "cannot write /proc/nowhere/report.json" in unwritable.stderr
    assert "passed" in unwritable.stdout, "the results are shown before they are written"
    bad = home.run("eval", file, "--budget", "euros=1")
    assert bad.returncode == 2 and "unknown budget setting 'euros'" in bad.stderr


@pytest.mark.slow
def test_killed_evaluation_resumes_with_what_is_missing(home: Home) -> None:
    (home.folder / "eval_gate.py").write_text(GATE)
    file = write(home, PASSING + "  - {id: gate, input: Hi, expect: {function: 'eval_gate:wait_for_file'}}\n")
    process = home.start("eval", file, "--parallel", "1", "--code")
    folder = home.path / "evaluations"
    eventually(lambda: any(path.read_bytes().count(b"\n") >= 4 for path in folder.glob("*.jsonl")))
    process.kill()
    process.communicate()
    (path,) = folder.glob("*.jsonl")
    finished = path.read_bytes().count(b"\n") - 1
    assert finished == 3
    (home.folder / "go").touch()
    resumed = home.run("eval", file, "--parallel", "1", "--code", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "4 of 4 passed" in resumed.stdout
    assert path.read_bytes().count(b"\n") == 5 and len(list(folder.glob("*.jsonl"))) == 1


def test_evaluations_are_listed_and_shown(home: Home) -> None:
    assert "There are no evaluations. Run one with: atlas eval FILE" in home.run("eval", "list").stderr
    home.run("eval", write(home, CASES))
    (listed,) = json.loads(home.run("eval", "list", "--json").stdout)
    assert (listed["name"], listed["results"], listed["passed"]) == ("greetings", 3, 2)
    assert "greetings" in home.run("eval", "list").stdout
    shown = home.run("eval", "show", listed["id"][:6])
    assert shown.returncode == 0 and "2 of 3 passed" in shown.stdout


def test_file_of_someone_else_cannot_control_the_terminal(home: Home) -> None:
    escape = "\x1b]0;owned\x07\x1b[31m"
    result = {"case": f"c{escape}", "agent": f"a{escape}", "model": f"m{escape}", "status": "failed"}
    result |= {"scores": [{"name": "exact", "value": 0.0, "passed": False, "reason": escape}], "tags": [f"t{escape}"]}
    evaluation = {"id": f"e{escape}", "name": "n", "file": "f", "started_at": 1, "fingerprint": "x", "agents": ["a"]}
    evaluation |= {"models": [f"m{escape}"], "repeat": 1, "total": 1, "results": [result]}
    (home.folder / "foreign.json").write_text(json.dumps({"evaluation": evaluation}))
    shown = home.run("eval", "show", "foreign.json", "--compare", "foreign.json")
    assert shown.returncode == 0 and "compared with itself" in shown.stdout, shown.stderr
    assert "\x1b" not in shown.stdout + shown.stderr and "\x07" not in shown.stdout + shown.stderr


def test_code_of_a_yaml_file_runs_only_if_allowed(home: Home) -> None:
    (home.folder / "own_eval_scorers.py").write_text("def loud(outcome): return outcome.answer.isupper()\n")
    file = write(home, PASSING.replace("{contains: Hello}", "{function: 'own_eval_scorers:loud'}"))
    refused = home.run("eval", file)
    assert (
        refused.returncode == 2
        and "cases.yaml:6: case 'hello': 'own_eval_scorers:loud' is Python code" in refused.stderr
    )
    allowed = home.run("eval", file, "--code")
    assert allowed.returncode == 1 and "2 of 3 passed" in allowed.stdout


def test_bad_files_and_options_are_named(home: Home) -> None:
    for arguments, expected in (
        (("missing.yaml",), "cannot read the case file missing.yaml: No such file or directory"),
        ((write(home, CASES), "--repeat", "0"), "x>=1"),
        (("cases.yaml", "--model", "gpt"), "'gpt'"),
        (("cases.yaml", "--model", "nowhere/x", "--min-score", "0"), ""),
        (("cases.yaml", "--out", "no/such/folder.json", "--min-score", "0"), "cannot write no/such/folder.json"),
    ):
        done = home.run("eval", *arguments)
        assert expected in done.stderr and "Traceback" not in done.stderr, done
        assert done.returncode == (2 if expected else 0)


def test_python_file_runs(home: Home) -> None:
    text = (
        "from atlas_agents import Agent\nfrom atlas_agents.evaluation import Case, Suite\n"
        "suite = Suite('own', cases=[Case(id='a', input='Hi', expect={'contains': 'Hi'})],"
        " agents=[Agent('bot', model='http/rules-1')])\n"
    )
    done = home.run("eval", write(home, text, "own_cases.py"))
    assert done.returncode == 0 and "1 of 1 passed" in done.stdout


def test_result_files_are_private(home: Home) -> None:
    home.run("eval", write(home, PASSING))
    (path,) = Path(home.path / "evaluations").glob("*.jsonl")
    assert path.stat().st_mode & 0o077 == 0 and path.parent.stat().st_mode & 0o077 == 0


def test_stored_run_becomes_a_case_without_secrets(home: Home) -> None:
    secret = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
    first = json.loads(home.run("ask", f"My key is {secret}", "-s", "one", "--json").stdout)
    second = json.loads(home.run("ask", "What time is it?", "-s", "one", "--json").stdout)
    added = home.run("eval", "add", second["runId"], "--to", "made.yaml")
    assert added.returncode == 0 and "Added case run-" in added.stderr, added.stderr
    text = (home.folder / "made.yaml").read_text()
    assert secret not in text and "current_time" in text and "What time is it?" in text and "reference: " in text
    more = home.run("eval", "add", first["runId"], "--to", "made.yaml", "--id", "key")
    assert more.returncode == 0, more.stderr
    assert (home.folder / "made.yaml").read_text().startswith(text.rstrip())
    done = home.run("eval", "made.yaml", "--agent", "assistant")
    assert "2 of 2 passed" in done.stdout and done.returncode == 0, done.stdout
    twice = home.run("eval", "add", first["runId"], "--to", "made.yaml", "--id", "key")
    assert twice.returncode == 2 and "has a case with the id 'key' already; choose another with --id" in twice.stderr
    missing = home.run("eval", "add", "no-run", "--to", "made.yaml")
    assert missing.returncode == 2 and "run not found: 'no-run'" in missing.stderr
    other = write(home, "cases: []\nname: x\n", "other.yaml")
    refused = home.run("eval", "add", first["runId"], "--to", other)
    assert refused.returncode == 2 and "cannot add to other.yaml" in refused.stderr
    assert (home.folder / other).read_text() == "cases: []\nname: x\n"


def test_case_of_a_stored_run_has_no_secrets_of_the_settings(home: Home) -> None:
    known, key = "correct-horse-Zx81", "stored-key-Qp72-lamp"
    asked = json.loads(home.run("ask", f"Say {known} and {key}", "-s", "one", "--json").stdout)
    (home.folder / "client_secret").write_text(known)
    (home.folder / "client_secret").chmod(0o600)
    (home.path / "secrets.json").write_text(json.dumps({"providers": {"openai": {"key": key}}}))
    (home.path / "secrets.json").chmod(0o600)
    env = {"ATLAS_X_CLIENT_SECRET_FILE": str(home.folder / "client_secret")}
    added = home.run("eval", "add", asked["runId"], "--to", "made.yaml", **env)
    assert added.returncode == 0, added.stderr
    made = (home.folder / "made.yaml").read_text()
    assert "Say " in made and known not in made and key not in made


def test_results_have_no_secrets_of_the_settings(home: Home) -> None:
    known = "correct-horse-Zx81"
    (home.folder / "client_secret").write_text(known)
    (home.folder / "client_secret").chmod(0o600)
    env = {"ATLAS_X_CLIENT_SECRET_FILE": str(home.folder / "client_secret")}
    done = home.run("eval", write(home, CASES.replace("Hello, expect", f"Hello {known}, expect")), "--json", **env)
    (path,) = Path(home.path / "evaluations").glob("*.jsonl")
    assert "You wrote: Hello" in done.stdout and known not in done.stdout and known not in path.read_text()
