"""Fuzz targets: everything that reads bytes of strangers. Each has seeds, and a check that raises for a defect.

A check lets through only the errors that the reader documents. Anything else, a wrong result or a hang is a finding.
"""

import asyncio
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed

from atlas_agents import ConfigError, Policy, ProviderError, Request
from atlas_agents.builtin_tools.bash import build_argv, split_plain_command
from atlas_agents.config.load import load
from atlas_agents.core.errors import BadArguments
from atlas_agents.core.messages import ToolSpec
from atlas_agents.core.paths import Environment
from atlas_agents.gateway.protocol.methods import METHODS
from atlas_agents.mcp.config import read_servers
from atlas_agents.providers.base import Chunk, DoneChunk, ToolCallChunk
from atlas_agents.providers.http import StreamReader
from atlas_agents.providers.react import ReactParser, parse_calls
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import in_memory_atlas
from atlas_agents.tools.policy import CommandRule
from atlas_agents.workspace.skills import read_prompts, read_skills
from atlas_agents.workspace.workspace import Workspace

sys.path += [str(Path(__file__).parent.parent / folder) for folder in ("gateway", "wire", ".")]

from canonical_responses import BODIES
from gateway_client import Client, connect_client, http, main_token, serve_gateway
from wire_setup import WIRES

EXAMPLE_SECONDS = 10.0
"""A reader that takes longer hangs."""
_TOOLS = (
    ToolSpec("search", "", {"type": "object", "properties": {"query": {"type": "string"}}}),
    ToolSpec("add", "", {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}),
)


class Target:
    """A reader under test. `seeds` are valid inputs that are mutated, `tokens` are inserted into them."""

    name: str
    seeds: Sequence[bytes]
    tokens: Sequence[bytes] = ()
    is_json = False
    """Whether values in the seeds are replaced by other JSON values, too."""

    def open(self) -> None:
        """Prepare for many checks."""

    def close(self) -> None:
        """Release what `open` prepared."""

    def check(self, data: bytes) -> None:
        """Read one input; raise for anything but a documented error."""
        raise NotImplementedError


def split(data: bytes) -> Iterator[bytes]:
    """Split data into pieces whose sizes depend on the data, as a network would."""
    at, number = 0, len(data)
    while at < len(data):
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
        size = (1, 2, 3, 7, 64, 1000, len(data))[number % 7]
        yield data[at : at + size]
        at += size


class SseTarget(Target):
    """The event streams of every wire format. The first byte chooses the reader."""

    name = "sse"
    seeds = tuple(body.wire.name[:1].encode() + body.bytes for body in BODIES)
    tokens = (
        b"data: ",
        b"event: error\n",
        b"\r\n\r\n",
        b"[DONE]",
        b"\xef\xbb\xbf",
        b": x\n",
        b'"index":',
        b'"delta":{',
        b'"parts":[{',
        b'"thoughtSignature":"x",',
        b'"finishReason":"CONTINUATION","continuationToken":"t"',
    )

    def check(self, data: bytes) -> None:
        reader = self._reader(data)
        chunks: list[Chunk] = []
        with suppress(ProviderError):
            for piece in split(data[1:]):
                chunks += reader.feed(piece)
            chunks += reader.finish()
        kinds = [type(chunk) for chunk in chunks]
        assert kinds.count(DoneChunk) <= 1
        if ToolCallChunk in kinds and DoneChunk in kinds:
            assert kinds.index(DoneChunk) > kinds.index(ToolCallChunk)
        for chunk in chunks:
            msgspec.json.encode(chunk)
        with suppress(ProviderError):
            self._reader(data).decode_body(data[1:])

    @staticmethod
    def _reader(data: bytes) -> StreamReader:
        return next((wire for wire in WIRES if wire.name[:1].encode() == data[:1]), WIRES[0]).reader()


