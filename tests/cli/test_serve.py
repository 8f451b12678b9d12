"""`atlas serve`: run a gateway."""

import contextlib
import json
import signal
import socket
import time
import urllib.request

import pytest
from atlas_command import Home, create_home, eventually

from atlas_agents.cli import connect
from atlas_agents.core.errors import Unreachable
from checks import TIMEOUT
from model_server import ModelServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def agents(home: Home, key: str) -> list[str]:
    return [each[key] for each in json.loads(home.run("agents", "--json").stdout)]


def test_gateway_prints_its_url_and_agents_and_stops_on_sigterm(home: Home) -> None:
    with home.gateway() as gateway:
        assert f"Atlas is listening on {gateway.url}.\n" in gateway.output
        assert "assistant uses http/rules-1\npoet uses http/rules-2\n" in gateway.output
        token = (home.path / "token").read_text().strip()
        assert f"Open {gateway.url}/#token={token}\n" in gateway.output
        assert gateway.output[: gateway.output.index("#token=")].count("\n") <= 6, "the link is easy to find"
        opened = home.run("open", DISPLAY="", WAYLAND_DISPLAY="")
        assert (opened.returncode, opened.stdout) == (0, f"{gateway.url}/#token={token}\n")
        with urllib.request.urlopen(f"{gateway.url}/health", timeout=TIMEOUT) as answer:
            assert json.load(answer)["status"] == "ok"
        assert json.loads((home.path / "running.json").read_text())["url"] == gateway.url
        assert gateway.kill(signal.SIGTERM) == 0
    assert "Traceback" not in gateway.output
    assert gateway.output.endswith("The gateway has stopped.\n")
    assert not (home.path / "running.json").exists()
    assert home.run("open").stderr == "atlas: no gateway is running; start it with: atlas serve\n"


def test_token_can_be_kept_out_of_logs(home: Home) -> None:
    with home.gateway("--hide-token") as gateway:
        assert (home.path / "token").read_text().strip() not in gateway.output
        assert "log in with the token that `atlas token show` prints" in gateway.output


def test_terminal_with_a_display_opens_the_browser_signed_in(home: Home) -> None:
    browser = home.folder / "browser"
    browser.write_text(
        f'#!/bin/sh\necho "$1" > {home.folder}/opened.part; mv {home.folder}/opened.part {home.folder}/opened\n'
    )
    browser.chmod(0o755)
    with home.terminal("serve", columns=200, DISPLAY=":7", BROWSER=str(browser)) as person:
        person.expect(r"Open http://127\.0\.0\.1:\d+/#token=\S{43}\n(.|\n)*Press Ctrl-C to stop\.$")
        eventually((home.folder / "opened").exists)
        assert f"Open {(home.folder / 'opened').read_text()}" in person.text
        person.type("\x03")
        assert person.wait_for_exit() == 0
    assert "The gateway has stopped." in person.text
    assert "Traceback" not in person.text


def test_explicit_model_answers_for_the_generated_agent(bare: Home, server: ModelServer) -> None:
    with bare.gateway("--model", "http/rules-2", OPENAI_BASE_URL=server.url) as gateway:
        assert "assistant uses http/rules-2\n" in gateway.output
        assert bare.run("ask", "Hello", OPENAI_BASE_URL=server.url).stdout == "You wrote: Hello\n"


def test_demo_answers_if_no_model_can_be_downloaded(bare: Home) -> None:
    with bare.gateway() as gateway:
        assert "local/smollm2-135m" in gateway.output
        eventually(lambda: agents(bare, "model") == ["demo"])
        asked = bare.run("ask", "What time is it?")
        assert asked.returncode == 0
        assert "scripted demo" in asked.stdout + asked.stderr


def test_local_model_is_downloaded_and_answers(bare: Home) -> None:
    """As in `make run`: the small model is downloaded, and no demo replaces it."""
    with bare.gateway(PIP_NO_INDEX="", PIP_FIND_LINKS=""):
        asked = bare.run("ask", "Say one word.")
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.strip()
        assert "scripted demo" not in asked.stdout + asked.stderr
        by_model = bare.run("usage", "--by", "model", "--json")
    assert "smollm2-135m" in by_model.stdout, by_model.stdout + by_model.stderr


def test_second_gateway_in_the_same_home_is_rejected(home: Home) -> None:
    with home.gateway() as gateway:
        assert gateway.process is not None
        second = home.run("serve")
        assert second.returncode == 2
        assert len(second.stderr.splitlines()) == 1
        assert f"process {gateway.process.pid} at {gateway.url}" in second.stderr


