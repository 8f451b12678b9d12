"""Jobs, schedules, users and plans."""

import json
import re
from typing import Any

import pytest
from atlas_command import Home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def read(home: Home, *arguments: str) -> Any:
    """The JSON that a command prints."""
    done = home.run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_schedule_runs_a_job_that_can_be_cancelled_and_retried(home: Home) -> None:
    assert home.run("jobs", "list").stderr == "There are no jobs.\n"
    added = home.run("schedule", "add", "news", "0 9 * * 1-5", "The news!", "--zone", "Europe/Berlin")
    assert added.returncode == 0 and added.stderr.startswith("news: next run at ")
    assert home.run("schedule", "add", "b", "0 25 * * *", "x").returncode != 0
    assert home.run("schedule", "list").stdout.splitlines()[1].split()[:7] == [
        "news",
        "0",
        "9",
        "*",
        "*",
        "1-5",
        "Europe/Berlin",
    ]
    job = home.run("schedule", "run", "news").stdout.strip()
    (listed,) = read(home, "jobs", "list", "--state", "queued")
    assert (listed["jobId"], listed["kind"], listed["task"]) == (job, "schedule", "The news!")
    assert home.run("jobs", "cancel", job[:6]).stderr == f"{job} is cancelled.\n"
    shown = home.run("jobs", "show", job).stdout
    assert "cancelled, normal" in shown and "The news!" in shown and "by owner" in shown
    assert home.run("jobs", "retry", job).stderr == f"{job} is queued.\n"
    assert home.run("jobs", "list", "--state", "lost").returncode == 2
    asked = home.run("jobs", "submit", "A poem!", "--priority", "high", "--deadline", "2 hours").stdout.strip()
    heading, *rows = home.run("jobs", "list").stdout.splitlines()
    assert re.split(" {2,}", heading) == ["JOB", "STATE", "AGENT", "REQUESTED BY", "PRIORITY", "WHEN", "TASK"]
    assert [re.split(" {2,}", row)[0::3] for row in rows] == [
        [asked, "owner", "A poem!"],
        [job, "a schedule", "The news!"],
    ]
    assert "in the past" in home.run("jobs", "submit", "Late", "--deadline", "2020-01-01").stderr
    assert home.run("schedule", "pause", "news").stderr == "news: paused.\n"
    assert "nextAt" not in read(home, "schedule", "list")[0]
    assert home.run("schedule", "remove", "news").returncode == 0
    assert read(home, "schedule", "list") == []


def test_users_and_plans_are_stored(home: Home) -> None:
    assert [each["name"] for each in read(home, "users", "list")] == ["owner"]
    assert "+role: admin" in home.run("users", "set", "ann", "--role", "admin", "--dry-run").stdout
    assert [each["name"] for each in read(home, "users", "list")] == ["owner"]
    assert "no gateway is running" in home.run("users", "invite", "ann").stderr
    assert "expected a link such as" in home.run("users", "accept", "http://127.0.0.1:1/#token=x").stderr
    assert "cannot reach http://127.0.0.1:1: " in home.run("users", "accept", "http://127.0.0.1:1/#invite=x").stderr
    assert home.run("users", "set", "ann", "--role", "admin").stderr == "ann: active, admin.\n"
    assert home.run("users", "set", "ann", "--status", "suspended").stderr == "ann: suspended, admin.\n"
    assert home.run("users", "set", "ann", "--role", "member").stderr == "ann: suspended, member.\n"
    assert home.run("users", "set", "ann", "--role", "admin", "--status", "active").stderr == "ann: active, admin.\n"
    assert home.run("plans", "set", "small", "--tokens", "1000", "--seats", "1").returncode == 0
    assert home.run("plans", "use", "small").returncode == 0
    assert "no seat is left" in home.run("users", "set", "bob").stderr
    shown = home.run("tenants", "show").stdout.splitlines()
    assert shown[0] == "default, plan small" and shown[2].split()[:3] == ["tokens", "0", "1,000"]
    assert [each["name"] for each in read(home, "plans", "list")] == ["unlimited", "small"]
    assert read(home, "tenants", "list") == ["default"]
    assert home.run("users", "remove", "ann").returncode == 0


def test_plan_keeps_the_limits_that_are_not_given(home: Home) -> None:
    def limits() -> dict[str, int]:
        (plan,) = [each for each in read(home, "plans", "list") if each["name"] == "pro"]
        return {name: plan[name] for name in ("tokens", "agents", "storage", "seats") if plan.get(name) is not None}

    assert home.run("plans", "set", "pro", "--tokens", "1000000", "--agents", "10", "--seats", "5").returncode == 0
    assert limits() == {"tokens": 1_000_000, "agents": 10, "seats": 5}
    preview = home.run("plans", "set", "pro", "--seats", "6", "--dry-run").stdout
    assert "+seats: 6" in preview and "-tokens" not in preview
    assert home.run("plans", "set", "pro", "--seats", "6").returncode == 0
    assert limits() == {"tokens": 1_000_000, "agents": 10, "seats": 6}
    assert home.run("plans", "set", "pro", "--tokens", "none", "--agents", "0").returncode == 0
    assert limits() == {"agents": 0, "seats": 6}
    for text in ("few", "-1"):
        wrong = home.run("plans", "set", "pro", "--seats", text)
        message = f"invalid --seats {text!r}: expected an integer from 0, or none for no limit"
        assert wrong.returncode == 2 and message in wrong.stderr
    assert limits() == {"agents": 0, "seats": 6}
