"""Who is asked about a command, what they see, and that nothing else is run than what they saw (S20 to S32)."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest
from calling_tools import Person, call

from atlas_agents import Actor, Answer, Approvals, Atlas, ConfigError, Policy, Question, Tool, ToolResult, Verdict
from atlas_agents.builtin_tools.bash import bash_tool
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says
from checks import until

YES = Policy(tools={"bash": {"*": "yes"}})
ECHO = Policy(tools={"bash": {"*": "yes"}}, commands=[{"argv": ["echo", "**"]}, {"argv": ["git", "status"]}])


def free(folder: Path, **given: Any) -> Tool:
    """Without a sandbox, by the settings: whatever got through would be seen."""
    return bash_tool(folder, sandbox="none", **given)


def recorder(folder: Path, name: str = "recorder") -> Path:
    """A program that leaves a mark each time it runs."""
    made = folder / name
    made.write_text(f"#!/bin/sh\necho ran >> {folder}/marks\n")
    made.chmod(0o755)
    return made


def marks(folder: Path) -> int:
    file = folder / "marks"
    return len(file.read_text().splitlines()) if file.exists() else 0


# Rules speak argv (S20, S21, S29)

CORPUS = [
    *("echo x; touch canary", "echo x && touch canary", "echo x || touch canary", "echo x | tee canary"),
    *("echo x & touch canary", "echo x\ntouch canary", "echo x\rtouch canary", "echo $(touch canary)"),
    *("echo `touch canary`", "echo ${IFS}x; touch${IFS}canary", "echo <(touch canary)", "echo x >(touch canary)"),
    *("echo $'x'; touch canary", "echo $'\\x3b' canary", "echo {a,b} > canary", "echo ~ > canary", "echo * > canary"),
    *("echo x \\\n; touch canary", "echo x > canary", "echo x >> canary", "echo x >| canary", "echo x &> canary"),
    *('echo "$(touch canary)"', 'echo "`touch canary`"', "echo $\\\n(touch canary)", 'echo "x"; touch canary; echo "'),
    *("cat <<EOF\n$(touch canary)\nEOF", "cat <<'EOF'\nx\nEOF\ntouch canary", "cat <<< $(touch canary)"),
    *(
        "echo x # comment\ntouch canary",
        "! echo x; touch canary",
        "(echo x; touch canary)",
        "{ echo x; touch canary; }",
    ),
    *("echo() { touch canary; }; echo", "A=1 touch canary", "eval 'touch canary'", "exec touch canary"),
    *("command touch canary", ". ./script", "echo $((1)); touch canary", "coproc touch canary", "time touch canary"),
    *(
        "if true; then touch canary; fi",
        "for i in x; do touch canary; done",
        "echo x\x0btouch canary",
        "echo x;touch\tcanary",
    ),
    *(
        "echo [a] > canary",
        "echo ?; touch canary",
        "echo !touch",
        "echo x\u2028touch canary",
        "echo\u00a0x; touch canary",
    ),
]


@pytest.mark.parametrize("command", CORPUS)
async def test_a_rule_for_echo_allows_nothing_that_a_shell_would_act_on(command: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text("touch canary")
    person = Person(False)
    result = await call([free(tmp_path)], "bash", person, ECHO, command=command)
    assert result.error == "declined" and len(person.questions) == 1
    assert sorted(os.listdir(tmp_path)) == ["script"]


def test_the_corpus_is_large_enough() -> None:
    assert len(set(CORPUS)) >= 40


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ({"command": "echo hello 'wide  world'"}, "hello wide  world"),
        ({"argv": ["echo", "$(x)", ";", "`y`"]}, "$(x) ; `y`"),
        ({"command": "echo '$(touch canary)'"}, "$(touch canary)"),
    ],
)
async def test_a_plain_command_that_a_rule_knows_runs_unasked(
    arguments: dict[str, Any], output: str, tmp_path: Path
) -> None:
    person = Person(False)
    result = await call([free(tmp_path)], "bash", person, ECHO, **arguments)
    assert str(result.result).startswith(f"{output}\n[exit code 0")
    assert person.questions == [] and os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("rule", "argv", "fits"),
    [
        (["git", "status"], ["git", "status"], True),
        (["git", "status"], ["git", "status", "-s"], False),
        (["git", "status"], ["git"], False),
        (["git", "*"], ["git", "log"], True),
        (["git", "*"], ["git", "log", "-p"], False),
        (["git", "log", "**"], ["git", "log"], True),
        (["git", "log", "**"], ["git", "log", "-p", "x"], True),
        (["git", "log", "**"], ["git", "-c", "x", "log"], False),
        (["git", "log", "**"], ["./git", "log"], False),
        (["git", "log", "**"], ["git ", "log"], False),
        (["git", "log", "**"], ["Git", "log"], False),
        (["ls", "*", "-l"], ["ls", "*", "-l"], True),
    ],
)
async def test_rules_are_about_whole_words(rule: list[str], argv: list[str], fits: bool, tmp_path: Path) -> None:
    policy = Policy(tools={"bash": {"*": "ask"}}, commands=[{"argv": rule}])
    person = Person(False)
    await call([free(tmp_path)], "bash", person, policy, argv=argv)
    known = argv[0] in ("git", "ls")
    assert len(person.questions) == (known and not fits)  # of what is no program here nobody is asked


async def test_a_rule_is_for_those_whom_it_names(tmp_path: Path) -> None:
    for who, asked in ((["assistant"], 0), (["editors"], 0), (["ben"], 1)):
        policy = Policy(
            tools={"bash": {"*": "ask"}}, groups={"editors": ["assistant"]}, commands=[{"argv": ["true"], "who": who}]
        )
        person = Person(False)
        await call([free(tmp_path)], "bash", person, policy, argv=["true"])
        assert len(person.questions) == asked


def test_rules_stand_in_a_policy_file() -> None:
    policy = Policy.load(Path(__file__).parents[2] / "docs/examples/commands.toml")
    ben, tester = Actor("ben"), Actor("tia", "tester")
    assert policy.command(["git", "status", "--short"], ben) == Verdict(
        "yes", "commands.toml: commands[1], git status --short"
    )
    assert policy.command(["wc", "-l", "a b"], ben) and not policy.command(["wc", "-l", "a", "b"], ben)
    assert policy.command(["pytest", "-x"], tester) and not policy.command(["pytest", "-x"], ben)
    assert policy.version != Policy(tools={"bash": {"*": "ask"}}).version


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("commands = 3", "commands must be a list of tables"),
        ("[[commands]]\nwho = ['x']", "commands[1]: expected argv"),
        ("[[commands]]\nargv = 'git status'", "commands[1]: expected argv"),
        ("[[commands]]\nargv = []", "argv must start with the name of a program"),
        ("[[commands]]\nargv = ['*', 'x']", "argv must start with the name of a program"),
        ("[[commands]]\nargv = ['git', '**', 'x']", "** must be the last element"),
        ("[[commands]]\nargv = ['git']\nagents = ['x']", "unknown key 'agents'"),
    ],
)
def test_a_wrong_rule_is_named(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        Policy.load(tmp_path / "policy.toml")


async def test_a_rule_does_not_help_who_is_denied(tmp_path: Path) -> None:
    policy = Policy(tools={"bash": {"*": "no"}}, commands=[{"argv": ["true"]}])
    assert (await call([free(tmp_path)], "bash", None, policy, argv=["true"])).error == "not_permitted"


async def test_a_rule_that_is_taken_back_before_the_command_starts_does_not_count(tmp_path: Path) -> None:
    tool = free(tmp_path)
    words = tool.argv
    assert words is not None
    model = Scripted(calls("bash", argv=[str(recorder(tmp_path))]), says("ok"))
    rule = Policy(tools={"bash": {"*": "yes"}}, commands=[{"argv": [str(tmp_path / "recorder")]}])
    async with in_memory_atlas(model, [tool], policy=rule) as atlas:

        async def once(arguments: dict[str, Any]) -> Any:
            found = await words(arguments)
            atlas.policy = YES  # from now on
            return found

        tool.argv = once
        await atlas.ask("go")
    assert marks(tmp_path) == 0


# What is shown (S24)


@pytest.mark.parametrize("name", ["ls ", "ls\u00a0", "l\u200bs", "\u202els", "ls\t"])
async def test_a_program_with_an_odd_name_is_another_program(name: str, tmp_path: Path) -> None:
    policy = Policy(tools={"bash": {"*": "ask"}}, commands=[{"argv": ["ls", "**"]}])
    result = await call([free(tmp_path)], "bash", Person(), policy, argv=[name])
    assert result.error == "failed" and "there is no program" in str(result.result)
    recorder(tmp_path, name)
    person = Person(False)
    await call([free(tmp_path)], "bash", person, policy, argv=[f"./{name}"])
    assert person.questions[0].arguments == {"argv": [f"./{name}"]}
    assert person.questions[0].facts["argv"] == [f"./{name}"]


async def test_the_question_says_how_where_and_in_what_it_runs(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    person = Person(False)
    await call([bash_tool(tmp_path)], "bash", person, YES, command="ls -l", cwd="sub", timeout=5)
    await call([free(tmp_path)], "bash", person, YES, command="ls | wc")
    held, loose = (question.preview for question in person.questions)
    assert held.split("\n")[-1] == "ls -l" and "without a shell" in held
    assert f"in {tmp_path}/sub, for at most 5 s" in held and "confined by" in held and "no network" in held
    assert loose.endswith("/bash:\n\nls | wc") and loose.startswith("NOT CONFINED, as the settings say")


async def test_no_command_is_so_long_that_it_hides_what_is_said_of_it(tmp_path: Path) -> None:
    person = Person(False)
    await call([free(tmp_path)], "bash", person, YES, argv=["echo", "'" * 9000])
    assert "NOT CONFINED" in person.questions[0].preview and "not shown" in person.questions[0].preview


async def test_where_nothing_confines_a_command_that_is_said_and_no_rule_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas_agents.builtin_tools.sandbox.choose._PROBES", {})
    monkeypatch.setattr("atlas_agents.builtin_tools.sandbox.choose._found", {})
    person = Person()
    result = await call([bash_tool(tmp_path)], "bash", person, ECHO, command="echo hello")
    assert "NOT CONFINED" in person.questions[0].preview
    assert result.status == "ok"
    result = await call([bash_tool(tmp_path, sandbox="bubblewrap")], "bash", person, ECHO, command="echo hello")
    assert result.status == "error" and len(person.questions) == 1  # never less than was asked for


# What a yes is for (S23, S26)


async def test_a_yes_for_good_is_for_the_words_and_not_for_the_shell(tmp_path: Path) -> None:
    first, second = (calls("bash", command=f"sh -c '{words}'") for words in ("ls", "touch canary"))
    asked: list[Any] = []

    def approve(question: Question) -> str:
        asked.append(question.arguments["command"])
        return "always" if len(asked) == 1 else "no"

    async with in_memory_atlas(Scripted(first, first, second, says("ok")), [free(tmp_path)], approve=approve) as atlas:
        await atlas.ask("go")
    assert asked == ["sh -c 'ls'", "sh -c 'touch canary'"] and os.listdir(tmp_path) == []


def swap_content(folder: Path) -> None:
    (folder / "run.sh").write_text("#!/bin/sh\ntouch canary\n")


def swap_file(folder: Path) -> None:
    other = folder / "other"
    other.write_text("#!/bin/sh\ntouch canary\n")
    other.chmod(0o755)
    other.replace(folder / "run.sh")


def swap_link(folder: Path) -> None:
    swap_file(folder)
    (folder / "run.sh").rename(folder / "elsewhere")
    (folder / "run.sh").symlink_to("elsewhere")


@pytest.mark.parametrize("swap", [swap_content, swap_file, swap_link])
@pytest.mark.parametrize(
    "arguments",
    [
        {"argv": ["./run.sh"]},
        {"command": "./run.sh"},
        {"command": "sh run.sh"},
        {"command": "cat x; ./run.sh && true"},
        {"argv": ["bash", "run.sh"]},
    ],
)
async def test_a_script_that_was_swapped_after_the_yes_is_not_run(
    swap: Any, arguments: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    os.chmod(script, 0o755)
    person = Person(before=lambda: swap(tmp_path))
    result = await call([free(tmp_path)], "bash", person, YES, **arguments)
    assert result.error == "declined" and not (tmp_path / "canary").exists()


async def test_another_environment_or_folder_than_at_the_yes_is_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = recorder(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to("a")

    def swap() -> None:
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to("b")

    result = await call([free(tmp_path)], "bash", Person(before=swap), YES, argv=[str(here)], cwd="link")
    assert result.error == "declined"
    other = Person(before=lambda: monkeypatch.setenv("PATH", "/usr/bin:/bin:/opt/other"))
    assert (await call([free(tmp_path)], "bash", other, YES, argv=[str(here)])).error == "declined"
    assert marks(tmp_path) == 0


def test_programs_are_not_looked_for_where_the_agent_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder(tmp_path, "git")
    monkeypatch.setenv("PATH", f"{tmp_path}:.:bin:/usr/bin:/bin")
    person = Person(False)
    asyncio.run(call([free(tmp_path)], "bash", person, YES, argv=["git"]))
    assert person.questions[0].facts["program"].startswith("/usr")
    assert person.questions[0].facts["env"]["PATH"] == "/usr/bin:/bin"


# Never without an answer, and never twice (S27, S30, S31, S32)


@pytest.mark.parametrize("answer", [False, None, "no", "maybe", Answer("no"), "ONCE"])
async def test_nothing_runs_without_a_clear_yes(answer: Any, tmp_path: Path) -> None:
    recorder(tmp_path)
    await call([free(tmp_path)], "bash", Person(answer), YES, argv=["./recorder"])
    await call([free(tmp_path)], "bash", None, YES, argv=["./recorder"])  # nobody to ask
    assert marks(tmp_path) == 0


async def test_nothing_runs_when_nobody_answers_or_the_turn_is_given_up(tmp_path: Path) -> None:
    recorder(tmp_path)
    clock, model = VirtualClock(), Scripted(*[calls("bash", argv=["./recorder"]), says("ok")] * 2)
    async with in_memory_atlas(
        model, [free(tmp_path)], clock=clock, approve=Approvals(wait=True, deadline=60)
    ) as atlas:
        stream = atlas.send("go")
        await asked(atlas)
        await clock.advance(61)
        async with asyncio.timeout(10):
            await stream.reply()
        stream = atlas.send("go")
        await asked(atlas)
        stream.cancel()
        async with asyncio.timeout(10):
            async for _ in stream:
                pass
    assert marks(tmp_path) == 0


async def asked(atlas: Atlas) -> list[Question]:
    return await until(atlas.pending)


async def test_an_answer_is_used_once_also_after_a_restart(tmp_path: Path) -> None:
    recorder(tmp_path)
    store = MemoryStore()

    def made(*replies: Any) -> Atlas:
        return in_memory_atlas(Scripted(*replies), [free(tmp_path)], store=store, approve=Approvals(wait=True))

    async with made(calls("bash", argv=["./recorder"])) as atlas:
        stream = atlas.send("go", session="s")
        await stream.accepted()
        await asked(atlas)
    assert marks(tmp_path) == 0
    async with made(says("ok")) as atlas:
        (resumed,) = await atlas.recover()
        pending = await asked(atlas)
        answers = [atlas.answer(pending[0].id, Answer("once", by=name)) for name in ("ana", "ben")]
        told = await asyncio.gather(*answers, return_exceptions=True)
        async with asyncio.timeout(20):
            await resumed.reply()
        assert sum(isinstance(each, Exception) for each in told) == 1
        with pytest.raises(Exception, match=r"already answered|has ended"):
            await atlas.answer(pending[0].id, Answer("once"))
    assert marks(tmp_path) == 1


async def test_a_model_cannot_answer_for_itself(tmp_path: Path) -> None:
    for name in ("approvals.resolve", "approvals__resolve", "exec.approve", "approve"):
        assert (await call([free(tmp_path)], name, None, YES, approval_id="x", decision="once")).error == "not_found"


async def test_deep_and_wrong_arguments_are_refused(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(90):
        deep = [deep]
    for arguments in ({"argv": deep}, {"argv": "ls"}, {"command": ["ls"]}, {"command": "ls", "env": {"A": "1"}}):
        result: ToolResult = await call([free(tmp_path)], "bash", Person(), YES, **arguments)
        assert result.error == "bad_arguments"


async def test_a_model_is_told_that_something_has_changed_since_the_yes(tmp_path: Path) -> None:
    script = recorder(tmp_path)
    person = Person(before=lambda: script.write_text("#!/bin/sh\necho other\n"))
    result = await call([free(tmp_path)], "bash", person, YES, argv=["./recorder"])
    assert result.error == "declined" and "has changed since it was approved" in str(result.result)
