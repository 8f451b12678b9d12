"""The files in `deploy/`: linted, and run as far as possible without a cluster."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from atlas_command import ATLAS, TIMEOUT, Home

from atlas_agents.cli.app import app
from atlas_agents.config import SETTINGS
from atlas_agents.gateway.settings import GatewaySettings
from stores.postgres_server import PostgresServer

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OLDEST, NEWEST = "1.30.0", "1.37.0"
SECRETS = {"POSTGRES_PASSWORD": "p" * 32, "ATLAS_TOKEN": "t" * 32}
OTHERS = {"POSTGRES_PASSWORD", "POSTGRES_USER", "POSTGRES_DB", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"}
"""Variables that are not settings of Atlas."""
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def program(name: str) -> str:
    found = shutil.which(name, path=programs)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def ran(*command: str, stdin: str = "", **env: str) -> str:
    """Run a program that must succeed, and return its output."""
    environment = {**os.environ, **env}
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compose() -> dict[str, Any]:
    """The compose file, with the two secrets and all defaults."""

    def value(found: re.Match[str]) -> str:
        name, sign, rest = found.groups()
        assert sign, f"{name} has no default and no message"
        assert (sign == ":?") == (name in SECRETS), f"{name}: secrets are required, the rest is optional"
        return SECRETS.get(name, rest)

    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    found = yaml.safe_load(re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", value, text))
    return {name: part for name, part in found.items() if not name.startswith("x-")}


def documents(*names: str) -> list[dict[str, Any]]:
    """All objects of these manifests, or of all."""
    files = [KUBERNETES / name for name in names] or sorted(KUBERNETES.glob("*.yaml"))
    found = [each for file in files for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))]
    return [each for each in found if each["kind"] != "Kustomization"]


def container(role: str) -> dict[str, Any]:
    return documents(f"{role}.yaml")[0]["spec"]["template"]["spec"]["containers"][0]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile, line by line: (word, rest)."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def test_dockerfile_passes_its_linter() -> None:
    assert ran(program("hadolint"), "--failure-threshold", "style", str(DEPLOY / "Dockerfile")) == ""


def test_image_has_two_stages_an_unprivileged_user_and_no_secret() -> None:
    found = instructions()
    assert [word for word, _ in found].count("FROM") == 2
    users = [rest for word, rest in found if word == "USER"]
    assert users == ["10001:10001"]
    variables = " ".join(rest for word, rest in found if word in ("ARG", "ENV"))
    assert not re.search(r"(?i)token|password|secret|_key|database_url", variables)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    copied = {name for word, rest in found if word == "COPY" and "--from" not in rest for name in rest.split()[:-1]}
    assert "*" in ignored and {name[1:] for name in ignored if name.startswith("!")} == copied
    assert all((DEPLOY.parent / name).exists() for name in copied)
    lock = (DEPLOY.parent / "requirements-uv.lock").read_text(encoding="utf-8")
    version = re.search(r"UV_VERSION=(\S+)", variables)
    assert version and f"uv=={version[1]}" in lock, "the image and the lock use the same uv"


def test_compose_file_is_valid_and_its_files_exist() -> None:
    spec: Any = import_module("compose_spec")
    found = compose()
    spec.PyCompose.from_yaml(yaml.safe_dump(found)).validate()
    services = found["services"]
    assert set(services) == {"postgres", "gateway", "worker", "proxy"}
    for name, service in services.items():
        assert re.search(r":[\w.-]+$", service["image"]), f"{name}: no version"
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service.get("volumes", ()):
            where = volume.get("source")
            assert where is None or (where in found["volumes"] if volume["type"] == "volume" else _exists(where))
        known = {setting.variable for setting in SETTINGS.values()} | OTHERS
        assert {each for each in service.get("environment", {}) if "UPSTREAM" not in each} - {"ATLAS_LISTEN"} <= known
    for role in ("gateway", "worker"):
        service = services[role]
        assert service["command"] == ["serve", "--role", role] and "ports" not in service
        assert int(service["stop_grace_period"].removesuffix("s")) >= 2 * GatewaySettings(home=Path()).grace
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["deploy"]["replicas"] > 1
    example = (DEPLOY / "example.env").read_text(encoding="utf-8")
    assert {line for line in example.splitlines() if line.startswith(tuple(SECRETS))} == {
        f"{each}=" for each in SECRETS
    }


def _exists(name: str) -> bool:
    return (DEPLOY / name).exists()


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_manifest_is_valid_for_kubernetes(version: str) -> None:
    validate: Any = import_module("kubernetes_validate")
    found = documents()
    assert {each["kind"] for each in found} == {
        "ConfigMap", "Deployment", "Namespace", "PodDisruptionBudget", "Secret", "Service",
    }  # fmt: skip
    for each in found:
        validate.validate(each, version, strict=True)


def test_manifests_refer_to_each_other_correctly() -> None:
    rendered = list(yaml.safe_load_all(ran(program("kubectl"), "kustomize", str(KUBERNETES))))
    by_kind = {(each["kind"], each["metadata"]["name"]): each for each in rendered}
    assert not any(kind == "Secret" for kind, _ in by_kind), "secrets are not applied with the rest"
    assert {each["metadata"]["namespace"] for each in rendered if each["kind"] != "Namespace"} == {"atlas"}
    service = by_kind["Service", "atlas-gateway"]["spec"]
    for role in ("gateway", "worker"):
        deployment = by_kind["Deployment", f"atlas-{role}"]["spec"]
        labels = deployment["template"]["metadata"]["labels"]
        budget = by_kind["PodDisruptionBudget", f"atlas-{role}"]["spec"]["selector"]["matchLabels"]
        assert labels.items() >= deployment["selector"]["matchLabels"].items() == budget.items()
        assert (labels.items() >= service["selector"].items()) == (role == "gateway")
        pod = deployment["template"]["spec"]
        maps = [each["configMap"]["name"] for each in pod["volumes"] if "configMap" in each]
        assert [("ConfigMap", name) in by_kind for name in maps] == [True]
        assert ":" in pod["containers"][0]["image"]
    named = {each["valueFrom"]["secretKeyRef"]["key"] for each in container("gateway")["env"]}
    assert named == set(documents("secret.example.yaml")[0]["stringData"])
    assert not any(documents("secret.example.yaml")[0]["stringData"].values())


@pytest.mark.parametrize("role", ["gateway", "worker"])
def test_pod_has_no_privileges_and_time_to_stop(role: str) -> None:
    pod, box = documents(f"{role}.yaml")[0]["spec"]["template"]["spec"], container(role)
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert box["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert pod["automountServiceAccountToken"] is False and box["resources"]["limits"]["memory"]
    pause = int(box["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = GatewaySettings(home=Path()).grace
    assert pod["terminationGracePeriodSeconds"] >= 2 * (pause + grace)
    known = {setting.variable for setting in SETTINGS.values()} | OTHERS
    assert {each["name"] for each in box["env"]} | set(documents("config.yaml")[0]["data"]) <= known


def test_image_has_the_extras_of_the_roles() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    (extras,) = re.findall(r"^ARG EXTRAS=(.+)$", text, re.MULTILINE)
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"cluster"} <= set(extras.split(",")) <= set(project["optional-dependencies"])


def test_worker_listens_where_the_probes_and_the_image_check_it() -> None:
    (check,) = [rest for word, rest in instructions() if word == "HEALTHCHECK"]
    variables = dict(each.split("=", 1) for word, rest in instructions() if word == "ENV" for each in rest.split())
    port = variables["ATLAS_PORT"]  # without it a worker uses any free port
    assert f"http://127.0.0.1:{port}/health" in check
    assert container("worker")["ports"] == [{"name": "http", "containerPort": int(port)}]
    assert "healthcheck" not in compose()["services"]["worker"]


def test_every_container_starts_with_valid_arguments() -> None:
    serve = app.find("serve")
    commands = [compose()["services"][role]["command"] for role in ("gateway", "worker")]
    commands += [container(role)["args"] for role in ("gateway", "worker")]
    commands += [json.loads(rest) for word, rest in instructions() if word == "CMD"]
    for arguments in commands:
        assert arguments[0] == "serve"
        serve.parse(arguments[1:], "atlas serve")


def unit() -> dict[str, list[str]]:
    """The entries of the unit, by name."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "atlas.service").read_text(encoding="utf-8").splitlines():
        name, sign, value = line.partition("=")
        if sign and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_systemd_accepts_the_unit_and_rates_it_safe(tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    text = (DEPLOY / "atlas.service").read_text(encoding="utf-8")
    here = text.replace("/opt/atlas/bin/atlas", ATLAS)
    copy = tmp_path / "atlas.service"
    copy.write_text(here, encoding="utf-8")
    done = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stderr) == (0, "")
    ran(analyze, "security", "--offline=true", "--threshold=35", str(copy))