def test_second_gateway_with_another_home_on_the_same_database_is_rejected(home: Home) -> None:
    database = f"sqlite:///{home.path}/atlas.db"
    elsewhere = {"ATLAS_HOME": str(home.folder / "elsewhere"), "ATLAS_DATABASE_URL": database}
    with home.gateway() as gateway:
        assert gateway.process is not None
        for command in (["serve"], ["ask", "Hello"], ["store", "end-turns", "--yes"]):
            done = home.run(*command, **elsewhere)
            assert done.returncode != 0, command
            assert f"{home.path}/atlas.db is in use by process {gateway.process.pid} (atlas, since" in done.stderr
            assert "Traceback" not in done.stderr
        for command in (["sessions", "list"], ["audit", "list"], ["store", "prune", "--dry-run"], ["doctor"]):
            done = home.run(*command, **elsewhere)
            assert "in use by" not in done.stdout + done.stderr, command
        gateway.kill()
        assert home.run("store", "end-turns", "--yes", **elsewhere).returncode == 0, "it is free at once"


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        (["--port", "99999"], {}, "--port: expected an integer from 0 to 65535"),
        (["--host", "not a host"], {}, "--host: "),
        (["--host", "0.0.0.0"], {"ATLAS_TOKEN": "weak"}, "too weak for a non-loopback address"),
        (["--policy", "nowhere.toml"], {}, "file not found"),
        (["--config", "nowhere.toml"], {}, "settings file not found"),
        (["--workspace", "/proc/nowhere"], {}, "cannot create the workspace"),
        (["--log-level", "loud"], {}, "--log-level: expected"),
    ],
)
def test_invalid_flag_is_reported_in_one_line_with_code_2(
    bare: Home, arguments: list[str], env: dict[str, str], message: str
) -> None:
    done = bare.run("serve", *arguments, **env)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert message in last and last.startswith("atlas: ")
    assert "Traceback" not in done.stderr


def test_port_in_use_is_reported_in_one_line_with_code_2(home: Home) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = home.run("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "cannot listen on 127.0.0.1" in done.stderr


def test_json_log_format_writes_json_lines(home: Home) -> None:
    with home.gateway("--log-format", "json") as gateway:
        gateway.kill(signal.SIGTERM)
    lines = [line for line in gateway.output.splitlines() if line.startswith("{")]
    assert any(json.loads(line)["message"] == "listening" for line in lines)


def test_workspace_change_takes_effect_without_a_restart(home: Home, server: ModelServer) -> None:
    with home.gateway():
        (home.path / "workspace" / "AGENTS.md").write_text("## gardener\nModel: http/rules-2\n")
        eventually(lambda: agents(home, "id") == ["gardener"])
        assert home.run("ask", "Hello").stderr == "gardener uses http/rules-2\n"


def test_home_folder_can_be_chosen(tmp_path_factory: pytest.TempPathFactory, server: ModelServer) -> None:
    folder = tmp_path_factory.mktemp("elsewhere")
    home = create_home(tmp_path_factory.mktemp("here"), server)
    with home.gateway("--home", str(folder / "h"), OPENAI_BASE_URL=server.url, ATLAS_MODEL="http/rules-1"):
        assert (folder / "h" / "token").exists()


def test_client_cannot_forge_log_lines(home: Home) -> None:
    with home.gateway() as gateway:
        agent = b"x\x1b[2K\rapproved \xe2\x80\xae" + b"y" * 8000
        request = b"GET / HTTP/1.1\r\nHost: evil.example\r\nUser-Agent: " + agent.replace(b"\r", b"") + b"\r\n\r\n"
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=TIMEOUT) as line:
            line.sendall(request)
            line.recv(4096)
        gateway.kill(signal.SIGTERM)
    (refused,) = [line for line in gateway.output.splitlines() if "refused" in line]
    assert "evil.example" in refused
    assert len(refused) < 1500
    assert not {"\x1b", "\u202e"} & set(refused)


def test_command_gives_up_on_a_gateway_that_does_not_respond(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_DIAL_TIMEOUT", 0.2)
    with home.gateway() as gateway:
        assert gateway.process is not None
        gateway.process.send_signal(signal.SIGSTOP)
        asked = home.run("agents")
    expected = f"atlas: the gateway at {gateway.url} does not respond; check that it is running, or run: atlas doctor\n"
    assert (asked.returncode, asked.stderr) == (1, expected)


def test_silent_call_is_waited_for_while_the_gateway_answers_pings(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_SILENCE_TIMEOUT", 1.0)
    with home.gateway() as gateway:
        assert gateway.process is not None
        link = connect.SocketLink(gateway.url, (home.path / "token").read_text().strip())
        with contextlib.closing(link):
            run = link.call("chat.send", session_key="s", message="hold on", idempotency_key="k")["runId"]
            assert link.call("chat.wait", run_id=run, timeout_ms=1500)["status"] == "running"
            gateway.process.send_signal(signal.SIGSTOP)
            with pytest.raises(Unreachable, match=r"^chat\.wait: the gateway at \S+ does not respond$"):
                link.call("chat.wait", run_id=run, timeout_ms=1500)


def test_hanging_thread_does_not_delay_the_exit(home: Home) -> None:
    hang = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    (home.folder / "plugins" / "sitecustomize.py").write_text(hang)
    home.env["ATLAS_DRAIN_SECONDS"] = "1"
    with home.start("serve") as process:
        assert process.stderr is not None
        assert any("Press Ctrl-C to stop." in line for line in process.stderr)
        started = time.monotonic()
        process.terminate()
        output = process.stderr.read()
        took = time.monotonic() - started
    assert process.returncode == 0
    assert took > 2.5, "it ends two seconds after the time for turns"
    assert "shutdown takes too long, exiting now" in output
