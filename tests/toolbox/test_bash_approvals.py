"""Approval of commands: rules, the preview, and that only the approved command runs (S20 to S32)."""

import asyncio
import json
import os
import re
import shlex
import shutil
import string
import subprocess
from pathlib import Path
from typing import Any

import pytest
from calling_tools import Person, call

from atlas_agents import Actor, Answer, Approvals, Atlas, ConfigError, Policy, Question, Tool, ToolResult, Verdict
from atlas_agents.builtin_tools.bash import bash_tool
from atlas_agents.builtin_tools.sandbox import SandboxKind
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says
from atlas_agents.tools.commands import WILDCARD_PROGRAMS
from checks import TIMEOUT, linux_only, wait_until

YES = Policy(tools={"bash": {"*": "yes"}})
ECHO = Policy(tools={"bash": {"*": "yes"}}, commands=[{"argv": ["echo", "**"]}, {"argv": ["git", "status"]}])

UNCONFINED = "No sandbox: this command can read and write everything your user account can, and use the network."


def unconfined_bash(folder: Path, **options: Any) -> Tool:
    """Create the tool without a sandbox, so that every effect of a command is visible."""
    return bash_tool(folder, sandbox="none", **options)


def recorder(folder: Path, name: str = "recorder") -> Path:
    """Create a program that appends a line to `marks` each time it runs."""
    made = folder / name
    made.write_text(f"#!/bin/sh\necho ran >> {folder}/marks\n")
    made.chmod(0o755)
    return made


def marks(folder: Path) -> int:
    file = folder / "marks"
    return len(file.read_text().splitlines()) if file.exists() else 0


# Command rules match argv (S20, S21, S29)

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
async def test_echo_rule_does_not_allow_shell_syntax(command: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text("touch canary")
    person = Person(False)
    result = await call([unconfined_bash(tmp_path)], "bash", person, ECHO, command=command)
    assert result.error == "declined" and len(person.questions) == 1
    assert sorted(os.listdir(tmp_path)) == ["script"]


def test_corpus_is_large_enough() -> None:
    assert len(set(CORPUS)) >= 40


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ({"command": "echo hello 'wide  world'"}, "hello wide  world"),
        ({"argv": ["echo", "$(x)", ";", "`y`"]}, "$(x) ; `y`"),
        ({"command": "echo '$(touch canary)'"}, "$(touch canary)"),
    ],
)
async def test_plain_command_that_matches_a_rule_runs_without_approval(
    arguments: dict[str, Any], output: str, tmp_path: Path
) -> None:
    person = Person(False)
    result = await call([unconfined_bash(tmp_path)], "bash", person, ECHO, **arguments)
    assert str(result.result).startswith(f"{output}\n[exit code 0")
    assert person.questions == [] and os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("rule", "argv", "fits"),
    [
        (["git", "status"], ["git", "status"], True),
        (["git", "status"], ["git", "status", "-s"], False),
        (["git", "status"], ["git"], False),
        (["git", "status"], ["git", "-c", "x", "status"], False),
        (["ls", "*"], ["ls", "-l"], True),
        (["ls", "*"], ["ls", "-l", "-a"], False),
        (["ls", "-l", "**"], ["ls", "-l"], True),
        (["ls", "-l", "**"], ["ls", "-l", "-a", "."], True),
        (["ls", "-l", "**"], ["ls", "-a", "-l"], False),
        (["ls", "-l", "**"], ["./ls", "-l"], False),
        (["ls", "-l", "**"], ["ls ", "-l"], False),
        (["ls", "-l", "**"], ["Ls", "-l"], False),
        (["ls", "*", "-l"], ["ls", "*", "-l"], True),
    ],
)
async def test_rule_matches_whole_arguments(rule: list[str], argv: list[str], fits: bool, tmp_path: Path) -> None:
    policy = Policy(tools={"bash": {"*": "ask"}}, commands=[{"argv": rule}])
    person = Person(False)
    await call([unconfined_bash(tmp_path)], "bash", person, policy, argv=argv)
    known = argv[0] in ("git", "ls")
    assert len(person.questions) == (known and not fits)  # an unknown program fails before anyone is asked


