"""Audit log: one chained row per call, the effect of another policy, and redaction of secrets."""

import base64
import logging
from typing import Any

import msgspec
import pytest

from atlas_agents import (
    Answer,
    MemoryAudit,
    Policy,
    Question,
    ToolContext,
    ToolFailed,
    ToolResult,
    tool,
    verify,
    what_if,
)
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools.audit import AuditRecord
from atlas_agents.tools.redact import REDACTED, Redactor, is_secret_name


@tool(effect="pure")
async def echo(text: str) -> str:
    """Repeat a text."""
    return text


async def _recorded(count: int) -> list[AuditRecord]:
    audit = MemoryAudit()
    model = Scripted(*(calls("echo", text=f"line {n}") for n in range(count)), says("Done."))
    async with in_memory_atlas(model, [echo], audit=audit, agent={"max_rounds": count + 1}) as atlas:
        await atlas.ask("go")
    return list(await audit.records())


async def test_audit_row_has_all_fields() -> None:
    (record,) = await _recorded(1)
    row: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(record.entry))
    meta = row.pop("meta")
    timestamp = row.pop("timestamp")
    assert timestamp > 0
    assert row == {
        "tenantId": "default",
        "actorType": "agent",
        "actorExternalId": "assistant",
        "level": "info",
        "action": "TOOL_CALL",
        "entityType": "tool",
        "entityId": "echo",
        "message": "Agent assistant called echo: success",
        "success": True,
    }
    assert (meta["arguments"], meta["result"], meta["error"], meta["retry_count"]) == (
        {"text": "line 0"},
        "line 0",
        None,
        0,
    )
    assert meta["duration_ms"] >= 0


async def test_audit_row_of_a_denied_call_says_who_denied_it_and_why() -> None:
    @tool(confirm=True)
    async def wipe() -> str:
        """Delete everything."""
        return "wiped"

    audit = MemoryAudit()

    def deny(question: Question) -> Answer:
        return Answer("no", by="mara", reason="not now")

    model = Scripted(calls("wipe"), says("ok"))
    async with in_memory_atlas(model, [wipe], audit=audit, approve=deny) as atlas:
        await atlas.ask("go")
    (record,) = await audit.records()
    assert record.entry.meta["denied"] == {"by": "mara", "reason": "not now"}
    assert record.entry.meta["declined"] == "wipe was not approved by mara: not now"


async def test_notes_of_a_tool_are_limited_and_redacted() -> None:
    @tool
    async def noting(context: ToolContext) -> str:
        """Add notes."""
        context.note("held_by", {"sandbox": "x" * 5000})
        context.note("seen", "Bearer sk-proj-abcdefghijklmnopqrstuvwxyz0123456789")
        for number in range(100):
            context.note(f"more {number}", number)
        return "done"

    audit = MemoryAudit()
    async with in_memory_atlas(Scripted(calls("noting"), says("ok")), [noting], audit=audit) as atlas:
        await atlas.ask("go")
    (record,) = await audit.records()
    notes = record.entry.meta["notes"]
    assert len(notes) == 20 and max(len(note) for note in notes.values()) == 200
    assert notes["held_by"].startswith('{"sandbox":"xxx') and notes["more 0"] == "0"
    assert "abcdefghij" not in notes["seen"]


async def test_note_from_a_worker_process_is_rejected() -> None:
    @tool(in_process=False)
    def noting(context: ToolContext) -> str:
        """Add notes."""
        context.note("held_by", "no one")
        return "done"

    audit = MemoryAudit()
    async with in_memory_atlas(Scripted(calls("noting"), says("ok")), [noting], audit=audit) as atlas:
        await atlas.ask("go")
    (record,) = await audit.records()
    assert (record.entry.success, record.entry.meta.get("notes")) == (False, None)


async def test_long_result_is_cut_to_1000_characters() -> None:
    audit = MemoryAudit()
    async with in_memory_atlas(Scripted(calls("echo", text="x" * 5000), says("ok")), [echo], audit=audit) as atlas:
        await atlas.ask("go")
    (record,) = await audit.records()
    assert len(record.entry.meta["result"]) == 1000


async def test_verify_names_the_first_changed_or_missing_row() -> None:
    rows = await _recorded(5)
    assert verify(rows) is None
    changed = msgspec.structs.replace(rows[2].entry, success=False)
    altered = [*rows[:2], msgspec.structs.replace(rows[2], entry=changed), *rows[3:]]
    assert verify(altered) == "row 3 was changed after it was written"
    assert verify([*rows[:1], *rows[2:]]) == "row 2 is missing: found row 3 instead"
    forged = msgspec.structs.replace(rows[1], previous="f" * 64)
    assert (
        verify([rows[0], forged, *rows[2:]])
        == "row 2 does not match the hash of the row before it: one of them was replaced"
    )
    assert verify(rows[1:]) == "row 1 is missing: found row 2 instead"


async def test_each_tenant_has_its_own_chain() -> None:
    audit = MemoryAudit()
    for tenant in ("one", "two"):
        async with in_memory_atlas(
            Scripted(calls("echo", text=tenant), says("ok")), [echo], audit=audit, tenant=tenant
        ) as atlas:
            await atlas.ask("go")
    for tenant in ("one", "two"):
        (record,) = await audit.records(tenant)
        assert (record.seq, record.entry.tenant_id, record.entry.meta["result"]) == (1, tenant, tenant)


