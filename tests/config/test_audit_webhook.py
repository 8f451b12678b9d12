"""The signed heads of the audit log are sent to `audit_webhook`, which cannot stop the gateway."""

import logging
from pathlib import Path

import pytest

from atlas_agents.config.load import load
from atlas_agents.config.open import open_store
from atlas_agents.core.paths import Environment
from atlas_agents.core.store import AddAudit
from fault_server import FaultServer, Script, response


async def _write_row(folder: Path, url: str) -> None:
    values = {"ATLAS_HOME": str(folder / "home"), "ATLAS_AUDIT_WEBHOOK": f"{url}/heads?key=hook-7731"}
    store = open_store(load(environment=Environment(values, dotenv=None), cwd=folder))
    await store.open()
    await store.commit("default", [AddAudit(b'{"call":1}')])
    await store.close()


async def test_webhook_receives_the_signed_heads(tmp_path: Path) -> None:
    async with FaultServer(response(b"ok")) as server:
        await _write_row(tmp_path, server.url)
        (request,) = server.requests
    body, signature = (tmp_path / "home" / "atlas.db-heads").read_bytes().split()
    assert (request.method, request.path) == ("POST", "/heads?key=hook-7731")
    assert request.raw == body and request.headers["x-atlas-signature"].encode() == signature
    assert request.body["heads"]["default"]["seq"] == 1


@pytest.mark.parametrize("script", [response(b"no", status="500 No"), ["close"]], ids=["refused", "closed"])
async def test_failing_webhook_is_logged_without_its_address(
    script: Script, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with FaultServer(script) as server:
        await _write_row(tmp_path, server.url)
    assert "audit_webhook" in caplog.text and "hook-7731" not in caplog.text
