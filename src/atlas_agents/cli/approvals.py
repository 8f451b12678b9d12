"""`atlas approvals list | approve | deny | dismiss`: questions that wait, and their answers."""

import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from atlas_agents.cli import options, show
from atlas_agents.cli.border import one_of, quiet, run
from atlas_agents.cli.form import about, value_of
from atlas_agents.cli.reach import within_reach
from atlas_agents.cli.words import one_line
from atlas_agents.core.errors import BadArguments, ConfigError
from atlas_agents.core.text import escape_invisible
from atlas_agents.gateway.protocol.types import ApprovalShape


def list_approvals(*, as_json: bool) -> int:
    async def work() -> None:
        async with within_reach(options.settings(), idle=True) as here:
            found = (await here.client.call("approvals.list"))["approvals"]
        if as_json:
            show.as_json(found)
            return
        rows = [
            (
                each["approvalId"],
                each.get("agentId", ""),
                f"{max(0, each['expiresAt'] / 1000 - time.time()):.0f} s",
                _said(each),
            )
            for each in found
        ]
        show.table(("question", "agent", "time left", "call"), rows, "Nobody asks anything.")

    quiet()
    return run(work)


def _said(found: dict[str, Any]) -> str:
    """The call that is to be made, or what is asked for in the middle of one."""
    asked = msgspec.convert(found, ApprovalShape)
    if asked.form is None:
        return f"{asked.tool_name}({', '.join(f'{name}={escape_invisible(value)}' for name, value in asked.details.items())})"
    fields = "; ".join(about(field) for field in asked.form.fields)
    more = f" [{escape_invisible(asked.form.url)}]" if asked.form.url else f" [{fields}]" if fields else ""
    return f"{one_line(asked.form.asker)} asks: {one_line(asked.form.message)}{more}"


def _values(found: dict[str, Any], given: Sequence[str]) -> dict[str, Any] | None:
    """What was written for a form, over what it suggests; None of a question about a call."""
    asked = msgspec.convert(found, ApprovalShape)
    if asked.form is None:
        if given:
            raise ConfigError(f"{asked.approval_id} asks about a call, and not for values: leave --set out")
        return None
    values, fields = dict(asked.details), {field.name: field for field in asked.form.fields}
    for each in given:
        name, sign, text = each.partition("=")
        if not sign or name not in fields:
            raise ConfigError(f"--set {each!r}: write name=value; it asks for {', '.join(fields) or 'nothing'}")
        try:
            value = value_of(fields[name], text)
        except BadArguments as error:
            raise ConfigError(f"--set {each!r}: {error}") from error
        values = {key: old for key, old in values.items() if key != name} | ({} if value is None else {name: value})
    return values


def answer(start: str, decision: str, reason: str = "", given: Sequence[str] = ()) -> int:
    async def work() -> None:
        async with within_reach(options.settings(), idle=True) as here:
            found = (await here.client.call("approvals.list"))["approvals"]
            id = one_of(start, [each["approvalId"] for each in found], "approval")
            asked = next(each for each in found if each["approvalId"] == id)
            values = _values(asked, given) if decision.startswith("allow") else None
            await here.client.call(
                "approvals.resolve", approval_id=id, decision=decision, reason=reason, arguments=values
            )
        print(f"{id}: {decision}.", file=sys.stderr)

    quiet()
    return run(work)