def test_caddyfile_is_valid() -> None:
    caddy = program("caddy")
    variables = {"ATLAS_LISTEN": ":8080", "ATLAS_UPSTREAM": "gateway", "ATLAS_UPSTREAM_PORT": "18789"}
    ran(caddy, "validate", "--adapter", "caddyfile", "--config", str(DEPLOY / "Caddyfile"), **variables)


def asked(port: int, probe: dict[str, Any], **headers: str) -> int:
    """The HTTP status that a Kubernetes probe gets."""
    sent = {each["name"]: each["value"] for each in probe["httpGet"].get("httpHeaders", ())}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{probe['httpGet']['path']}", headers=sent | headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
def test_gateway_started_by_the_unit_passes_every_probe(home: Home) -> None:
    entries = unit()
    places = " ".join(entries["Environment"]).replace("%S/atlas", str(home.path))
    (_, command, *arguments) = ["", *shlex.split(entries["ExecStart"][0])]
    assert (command, arguments[0]) == ("/opt/atlas/bin/atlas", "serve")
    env = dict(each.split("=", 1) for each in places.split()) | {"ATLAS_LOG_FORMAT": "text"}
    (check,) = [rest for word, rest in instructions() if word == "HEALTHCHECK"]
    health = json.loads(check.partition("CMD ")[2])
    with home.gateway(*arguments[1:], **env, ATLAS_HOST="0.0.0.0", ATLAS_TOKEN=os.urandom(32).hex()) as served:
        here = [sys.executable, *(each.replace("18789", str(served.port)) for each in health[1:])]
        ran(*here)
        for probe in PROBES:
            assert asked(served.port, container("gateway")[probe]) == 200
        assert asked(served.port, container("gateway")["readinessProbe"], Host="10.0.0.7:18789") == 421
        assert served.kill(signal.SIGTERM) == 0
        assert "takes too long" not in served.output
    assert int(entries["TimeoutStopSec"][0].removesuffix("s")) >= 2 * GatewaySettings(home=Path()).grace
    assert subprocess.run(here, capture_output=True, timeout=TIMEOUT).returncode == 1


@pytest.mark.slow
def test_worker_started_by_the_manifest_passes_every_probe(home: Home, postgres_server: PostgresServer) -> None:
    with postgres_server.with_database() as postgres:
        env = {"ATLAS_HOST": "0.0.0.0", "ATLAS_TOKEN": os.urandom(32).hex(), "ATLAS_DATABASE_URL": postgres.url}
        with home.gateway(*container("worker")["args"][1:], **env) as worker:
            found = re.search(r"Status: http://127.0.0.1:(\d+)/readyz", worker.output)
            assert found, worker.output
            for probe in PROBES:
                assert asked(int(found[1]), container("worker")[probe]) == 200
            assert asked(int(found[1]), container("worker")["readinessProbe"], Host="10.0.0.7:18789") == 421
            assert asked(int(found[1]), {"httpGet": {"path": "/metrics"}}) == 401
            assert worker.kill(signal.SIGTERM) == 0
