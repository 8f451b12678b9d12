"""Passwords in URLs are redacted."""

import pytest

from atlas_agents.config.settings import has_password, redact_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ana:pw@db:5432/atlas", "postgresql://ana:…@db:5432/atlas"),
        ("postgresql://ana:p@w@db/atlas", "postgresql://ana:…@db/atlas"),
        ("postgresql://ana:p:w@db", "postgresql://ana:…@db"),
        ("postgresql://ana:p/w@db/atlas", "postgresql://…"),
        ("postgresql://ana:p?w@db/atlas", "postgresql://…"),
        ("postgresql://ana:p#w@db/atlas", "postgresql://…"),
        ("postgresql://db/atlas?user=ana&PASSWORD=pw&sslmode=require", None),
        ("postgresql://db/atlas?sslpassword=pw#x", "postgresql://db/atlas?sslpassword=…#x"),
        ("redis://:pw@cache", "redis://:…@cache"),
        ("ana:pw", "…"),
    ],
)
def test_password_in_url_is_redacted(url: str, shown: str | None) -> None:
    assert redact_url(url, "…") == (shown or "postgresql://db/atlas?user=ana&PASSWORD=…&sslmode=require")
    assert has_password(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db:5432/atlas",
        "postgresql://ana@db,db2:5433/atlas?sslmode=require",
        "sqlite:////srv/a@b:c/atlas.db",
        "unix:///run/redis.sock",
    ],
)
def test_url_without_password_is_unchanged(url: str) -> None:
    assert redact_url(url, "…") == url
    assert not has_password(url)