async def test_rule_applies_only_to_the_named_agents(tmp_path: Path) -> None:
    for who, asked in ((["assistant"], 0), (["editors"], 0), (["ben"], 1)):
        policy = Policy(
            tools={"bash": {"*": "ask"}}, groups={"editors": ["assistant"]}, commands=[{"argv": ["true"], "who": who}]
        )
        person = Person(False)
        await call([unconfined_bash(tmp_path)], "bash", person, policy, argv=["true"])
        assert len(person.questions) == asked


def test_rules_are_loaded_from_a_policy_file() -> None:
    policy = Policy.load(Path(__file__).parents[2] / "docs/examples/commands.toml")
    ben, tester = Actor("ben"), Actor("tia", "tester")
    assert policy.command(["git", "status", "--short"], ben) == Verdict(
        "yes", "commands.toml: commands[1], git status --short"
    )
    assert policy.command(["wc", "-l", "a b"], ben) and not policy.command(["wc", "-l", "a", "b"], ben)
    assert policy.command(["pytest", "-q"], tester) and not policy.command(["pytest", "-q"], ben)
    assert not policy.command(["pytest", "-q", "-p", "x"], tester)
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
def test_invalid_rule_is_reported(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        Policy.load(tmp_path / "policy.toml")


# Wildcards are only for programs that run no other program and write no file (16.7)

ANY_PROGRAM = [
    *(["python3", "**"], ["python3.11", "*"], ["/usr/bin/python3", "-u", "**"], ["python3", "-c", "*"]),
    *(
        ["python3", "-W", "ignore", "**"],
        ["python3", "-m", "timeit", "**"],
        ["python3", "-m", "**"],
        ["python3-dbg", "**"],
        ["python3.13t", "*"],
        ["Python3", "**"],
    ),
    *(["env", "**"], ["env", "-S", "*"], ["env", "A=1", "**"], ["env", "-i", "python3", "**"], ["env", "-u", "A", "*"]),
    *(["git", "**"], ["git", "-c", "*", "log"], ["git", "-C", "sub", "**"], ["git", "config", "**"], ["git", "*", "*"]),
    *(["git", "bisect", "**"], ["git", "submodule", "**"], ["git", "rebase", "**"], ["git", "difftool", "**"]),
    *(["git", "fetch", "**"], ["git", "push", "--receive-pack", "*", "origin"], ["git", "clone", "**"]),
    *(["timeout", "**"], ["timeout", "*", "ls"], ["timeout", "60", "**"], ["timeout", "-s", "KILL", "60", "**"]),
    *(["timeout", "60", "env", "nice", "**"], ["nice", "**"], ["nice", "-n", "5", "sh", "**"], ["nohup", "**"]),
    *(["find", ".", "-exec", "*", ";"], ["find", ".", "-execdir", "**"], ["fd", "-x", "**"], ["rg", "--pre", "*"]),
    *(["xargs", "**"], ["sudo", "**"], ["setsid", "*"], ["stdbuf", "-o", "L", "**"], ["ssh", "**"], ["docker", "**"]),
    *(["tar", "**"], ["tar", "-xf", "a.tar", "-I", "*"], ["tar", "--checkpoint-action", "*"], ["sed", "**"]),
    *(["sed", "-n", "*"], ["sed", "-e", "*", "a"], ["awk", "**"], ["awk", "-F", ",", "*"], ["sed", "-l", "5", "**"]),
    *(["perl", "**"], ["perl", "-e", "*"], ["ruby", "*"], ["node", "-e", "*"], ["node", "**"], ["php", "-r", "*"]),
    *(["make", "**"], ["make", "*"], ["npm", "run", "*"], ["npx", "**"], ["uvx", "*"], ["vim", "*"], ["less", "**"]),
    *(["man", "*"], ["busybox", "**"], ["watch", "**"], ["parallel", "**"], ["strace", "**"], ["sh", "-c", "*"]),
    *(
        ["mksh", "-c", "*"],
        ["rbash", "**"],
        ["toybox", "**"],
        ["gfind", ".", "-exec", "*"],
        ["genv", "**"],
        ["gxargs", "**"],
    ),
    *(
        ["gtimeout", "60", "**"],
        ["gtar", "**"],
        ["gsed", "**"],
        ["bsdtar", "**"],
        ["nm", "**"],
        ["objdump", "--plugin", "*"],
    ),
    *(["x86_64-linux-gnu-gcc-12", "**"], ["ldd", "*"], ["xvfb-run", "**"], ["numactl", "**"], ["gosu", "ana", "**"]),
    *(["groff", "**"], ["gs", "**"], ["vim.gtk3", "*"], ["wasmtime", "**"], ["arch", "-x86_64", "**"], ["gpg", "**"]),
    *(["bash", "**"], ["bash", "-x", "**"], ["pip3", "**"], ["sqlite3", "**"], ["rsync", "**"], ["gcc-12", "**"]),
    *(["find", "**"], ["git", "*"], ["git", "log", "**"], ["git", "commit", "-m", "*"], ["git", "push", "origin", "*"]),
    *(["sort", "**"], ["uniq", "*"], ["diff", "**"], ["fd", "**"], ["rg", "**"], ["tar", "-tf", "*"], ["tee", "*"]),
    *(["sed", "-n", "1p", "*"], ["awk", "{print $1}", "**"], ["date", "**"], ["file", "*"], ["tree", "**"]),
    *(["python3", "build.py", "**"], ["python3", "-m", "pytest", "**"], ["bash", "run.sh", "*"], ["pytest", "**"]),
    *(["timeout", "60", "ls", "**"], ["env", "A=1", "ls", "*"], ["./run.sh", "**"], ["./ls", "**"], ["/bin/ls", "**"]),
    *(["LS", "**"], ["ls ", "**"], ["ls2", "**"], ["cat.sh", "*"], ["unknown-program", "**"], ["x", "*", "y"]),
]


@pytest.mark.parametrize("rule", ANY_PROGRAM, ids=" ".join)
def test_rule_that_would_allow_every_program_is_refused(rule: list[str], tmp_path: Path) -> None:
    message = r"commands\[1\]: .* has a wildcard, but .* may run other programs .*Write a rule for each whole command"
    with pytest.raises(ConfigError, match=message):
        Policy(commands=[{"argv": rule}])
    (tmp_path / "policy.toml").write_text(f"[[commands]]\nargv = {json.dumps(rule)}\n")
    with pytest.raises(ConfigError, match=f"policy.toml: {message}"):
        Policy.load(tmp_path / "policy.toml")


@pytest.mark.parametrize("rule", ANY_PROGRAM, ids=" ".join)
def test_whole_command_of_any_program_is_allowed_and_nothing_else(rule: list[str]) -> None:
    argv = [{"*": "x", "**": "y"}.get(word, word) for word in rule]
    policy = Policy(commands=[{"argv": argv}])
    assert policy.command(argv, Actor("a"))
    others = [argv[:-1], [*argv, "-x"], [*argv[:-1], f"{argv[-1]} "], [f"./{argv[0]}", *argv[1:]]]
    assert [other for other in others if policy.command(other, Actor("a"))] == []


OPTIONS = [f"-{letter}" for letter in string.ascii_letters]
ENDLESS = {"tail": {"-f", "-F", "--follow", "--retry"}}


def effects(program: str, folder: Path) -> list[str]:
    """Run a program with each of its options and with names of files, and return the files that appear or change."""
    folder.mkdir()
    recorder(folder)
    (folder / "in").write_text("2\n1\n1\n")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    found = subprocess.run([program, "--help"], capture_output=True, stdin=subprocess.DEVNULL, text=True, check=False)
    named = sorted(set(re.findall(r"--[a-z][a-z0-9-]+", found.stdout)))
    commands = [["in", "out"], ["./recorder", "in"], ["in", "./recorder"]]
    for option in (each for each in (*OPTIONS, *named) if each not in ENDLESS.get(program, ())):
        joined = f"{option}=" if option.startswith("--") else option
        commands += [[f"{joined}out", "in"], [option, "./recorder", "in"]]
    lines = [shlex.join(["command", program, *arguments]) for arguments in commands]
    script = "".join(f"{line} </dev/null >/dev/null 2>&1\n" for line in lines)
    subprocess.run(["sh"], input=script, text=True, cwd=folder, check=False, timeout=TIMEOUT)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    return sorted({name for name, _ in before.items() ^ after.items()})


@pytest.mark.parametrize("program", WILDCARD_PROGRAMS)
def test_program_with_wildcards_has_no_option_that_runs_a_program_or_writes(program: str, tmp_path: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    assert effects(program, tmp_path / "work") == []
    assert Policy(commands=[{"argv": [program, "**"]}]).command([program, "-x", "y"], Actor("a"))


@pytest.mark.parametrize(
    ("program", "effect"), [("sort", "out"), ("uniq", "out"), ("touch", "out"), ("env", "marks"), ("sed", "marks")]
)
def test_effects_of_other_programs_are_found(program: str, effect: str, tmp_path: Path) -> None:
    assert effect in effects(program, tmp_path / "work")


def test_guide_names_the_programs_with_wildcards() -> None:
    guide = (Path(__file__).parents[2] / "docs/guide/shell.md").read_text()
    paragraph = guide.partition("**Wildcards are for programs")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"`(\w+)`", paragraph)) == WILDCARD_PROGRAMS


