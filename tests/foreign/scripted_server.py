"""Scripted MCP server over stdio, with faults on request; uses only the standard library.

    python scripted_server.py FOLDER

`FOLDER/tools.json` replaces its tool list if it exists. Calls are recorded in `FOLDER/acts`, one per line.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
NAMES = ("echo", "cut", "hang", "noise", "flood", "huge", "steps", "variables", "sample", "change", "fail", "odd")
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}}
TOOLS = [{"name": name, "description": f"The tool {name}.", "inputSchema": SCHEMA} for name in NAMES]


def tools() -> list[dict[str, Any]]:
    path = FOLDER / "tools.json"
    return json.loads(path.read_text()) if path.exists() else TOOLS


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def run_tool(name: str, arguments: dict[str, Any], id: Any, meta: dict[str, Any]) -> dict[str, Any] | None:  # noqa: C901, PLR0915
    with (FOLDER / "acts").open("a") as file:
        file.write(f"{name} {json.dumps(arguments)}\n")
    text, count = arguments.get("text", ""), arguments.get("count", 0)
    match name:
        case "cut":  # the server exits after this many bytes of its response
            answer = json.dumps({"jsonrpc": "2.0", "id": id, "result": text_result(text)}) + "\n"
            os.write(1, answer.encode()[:count])
            os._exit(3)
        case "hang":
            time.sleep(3600)
        case "noise":
            os.write(1, b"hello, I am a log line\n\x00\xff\xfe\n{}\n[1]\n" * count)
        case "flood":
            while True:
                os.write(1, b"x" * 65536 + b"\n")
        case "huge":
            os.write(1, b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % id)
            for _ in range(count):
                os.write(1, b"y" * 1_000_000)
            os.write(1, b'"}]}}\n')
            return None
        case "steps":
            for step in range(1, count + 1):
                params = {"progressToken": meta["progressToken"], "progress": step, "total": count, "message": "on it"}
                write({"method": "notifications/progress", "params": params})
        case "meta":  # offered only by a tools.json that names it
            text = json.dumps(meta)
        case "variables":
            text = json.dumps(dict(os.environ))
        case "sample":
            request = {"messages": [{"role": "user", "content": {"type": "text", "text": text}}], "maxTokens": count}
            write({"id": "s1", "method": "sampling/createMessage", "params": request})
            text = sys.stdin.readline()
        case "change":
            changed = [{**tool, "description": tool["description"] + " "} for tool in tools()]
            (FOLDER / "tools.json").write_text(json.dumps(changed))
            write({"method": "notifications/tools/list_changed"})
        case "fail":
            return {**text_result(text), "isError": True}
        case "odd":
            return {"content": [{"type": "unknown kind"}]}
        case _:
            pass
    return text_result(text)


def main() -> None:
    with (FOLDER / "starts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if (FOLDER / "mute").exists():
        time.sleep(3600)
    if (FOLDER / "broken").exists():
        sys.exit("I do not feel well")
    for line in sys.stdin:
        message: dict[str, Any] = json.loads(line)
        id: Any = message.get("id")
        params: dict[str, Any] = message.get("params", {})
        match message.get("method"):
            case "initialize":
                server_info = {"name": "scripted", "version": "1"}
                version = params["protocolVersion"]
                write(
                    {
                        "id": id,
                        "result": {
                            "protocolVersion": version,
                            "capabilities": {"tools": {}},
                            "serverInfo": server_info,
                        },
                    }
                )
            case "tools/list":
                write({"id": id, "result": {"tools": tools()}})
            case "tools/call":
                result = run_tool(params["name"], params.get("arguments", {}), id, params.get("_meta", {}))
                if result is not None:
                    write({"id": id, "result": result})
            case _ if id is not None and "method" in message:
                write({"id": id, "error": {"code": -32601, "message": "Method not found"}})
            case _:
                pass


if __name__ == "__main__":
    main()
