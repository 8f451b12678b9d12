"""`atlas serve`: a gateway from one command."""

import json
import signal
import socket
import urllib.request

import pytest
from atlas_command import Home, furnished

from model_server import ModelServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each starts processes of its own


def test_it_says_where_it_listens_who_answers_and_ends_when_told(home: Home) -> None:
    with home.gateway() as gateway:
        assert f"Atlas listens on {gateway.url}.\n" in gateway.said
        assert "assistant answers with http/rules-1\npoet answers with http/rules-2\n" in gateway.said
        assert (home.path / "token").read_text().strip() not in gateway.said, "a log is no place for a token"
        with urllib.request.urlopen(f"{gateway.url}/health", timeout=10) as answer:
            assert json.load(answer)["status"] == "ok"
        assert json.loads((home.path / "running.json").read_text())["url"] == gateway.url
        assert gateway.kill(signal.SIGTERM) == 0
    assert "Traceback" not in gateway.said
    assert not (home.path / "running.json").exists()


def test_in_a_terminal_it_gives_an_address_to_open(home: Home) -> None:
    with home.terminal("serve", columns=200) as person:
        person.see(r"Open http://127\.0\.0\.1:\d+/#token=\S{43}\n(.|\n)*Ctrl-C ends it\.$")
        person.type("\x03")
        assert person.leave() == 0
    assert "Traceback" not in person.text


def test_without_a_key_it_says_who_answers_instead_and_why(bare: Home, server: ModelServer) -> None:
    with bare.gateway("--model", "http/rules-2", OPENAI_BASE_URL=server.url) as gateway:
        assert (
            "assistant answers with http/rules-2 (agent 'assistant': anthropic/claude-opus-4-6 cannot answer"
            in gateway.said
        )
        assert bare.run("ask", "Hello", OPENAI_BASE_URL=server.url).stdout == "You said: Hello\n"


def test_without_anything_a_demo_answers_and_says_so(bare: Home) -> None:
    with bare.gateway() as gateway:
        assert "local/smollm2-135m" in gateway.said
        asked = bare.run("ask", "What time is it?")
        assert asked.returncode == 0
        assert "scripted demo" in asked.stdout + asked.stderr


def test_with_nothing_but_a_registry_a_real_model_answers(bare: Home) -> None:
    """What `make run` ends in: the small model is fetched, and no demo stands in for it."""
    with bare.gateway(PIP_NO_INDEX="", PIP_FIND_LINKS=""):
        bare.patience = 200
        asked = bare.run("ask", "Say one word.")
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.strip()
        assert "scripted demo" not in asked.stdout + asked.stderr
        by_model = bare.run("usage", "--by", "model", "--json")
    assert "smollm2-135m" in by_model.stdout, by_model.stdout + by_model.stderr


def test_a_second_one_in_the_same_home_is_refused_in_one_sentence(home: Home) -> None:
    with home.gateway() as gateway:
        assert gateway.process is not None
        second = home.run("serve")
        assert second.returncode == 2
        assert len(second.stderr.splitlines()) == 1
        assert f"process {gateway.process.pid} at {gateway.url}" in second.stderr


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        (["--port", "99999"], {}, "--port: it must be a whole number from 0 to 65535"),
        (["--host", "not a host"], {}, "--host: 'not a host' is no address to listen on"),
        (["--host", "0.0.0.0"], {"ATLAS_TOKEN": "weak"}, "too weak to listen beyond this machine"),
        (["--policy", "nowhere.toml"], {}, "there is no file"),
        (["--config", "nowhere.toml"], {}, "there is no such settings file"),
        (["--workspace", "/proc/nowhere"], {}, "the workspace cannot be made there"),
        (["--log-level", "loud"], {}, "--log-level: it must be"),
    ],
)
def test_a_wrong_flag_is_one_sentence_and_code_2(
    bare: Home, arguments: list[str], env: dict[str, str], words: str
) -> None:
    done = bare.run("serve", *arguments, **env)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert words in last and last.startswith("atlas: ")
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_one_sentence_and_code_2(home: Home) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = home.run("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "cannot listen on 127.0.0.1" in done.stderr


def test_programs_get_json_lines(home: Home) -> None:
    with home.gateway("--log-format", "json") as gateway:
        gateway.kill(signal.SIGTERM)
    lines = [line for line in gateway.said.splitlines() if line.startswith("{")]
    assert any(json.loads(line)["message"] == "listening" for line in lines)


def test_an_edit_of_the_workspace_counts_without_a_restart(home: Home, server: ModelServer) -> None:
    with home.gateway():
        (home.path / "workspace" / "AGENTS.md").write_text("## gardener\nModel: http/rules-2\n")
        for _ in range(20):
            if [each["id"] for each in json.loads(home.run("agents", "--json").stdout)] == ["gardener"]:
                break
        assert home.run("ask", "Hello").stderr == "gardener answers with http/rules-2\n"


def test_a_home_can_be_named(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> None:
    folder = tmp_path_factory.mktemp("elsewhere")
    home = furnished(tmp_path_factory.mktemp("here"), server)
    with home.gateway("--home", str(folder / "h"), OPENAI_BASE_URL=server.url, ATLAS_MODEL="http/rules-1"):
        assert (folder / "h" / "token").exists()


def test_a_stranger_writes_no_lines_into_the_log(home: Home) -> None:
    with home.gateway() as gateway:
        words = b"x\x1b[2K\rapproved \xe2\x80\xae" + b"y" * 8000
        request = b"GET / HTTP/1.1\r\nHost: evil.example\r\nUser-Agent: " + words.replace(b"\r", b"") + b"\r\n\r\n"
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as line:
            line.sendall(request)
            line.recv(4096)
        gateway.kill(signal.SIGTERM)
    (refused,) = [line for line in gateway.said.splitlines() if "refused" in line]
    assert "evil.example" in refused
    assert len(refused) < 1500
    assert not {"\x1b", "\u202e"} & set(refused)