class ReactTarget(Target):
    """The reader of calls that a model writes as text."""

    name = "react"
    seeds = (
        b'Thought: I look it up.\nAction: search\nAction Input: {"query": "cats"}\n',
        b"Thought: Add.\nAction: add\nAction Input: {'a': 1, 'b': .5, }\nObservation: 1.5\nFinal Answer: It is 1.5.",
        b'**Action:** `search("cats")`\n',
        b'Action: search[cats]\nAction: add\nAction Input:\n```json\n{"a": 1,\n "b": 2}\n```\n',
        "Final Answer: Él 😀\nThought: None".encode(),
    )
    tokens = (
        b"Action:",
        b"Action Input:",
        b"Final Answer:",
        b"Thought:",
        b"Observation:",
        b"```",
        b"{'",
        b"\\u",
        b"None",
    )

    def check(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        pieces = [piece.decode("utf-8", "replace") for piece in split(data)] if text.isascii() else [text]
        results: list[Any] = []
        for parts in ([text], pieces):
            parser = ReactParser()
            for part in parts:
                parser.feed(part)
            parser.end()
            calls, answer = parse_calls(parser.actions, _TOOLS)
            results.append((calls, answer))
            msgspec.json.encode(results)
        assert results[0] == results[1], "the calls depend on how the text was split"


class ShellTarget(Target):
    """The parser that decides whether a command line needs a shell, and command rules."""

    name = "shell"
    seeds = (
        b"ls -la 'a b' \"c d\"",
        b"git log --format='%h %s' -n 5",
        b"python3 -c 'print(1)' && rm -rf /",
        b"echo $(whoami) `id` ${HOME} > out 2>&1 | tee x; . ./run.sh",
        b"env A=1 timeout 5 find . -name '*.py' -exec cat {} +",
    )
    tokens = (
        b"'",
        b'"',
        b"\\",
        b"$(",
        b"`",
        b";",
        b"&&",
        b"\n",
        b"\t",
        b"-c",
        b"**",
        b"*",
        b"\xc2\xa0",
        b"\xe2\x80\x8b",
    )

    def check(self, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        words = split_plain_command(text)
        if words:
            assert words == shlex.split(text), "another argv than a shell's"
        with suppress(BadArguments):
            argv, in_shell = build_argv({"command": text}, "/bin/bash")
            assert argv and (in_shell or list(argv) == words)
            self._check_rule(list(argv))

    @staticmethod
    def _check_rule(argv: list[str]) -> None:
        for pattern in (argv, [*argv[:1], "**"], [*argv[:1], "*", *argv[2:]]):
            with suppress(ConfigError):
                policy = Policy(commands=[{"argv": pattern}])
                rule = CommandRule(tuple(pattern))
                assert isinstance(rule.matches(argv), bool)
                assert policy.version


class FolderTarget(Target):
    """A reader of files. An input is a file name, a line end, and the content."""

    files: Sequence[str]

    def open(self) -> None:
        self._folder = tempfile.TemporaryDirectory()

    def close(self) -> None:
        self._folder.cleanup()

    def check(self, data: bytes) -> None:
        first, _, content = data.partition(b"\n")
        name = next((each for each in self.files if each.encode() == first), self.files[len(first) % len(self.files)])
        path = Path(self._folder.name) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        try:
            self.read(Path(self._folder.name))
        finally:
            path.unlink()

    def read(self, folder: Path) -> None:
        """Read the folder; raise for anything but a documented error."""
        raise NotImplementedError


class ConfigTarget(FolderTarget):
    """`atlas.toml` and `.env`."""

    name = "config"
    files = ("atlas.toml", ".env")
    seeds = (
        b'atlas.toml\nmodel = "openai/gpt-5.6"\nport = 18790\norigins = ["https://a.example"]\nsandbox = "auto"\n',
        b'atlas.toml\ntimeout = 1.5\nfetch_hosts = ["a.example:80"]\nprovider_limits = ["openai=10/s"]\n# x\n',
        b".env\nOPENAI_API_KEY=sk-1\nexport ATLAS_PORT=\"1\"\nATLAS_MODEL='openai/x' # c\n\nA\n",
    )
    tokens = (b"[", b"]", b"=", b'"""', b"'''", b"1e999", b"inf", b"\x00", b"\xff", b"\xef\xbb\xbf", b"9" * 400, b"\r")

    def read(self, folder: Path) -> None:
        with suppress(ConfigError):
            load({}, Environment({"HOME": str(folder / "home")}, dotenv=folder / ".env"), folder)


class WorkspaceTarget(FolderTarget):
    """Prompts, skills, servers and the policy of a workspace."""

    name = "workspace"
    files = ("AGENTS.md", "SOUL.md", "skills/a/SKILL.md", "prompts/b.md", "mcp.json", "policy.toml")
    seeds = (
        b"AGENTS.md\n## ana\nmodel: openai/gpt-5.6\ntools: bash\ntemperature: 0.5\n\nYou help.\n```\n## no\n```\n",
        b"SOUL.md\n# Soul\nBe kind.\n---\n",
        b"skills/a/SKILL.md\n---\nname: a\ndescription: >\n  Folded\n  text\n---\n# Body\n",
        b"prompts/b.md\n---\ndescription: x\n---\nTranslate {{text}} to {{language}}.\n",
        b'mcp.json\n{"mcpServers": {"a": {"command": "x", "args": ["${HOME}", "b"], "env": {"A": "${B:-c}"}}}}',
        b'policy.toml\nwhen_tainted = "ask"\n[groups]\ng = ["a"]\n[grants]\na = ["x:*"]\n[tools.x]\nyes = ["*"]\n',
        b'policy.toml\n[[commands]]\nargv = ["ls", "-l", "**"]\nwho = ["a"]\n',
    )
    tokens = (
        b"---\n",
        b"## ",
        b"```",
        b": ",
        b"{{",
        b"}}",
        b"${",
        b"[[",
        b"\x00",
        b"\xff",
        b"\xe2\x80\xae",
        b"null",
        b"[" * 500,
    )

    def read(self, folder: Path) -> None:
        for read in (self._workspace, read_skills, read_prompts, read_servers, self._policy):
            reader: Callable[[Path], object] = read
            with suppress(ConfigError):
                reader(folder)

    @staticmethod
    def _workspace(folder: Path) -> object:
        return Workspace(folder).load()

    @staticmethod
    def _policy(folder: Path) -> object:
        return Policy.load(folder / "policy.toml") if (folder / "policy.toml").exists() else None


class GatewayTarget(Target):
    """A gateway in this process, with a model that always answers."""

    is_json = True

    def open(self) -> None:
        self._runner, self._stack, self._folder = asyncio.Runner(), AsyncExitStack(), tempfile.TemporaryDirectory()
        self._runner.run(self._open())

    async def _open(self) -> None:
        atlas = in_memory_atlas(_answer, store=MemoryStore(), retries=())
        self.gateway = await self._stack.enter_async_context(serve_gateway(Path(self._folder.name), atlas))

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()
        self._folder.cleanup()

    def check(self, data: bytes) -> None:
        self._runner.run(asyncio.wait_for(self.exchange(data), EXAMPLE_SECONDS))

    async def exchange(self, data: bytes) -> None:
        """Send one input to the gateway; raise if its answer tells of a defect."""
        raise NotImplementedError


class HttpTarget(GatewayTarget):
    """The body of an HTTP request."""

    path: str

    async def exchange(self, data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        if any("\ud800" <= char <= "\udfff" for char in text):
            return  # the client below sends text; frames cover invalid UTF-8
        headers = {"Authorization": f"Bearer {main_token(self.gateway)}", "Content_Type": "application/json"}
        code, answer = await http(self.gateway, f"POST {self.path}", body=text, **headers)
        assert code < 500 or code == 502, answer  # 502: the model's answer does not match the schema
        assert "INTERNAL" not in answer and "internal_error" not in answer, answer


class OpenAITarget(HttpTarget):
    """Bodies of `/v1/chat/completions`."""

    name, path = "openai", "/v1/chat/completions"
    seeds = tuple(
        json.dumps({"model": "atlas/assistant", "messages": messages, **more}).encode()
        for messages, more in (
            ([{"role": "user", "content": "Hi"}], {"stream": True, "stream_options": {"include_usage": True}}),
            (
                [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "é"}]}],
                {"n": 1},
            ),
            (
                [
                    {"role": "user", "content": "Q"},
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                    },
                    {"role": "tool", "tool_call_id": "c", "content": "R"},
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}],
                    },
                ],
                {"temperature": 0.5, "max_tokens": 5, "user": "u"},
            ),
            (
                [{"role": "user", "content": "Q"}],
                {
                    "response_format": {
                        "type": "json_schema",
                        "json_schema": {"name": "x", "schema": {"type": "object"}},
                    }
                },
            ),
        )
    )
    tokens = (
        b"null",
        b"{}",
        b"[]",
        b"-1",
        b"1e999",
        b'"tool"',
        b'"$ref"',
        b'"pattern"',
        b"\\ud800",
        b"[" * 300,
        b"9" * 300,
    )