async def test_option_that_runs_a_program_asks(tmp_path: Path) -> None:
    policy = Policy(tools={"bash": {"*": "yes"}}, commands=[{"argv": ["find", "."]}])
    person = Person(False)
    for argv in (["find", "."], ["find", ".", "-exec", "touch", "canary", ";"]):
        await call([unconfined_bash(tmp_path)], "bash", person, policy, argv=argv)
    assert len(person.questions) == 1 and os.listdir(tmp_path) == []


@linux_only
@pytest.mark.parametrize("sandbox", ["none", "auto"])
async def test_git_ignores_the_settings_of_a_folder_that_looks_like_a_repository(sandbox: Any, tmp_path: Path) -> None:
    fake = tmp_path / "data"
    for name in ("objects", "refs"):
        (fake / name).mkdir(parents=True)
    (fake / "HEAD").write_text("ref: refs/heads/main\n")
    (fake / "config").write_text(
        f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = {tmp_path}\n"
        f'\tfsmonitor = "touch {tmp_path}/canary; false"\n'
    )
    policy = Policy(tools={"bash": {"*": "yes"}}, commands=[{"argv": ["git", "status"]}])
    result = await call(
        [bash_tool(tmp_path, sandbox=sandbox)], "bash", None, policy, argv=["git", "status"], cwd="data"
    )
    assert "bare repository" in str(result.result) and not (tmp_path / "canary").exists()