async def test_what_if_lists_calls_whose_verdict_changes() -> None:
    rows = await _recorded(2)
    changes = what_if(rows, Policy(tools={"echo": {"assistant": "ask"}}, name="new"))
    assert [(change.seq, change.tool, change.before, change.after) for change in changes] == [
        (1, "echo", "yes", "ask"),
        (2, "echo", "yes", "ask"),
    ]
    assert changes[0].rule == "new: tools.echo, ask for assistant"
    assert what_if(rows, Policy(tools={"echo": {"*": "yes"}})) == []


async def test_tool_with_side_effects_does_not_run_if_the_audit_log_fails() -> None:
    class Down(MemoryAudit):
        async def ready(self) -> None:
            raise OSError("the audit log is down")

    acted: list[str] = []

    @tool
    async def act() -> str:
        """Act."""
        acted.append("acted")
        return "acted"

    model = Scripted(calls("act"), says("never"))
    async with in_memory_atlas(model, [act], audit=Down()) as atlas:
        with pytest.raises(OSError, match="audit log is down"):
            await atlas.ask("go")
        assert acted == []
        assert [result.status for result in atlas.conversation().messages[-1].tool_results] == ["error"]


CANARY = "kanarienvogel-7731"


async def test_secret_reaches_neither_model_nor_log_nor_audit_row(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", CANARY)
    caplog.set_level(logging.DEBUG)

    @tool
    async def leak(how: str, password: str) -> dict[str, str]:
        """Leak a secret."""
        if how == "bug":
            raise RuntimeError(f"could not log in with {CANARY} and {password}")
        if how == "failure":
            raise ToolFailed(f"the key {CANARY} was refused")
        return {"key": CANARY, "text": f"I used {CANARY} in base64 {base64.b64encode(CANARY.encode()).decode()}"}

    secret = "hunter2-very-secret"
    replies = [calls("leak", how=how, password=secret) for how in ("bug", "failure", "result")]
    model, audit = Scripted(*replies, says("ok")), MemoryAudit()
    async with in_memory_atlas(model, [leak], audit=audit) as atlas:
        await atlas.ask("go")
    results = [
        part for message in model.requests[-1].messages for part in message.parts if isinstance(part, ToolResult)
    ]
    seen = {
        "model": msgspec.json.encode([result.result for result in results]).decode(),
        "log": caplog.text,
        "audit": msgspec.json.encode(await audit.records()).decode(),
    }
    encoded = base64.b64encode(CANARY.encode()).decode()
    assert [(place, word) for place, text in seen.items() for word in (CANARY, encoded) if word in text] == []
    assert secret not in seen["log"] + seen["audit"]
    assert "the key [REDACTED] was refused" in seen["model"]
    assert "Traceback" in seen["log"]


SECRET_NAMES = [
    *("password", "passwd", "pwd", "pass", "passphrase", "DB_PASS", "dbPassword", "secret", "client_secret"),
    *("clientSecret", "token", "access_token", "accessToken", "refreshToken", "id_token", "api_key", "apiKey"),
    *("apikey", "X-API-Key", "private_key", "privateKey", "secretKey", "authorization", "Authorization", "auth"),
    *("proxy-authorization", "cookie", "Set-Cookie", "cookies", "credential", "credentials", "creds", "conn", "dsn"),
    *("jwt", "otp", "bearer", "connection_string", "DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "githubToken"),
    *("api-keys", "seed_phrase", "recoveryCodes", "mfa_code", "client_assertion", "storageAccountKey"),
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_fields_with_secret_names_are_redacted(name: str) -> None:
    redactor = Redactor(environment={})
    assert is_secret_name(name)
    assert redactor.value({name: "value"}) == {name: REDACTED}
    assert redactor.value([{"deep": [{name: {"a": 1}}]}]) == [{"deep": [{name: REDACTED}]}]
    assert redactor.value([[name, "value"]]) == [[name, REDACTED]]
    assert "value-1" not in redactor.value(f'{{"{name}": "value-1"}}')


@pytest.mark.parametrize(
    "name", ["monkey", "keyboard", "tokenizer_name", "passenger", "compass", "author", "turkey", "city"]
)
def test_fields_with_other_names_are_not_redacted(name: str) -> None:
    assert Redactor(environment={}).value({name: "value"}) == {name: "value"}


@pytest.mark.parametrize(
    "text",
    [
        "sk-abcdefghijklmnopqrstuvwx",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "AKIAIOSFODNN7EXAMPLE",
        "xoxb-123456789012-abcdefghijkl",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
        "Bearer abcdefgh12345678",
        "postgresql://ana:tiger-7@db.example/shop",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_text_that_looks_like_a_secret_is_redacted(text: str) -> None:
    hidden = Redactor(environment={}).text(f"see {text} there")
    assert REDACTED in hidden
    assert hidden.startswith("see ")
    assert hidden.endswith(" there")


def test_common_words_and_paths_of_the_environment_are_not_redacted() -> None:
    environment = {
        "SECRET_KEY": "development",
        "DB_PASSWORD": "password",
        "PWD": "/home/ana",
        "API_TOKEN": "zebra-42-zulu",
    }
    redactor = Redactor(environment=environment)
    text = "The development password lies in /home/ana"
    assert redactor.text(text) == text
    assert redactor.text("it is zebra-42-zulu") == f"it is {REDACTED}"