class AgUiTarget(HttpTarget):
    """Bodies of `/ag-ui/assistant`."""

    name, path = "agui", "/ag-ui/assistant"
    seeds = (
        b'{"threadId":"t","runId":"r","messages":[{"id":"m","role":"user","content":"Hi"}],"tools":[],"state":{}}',
        b'{"threadId":"t","runId":"r","messages":[{"id":"a","role":"assistant","content":"x"},{"id":"m","role":"user",'
        b'"content":[{"type":"text","text":"Hi"}]}],"context":[],"forwardedProps":{}}',
        b'{"threadId":"t","runId":"r","messages":[{"id":"m","role":"user","content":[{"type":"image","source":'
        b'{"type":"data","value":"AA==","mimeType":"image/png"}}]}]}',
        b'{"threadId":"t","runId":"r","messages":[],"resume":[{"interruptId":"i","status":"resolved",'
        b'"payload":{"approved":true,"editedArgs":{},"reason":"x","remember":"once"}}]}',
    )
    tokens = (b"null", b"{}", b"[]", b"-1", b"1e999", b'"resume"', b'"edited_args"', b"\\ud800", b"[" * 300, b"9" * 300)


class FrameTarget(GatewayTarget):
    """Frames of an authenticated client."""

    name = "frames"
    tokens = (
        b"null",
        b"{}",
        b"[]",
        b"-1",
        b"1e999",
        b"9" * 30,
        b'"main"',
        b"\\ud800",
        b"\\u0000",
        b"[" * 300,
        b'"id":1,',
    )
    _skipped = frozenset({"tokens.rotate", "chat.wait", "knowledge.ingest", "knowledge.add"})
    """They end the connection, wait, or read files."""

    def __init__(self) -> None:
        names = [name for name in METHODS if name not in self._skipped]
        self.seeds = [
            json.dumps({"id": "x", "method": name, "params": sample(METHODS[name].params)}).encode() for name in names
        ]
        self._client: Client | None = None

    async def exchange(self, data: bytes) -> None:
        if any(name.encode() in data for name in self._skipped):
            return
        if self._client is None:
            self._client = await self._stack.enter_async_context(connect_client(self.gateway))
        try:
            await self._client.socket.send(data.decode("utf-8", "replace"))
            await self._client.send(id="fuzz-end", method="health.check")
            while (frame := await self._client.next()).get("id") != "fuzz-end":
                kind: Any = frame.get("error", {"data": {"kind": ""}})["data"]["kind"]
                assert kind != "INTERNAL", frame
            self._client.frames.clear()
        except ConnectionClosed as end:
            self._client = None
            assert end.rcvd is not None and end.rcvd.code != 1011, end