async def test_rule_does_not_override_a_denial(tmp_path: Path) -> None:
    policy = Policy(tools={"bash": {"*": "no"}}, commands=[{"argv": ["true"]}])
    assert (await call([unconfined_bash(tmp_path)], "bash", None, policy, argv=["true"])).error == "not_permitted"


async def test_rule_removed_before_the_command_starts_does_not_apply(tmp_path: Path) -> None:
    tool = unconfined_bash(tmp_path)
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


# The approval request (S24)


@pytest.mark.parametrize("name", ["ls ", "ls\u00a0", "l\u200bs", "\u202els", "ls\t"])
async def test_program_with_invisible_characters_is_another_program(name: str, tmp_path: Path) -> None:
    policy = Policy(tools={"bash": {"*": "ask"}}, commands=[{"argv": ["ls", "**"]}])
    result = await call([unconfined_bash(tmp_path)], "bash", Person(), policy, argv=[name])
    assert result.error == "failed" and "program not found" in str(result.result)
    recorder(tmp_path, name)
    person = Person(False)
    await call([unconfined_bash(tmp_path)], "bash", person, policy, argv=[f"./{name}"])
    assert person.questions[0].arguments == {"argv": [f"./{name}"]}
    assert person.questions[0].facts["argv"] == [f"./{name}"]


