"""The MCP conformance suite against our server. `conformance-*.yaml` lists what does not pass, with the reason."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from node_servers import run_suite

from atlas_agents import Approvals, File, Image, Tool, ToolContext, ToolFailed, tool
from atlas_agents.core.approvals import Choice, Field, Form
from atlas_agents.core.errors import ConfigError
from atlas_agents.gateway.hub import GatewayServices
from atlas_agents.gateway.mcp.resources import DocumentResources, Resource, ResourceReader, ResourceTemplate
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, in_memory_atlas
from atlas_agents.workspace.skills import Prompt
from checks import TIMEOUT

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


WAV = File.of(b"RIFF$\x00\x00\x00WAVEfmt ", "tone.wav", "audio/wav")
PNG = Image.of(b"\x89PNG\r\n\x1a\n")
NAMES = tuple([Choice(f"value{number}", f"{word} Option") for number, word in enumerate(("First", "Second"), 1)])
PLAIN = (Choice("option1"), Choice("option2"))
DEFAULTS = Form(
    "the suite",
    "Please review",
    (
        Field("name", default="John Doe"),
        Field("age", "integer", default=30),
        Field("score", "number", default=95.5),
        Field("status", "choice", default="active", choices=(Choice("active"), Choice("inactive"), Choice("pending"))),
        Field("verified", "boolean", default=True),
    ),
)
ENUMS = Form(
    "the suite",
    "Please choose",
    (
        Field("untitledSingle", "choice", choices=PLAIN),
        Field("titledSingle", "choice", choices=NAMES),
        Field("legacyEnum", "choice", choices=(Choice("opt1", "Option One"),)),
        Field("untitledMulti", "choices", choices=PLAIN),
        Field("titledMulti", "choices", choices=NAMES),
    ),
)
CONFIRM = Form("the suite", "Please confirm", (Field("ok", "boolean", required=True),))


def returning(name: str, value: Any) -> Tool:
    """Return a tool that returns a value, or fails with an exception."""

    async def give() -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return Tool(name, give, description="Returns it.", parameters={}, effect="pure")


def asking(name: str, form: Form) -> Tool:
    """Return a tool that asks for the values of a form."""

    async def ask(context: ToolContext) -> str:
        filled = await context.ask(form)
        return f"state-ok: {filled.action} {filled.values}"

    return Tool(name, ask, description="Asks.", parameters={}, effect="pure")


def reporting(name: str, *messages: str) -> Tool:
    """Return a tool that reports progress."""

    async def report(context: ToolContext) -> str:
        for message in messages:
            context.progress(message)
        return "done"

    return Tool(name, report, description="Reports.", parameters={}, effect="pure")


@tool(name="test_input_required_result_elicitation", effect="pure")
async def greet(context: ToolContext) -> str:
    """Ask for a name."""
    filled = await context.ask(Form("the suite", "What is your name?", (Field("name", required=True),)))
    return f"Hello, {filled.values.get('name')}!"


@tool(name="test_input_required_result_multi_round", effect="pure")
async def ask_twice(context: ToolContext) -> str:
    """Ask for a name, then for a colour."""
    for name in ("name", "color"):
        await context.ask(Form("the suite", f"Step: {name}?", (Field(name, required=True),)))
    return "done"


@tool(name="test_elicitation", effect="pure")
async def elicit(message: str, context: ToolContext) -> str:
    """Ask for a name and an address."""
    fields = (Field("username", required=True), Field("email", required=True))
    return f"User response: {(await context.ask(Form('the suite', message, fields))).action}"


async def use_nothing(_arguments_: dict[str, Any]) -> str:
    return "nothing"


TOOLS = [
    returning("test_simple_text", "This is a simple text response for testing."),
    returning("test_image_content", PNG),
    returning("test_audio_content", WAV),
    returning("test_embedded_resource", File.of(b"Content.", "test://embedded-resource", "text/plain")),
    returning("test_multiple_content_types", ["Three:", PNG, File.of(b"{}", "test://mixed", "application/json")]),
    returning("test_error_handling", ToolFailed("This tool intentionally returns an error for testing")),
    reporting("test_tool_with_progress", "0", "50", "100"),
    reporting("test_tool_with_logging", "Tool execution started", "Tool processing data", "Tool execution completed"),
    elicit,
    greet,
    ask_twice,
    asking("test_elicitation_sep1034_defaults", DEFAULTS),
    asking("test_elicitation_sep1330_enums", ENUMS),
    asking("test_input_required_result_request_state", CONFIRM),
    asking("test_input_required_result_tampered_state", CONFIRM),
    Tool("json_schema_2020_12_tool", use_nothing, description="Takes this.", parameters=SCHEMA, effect="pure"),
]


class TextResources:
    """The texts that the suite reads, in place of documents."""

    async def list(self, reader: ResourceReader, cursor: str = "") -> tuple[Sequence[Resource], str]:
        return [Resource("test://static-text", "static", "A text.")], ""

    def templates(self, reader: ResourceReader) -> Sequence[ResourceTemplate]:
        return [ResourceTemplate("test://template/{id}/data", "data", "Data by id.")]

    async def version(self, uri: str, reader: ResourceReader) -> str:
        return ""

    async def read(self, uri: str, reader: ResourceReader) -> tuple[str, str]:
        if uri == "test://template/123/data":
            return '{"id": "123", "templateTest": true, "data": "Data for ID: 123"}', "application/json"
        if uri != "test://static-text":
            raise ConfigError("there is no such text")
        return "This is the content of the static text resource.", "text/plain"


def build_gateway(home: Path) -> Gateway:
    """Build a gateway that adds the owner's token to every request, because the suite sends none."""
    waiting = Approvals(wait=True, deadline=TIMEOUT)
    atlas = in_memory_atlas(Scripted(), TOOLS, store=MemoryStore(), approve=waiting)
    prompts = (
        Prompt("test_simple_prompt", "This is a simple prompt for testing.", "Simple."),
        Prompt("test_prompt_with_arguments", "Prompt with arguments: arg1='{arg1}', arg2='{arg2}'", "With two."),
    )
    services = GatewayServices(prompts=lambda: prompts, resources=cast(DocumentResources, TextResources()))
    gateway = Gateway(atlas, GatewaySettings(home=home, port=0), services=services)
    inner, authorization = gateway._app, f"Bearer {gateway.hub.tokens.main.reveal()}".encode()

    async def authorize(scope: Any, receive: Any, send: Any) -> None:
        await inner({**scope, "headers": [*scope["headers"], (b"authorization", authorization)]}, receive, send)

    gateway._app = authorize  # type: ignore
    return gateway


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_server_passes_all_scenarios_but_the_listed_ones(version: str, tmp_path: Path) -> None:
    """The suite fails if a scenario fails that is not listed, and if a listed one passes."""
    async with build_gateway(tmp_path).running() as gateway:
        url, listed = f"http://localhost:{gateway.port}/mcp", str(HERE / f"conformance-{version}.yaml")
        options = ("--url", url, "--requirements", version, "--expected-failures", listed, "--timeout", "60000")
        code, output = await run_suite("server", *options, "-o", str(tmp_path / "out"))
    assert code == 0, output.partition("=== SUMMARY ===")[2] or output[-3000:]