async def _answer(request: Request) -> Any:
    return {"choices": [{"message": {"content": "{}"}, "finish_reason": "stop"}]}


def sample(shape: Any) -> Any:
    """Return valid or nearly valid parameters of a type."""
    info = msgspec.inspect.type_info(shape)
    return _sample(info, 0)


def _sample(info: Any, depth: int) -> Any:
    match info:
        case msgspec.inspect.StructType() if depth < 4:
            return {field.encode_name: _sample(field.type, depth + 1) for field in info.fields}
        case msgspec.inspect.Metadata(type=inner):
            return _sample(inner, depth)
        case msgspec.inspect.UnionType(types=types):
            return _sample(types[0], depth)
        case msgspec.inspect.LiteralType(values=values):
            return values[0]
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return 1
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.ListType(item_type=inner) | msgspec.inspect.VarTupleType(item_type=inner) if depth < 4:
            return [_sample(inner, depth + 1)]
        case msgspec.inspect.DictType():
            return {}
        case msgspec.inspect.StrType():
            return "main"
        case _:
            return None


TARGETS: dict[str, Callable[[], Target]] = {
    made.name: made
    for made in (
        FrameTarget,
        SseTarget,
        ReactTarget,
        ShellTarget,
        ConfigTarget,
        WorkspaceTarget,
        OpenAITarget,
        AgUiTarget,
    )
}