@linux_only
async def test_preview_describes_sandbox_folder_timeout_and_program(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    person = Person(False)
    await call([bash_tool(tmp_path)], "bash", person, YES, command="ls -l", cwd="sub", timeout=5)
    await call([unconfined_bash(tmp_path)], "bash", person, YES, command="ls | wc")
    confined, unconfined = (question.preview for question in person.questions)
    sandbox = r"Sandbox: (Bubblewrap|Landlock) \(no network; can write only to "
    assert re.match(sandbox + re.escape(f"{tmp_path}; can read only there and"), confined)
    assert f"\nFolder: {tmp_path}/sub\nTimeout: 5 s\nProgram: /" in confined
    assert confined.endswith(" (without a shell)\n\nls -l")
    assert unconfined.startswith(f"{UNCONFINED}\nReason: the sandbox is set to 'none'.\n")
    assert unconfined.endswith("/bash\n\nls | wc") and "\nShell: /" in unconfined


async def test_long_command_does_not_hide_the_sandbox_line(tmp_path: Path) -> None:
    person = Person(False)
    await call([unconfined_bash(tmp_path)], "bash", person, YES, argv=["echo", "'" * 9000])
    assert UNCONFINED in person.questions[0].preview and "not shown" in person.questions[0].preview


@pytest.mark.parametrize("kind", ["auto", "bubblewrap"])
async def test_command_does_not_run_without_a_sandbox_even_if_a_rule_allows_it(
    kind: SandboxKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas_agents.builtin_tools.sandbox._PROBES", {})
    person = Person()
    for arguments in ({"command": "echo hello > made"}, {"argv": ["echo", "hello"]}):
        result = await call([bash_tool(tmp_path, sandbox=kind)], "bash", person, ECHO, **arguments)
        assert (result.status, person.questions) == ("error", [])
        assert "no sandbox available: bubblewrap and Landlock need Linux" in str(result.result)
    assert not (tmp_path / "made").exists()


# What an approval covers (S23, S26)


async def test_permanent_approval_covers_the_arguments_not_the_shell(tmp_path: Path) -> None:
    first, second = (calls("bash", command=f"sh -c '{words}'") for words in ("ls", "touch canary"))
    asked: list[Any] = []

    def approve(question: Question) -> str:
        asked.append(question.arguments["command"])
        return "always" if len(asked) == 1 else "no"

    async with in_memory_atlas(
        Scripted(first, first, second, says("ok")), [unconfined_bash(tmp_path)], approve=approve
    ) as atlas:
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
        {"argv": ["sh", "-c", ". ./run.sh"]},
        {"command": "sh -c '. ./run.sh'"},
        {"command": "bash -c 'source run.sh'"},
        {"argv": ["bash", "-c", "true && bash ./run.sh"]},
        {"argv": ["bash", "-c", "cat < run.sh | sh"]},
        {"argv": ["env", "sh", "-c", "sh -c 'sh ./run.sh'"]},
        {"argv": ["sh", "-c", '. "./ru"n.sh']},
        {"argv": ["sh", "-c", ". ./ru*.sh"]},
        {"argv": ["python3", "-c", "import os; os.system(open('run.sh').read())"]},
        {"argv": ["timeout", "9", "sh", "run.sh"]},
        {"argv": ["sh", "-c", "a=1 b=2;" * 40 + ". ./run.sh"]},
        {"argv": ["sh", "-c", "X=run; . ./$X.sh"]},
        {"argv": ["bash", "-c", "for i in ./{run,x}.sh; do . $i; done"]},
        {"argv": ["bash", "-c", ". ./r\\un.sh"]},
        {"command": "ls /usr /bin /etc /lib /tmp /var /proc /sys /dev /opt /srv; . ./run.sh"},
    ],
)
async def test_script_replaced_after_approval_does_not_run(
    swap: Any, arguments: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    os.chmod(script, 0o755)
    person = Person(before=lambda: swap(tmp_path))
    result = await call([unconfined_bash(tmp_path)], "bash", person, YES, **arguments)
    assert result.error == "declined" and not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    ("files", "arguments", "changed"),
    [
        ({"sub/x": ""}, {"command": "cd sub && . ./x"}, "sub/x"),
        ({"sub/x": ""}, {"command": "ls /usr /bin /etc /lib /tmp /var /proc /sys /dev /opt; cd sub && . ./x"}, "sub/x"),
        ({"sub/x": ""}, {"command": "cd sub && X=x && . ./$X"}, "sub/x"),
        ({"a.sh": ". ./b\n", "b": "true\n"}, {"argv": ["sh", "a.sh"]}, "b"),
        ({"a.sh": "sh lib/b.sh\n", "lib/b.sh": "true\n"}, {"command": ". ./a.sh"}, "lib/b.sh"),
        ({"a.py": "import helper\n", "helper.py": ""}, {"argv": ["python3", "a.py"]}, "helper.py"),
        ({"pack/__init__.py": "", "pack/tool.py": ""}, {"argv": ["python3", "-m", "pack.tool"]}, "pack/tool.py"),
        ({"helper.py": ""}, {"argv": ["python3", "-c", "import helper"]}, "helper.py"),
        ({"x.txt": ""}, {"argv": ["python3", "-c", "exec(open('x.txt').read())"]}, "x.txt"),
        ({"Makefile": "all:\n"}, {"argv": ["make"]}, "Makefile"),
        ({"package.json": "{}"}, {"command": "npm test; true"}, "package.json"),
        ({".git/config": ""}, {"argv": ["git", "x"]}, ".git/config"),
        ({".git/config": "", "sub/f": ""}, {"argv": ["git", "x"], "cwd": "sub"}, ".git/config"),
        ({".git/hooks/pre-commit": ""}, {"argv": ["git", "commit"]}, ".git/hooks/pre-commit"),
        (
            {".git/config": "[core]\n\thooksPath = my\n", "my/pre-commit": ""},
            {"command": "git x; true"},
            "my/pre-commit",
        ),
    ],
)
async def test_file_that_the_command_runs_indirectly_is_covered(
    files: dict[str, str], arguments: dict[str, Any], changed: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
        if "pre-commit" in name:
            (tmp_path / name).chmod(0o755)
    person = Person(before=lambda: (tmp_path / changed).write_text("#changed"))
    result = await call([unconfined_bash(tmp_path)], "bash", person, YES, **arguments)
    if arguments.get("argv", [""])[0] == "make" and shutil.which("make") is None:
        assert "program not found" in str(result.result)
    else:
        assert result.error == "declined" and "has changed since it was approved" in str(result.result)


async def test_very_large_script_is_covered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atlas_agents.tools.executed_files._MAX_HASHED", 10)
    (tmp_path / "run.sh").write_text("true # a long comment\n")
    person = Person(before=lambda: swap_content(tmp_path))
    result = await call([unconfined_bash(tmp_path)], "bash", person, YES, argv=["sh", "run.sh"])
    assert result.error == "declined" and not (tmp_path / "canary").exists()


@linux_only
async def test_environment_or_folder_changed_after_approval_is_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = recorder(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to("a")

    def swap() -> None:
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to("b")

    result = await call([unconfined_bash(tmp_path)], "bash", Person(before=swap), YES, argv=[str(program)], cwd="link")
    assert result.error == "declined"
    other = Person(before=lambda: monkeypatch.setenv("PATH", "/usr/bin:/bin:/opt/other"))
    assert (await call([unconfined_bash(tmp_path)], "bash", other, YES, argv=[str(program)])).error == "declined"
    assert marks(tmp_path) == 0


def test_programs_are_not_searched_in_writable_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder(tmp_path, "git")
    monkeypatch.setenv("PATH", f"{tmp_path}:.:bin:/usr/bin:/bin")
    person = Person(False)
    asyncio.run(call([unconfined_bash(tmp_path)], "bash", person, YES, argv=["git"]))
    assert person.questions[0].facts["program"].startswith("/usr")
    assert person.questions[0].facts["env"]["PATH"] == "/usr/bin:/bin"


# No run without an answer, and no answer used twice (S27, S30, S31, S32)


@pytest.mark.parametrize("answer", [False, None, "no", "maybe", Answer("no"), "ONCE"])
async def test_nothing_runs_without_an_approval(answer: Any, tmp_path: Path) -> None:
    recorder(tmp_path)
    await call([unconfined_bash(tmp_path)], "bash", Person(answer), YES, argv=["./recorder"])
    await call([unconfined_bash(tmp_path)], "bash", None, YES, argv=["./recorder"])  # no approver
    assert marks(tmp_path) == 0


async def test_nothing_runs_after_a_deadline_or_a_cancelled_turn(tmp_path: Path) -> None:
    recorder(tmp_path)
    clock, model = VirtualClock(), Scripted(*[calls("bash", argv=["./recorder"]), says("ok")] * 2)
    async with in_memory_atlas(
        model, [unconfined_bash(tmp_path)], clock=clock, approve=Approvals(wait=True, deadline=60)
    ) as atlas:
        stream = atlas.send("go")
        await pending_questions(atlas)
        await clock.advance(61)
        async with asyncio.timeout(TIMEOUT):
            await stream.reply()
        stream = atlas.send("go")
        await pending_questions(atlas)
        stream.cancel()
        async with asyncio.timeout(TIMEOUT):
            async for _ in stream:
                pass
    assert marks(tmp_path) == 0


async def pending_questions(atlas: Atlas) -> list[Question]:
    return await wait_until(atlas.pending)


async def test_answer_is_used_once_also_after_a_restart(tmp_path: Path) -> None:
    recorder(tmp_path)
    store = MemoryStore()

    def made(*replies: Any) -> Atlas:
        return in_memory_atlas(
            Scripted(*replies), [unconfined_bash(tmp_path)], store=store, approve=Approvals(wait=True)
        )

    async with made(calls("bash", argv=["./recorder"])) as atlas:
        stream = atlas.send("go", session="s")
        await stream.accepted()
        await pending_questions(atlas)
    assert marks(tmp_path) == 0
    async with made(says("ok")) as atlas:
        (resumed,) = await atlas.recover()
        pending = await pending_questions(atlas)
        answers = [atlas.answer(pending[0].id, Answer("once", by=name)) for name in ("ana", "ben")]
        results = await asyncio.gather(*answers, return_exceptions=True)
        async with asyncio.timeout(TIMEOUT):
            await resumed.reply()
        assert sum(isinstance(each, Exception) for each in results) == 1
        with pytest.raises(Exception, match=r"already answered|has ended"):
            await atlas.answer(pending[0].id, Answer("once"))
    assert marks(tmp_path) == 1


async def test_model_cannot_approve_its_own_call(tmp_path: Path) -> None:
    for name in ("approvals.resolve", "approvals__resolve", "exec.approve", "approve"):
        assert (
            await call([unconfined_bash(tmp_path)], name, None, YES, approval_id="x", decision="once")
        ).error == "not_found"


async def test_invalid_arguments_are_rejected(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(90):  # pyrefly: ignore[non-convergent-recursion] - deeper each time
        deep = [deep]
    for arguments in ({"argv": deep}, {"argv": "ls"}, {"command": ["ls"]}, {"command": "ls", "env": {"A": "1"}}):
        result: ToolResult = await call([unconfined_bash(tmp_path)], "bash", Person(), YES, **arguments)
        assert result.error == "bad_arguments"


async def test_result_says_that_the_command_changed_after_approval(tmp_path: Path) -> None:
    script = recorder(tmp_path)
    person = Person(before=lambda: script.write_text("#!/bin/sh\necho other\n"))
    result = await call([unconfined_bash(tmp_path)], "bash", person, YES, argv=["./recorder"])
    assert result.error == "declined" and "has changed since it was approved" in str(result.result)
