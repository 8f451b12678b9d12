"""Replies of the model double for every scenario, rendered once into bytes.

Each server-sent event is one HTTP chunk, as real servers send them.
"""

import json
from functools import cache
from typing import cast

from scenarios import MODEL, SCENARIOS, STAMP_DIGITS, TOOL_ARGUMENTS, TOOL_NAMES, delta

STAMP = b"0" * STAMP_DIGITS  # replaced with the server's clock when the answer is sent
ARGUMENT_PIECES = 4


@cache
def replies(scenario: str, *, as_call: bool, usage: bool) -> dict[int, list[bytes]]:
    """Return the events of each model reply by the number of tool results in the request.

    `as_call` sends the answer as the argument of a `final_answer` call, for frameworks that require it.
    """
    if SCENARIOS[scenario].responses:
        return _responses(scenario)
    rendered: dict[int, list[bytes]] = {}
    results = 0
    for round_number, count in enumerate(SCENARIOS[scenario].calls):
        events: list[bytes] = []
        for index in range(count):
            events += _call(index, f"call_{round_number}_{index}", TOOL_NAMES[index])
        rendered[results] = _reply(events, "tool_calls", usage)
        results += count
    rendered[results] = _answer(SCENARIOS[scenario].deltas, as_call, usage)
    return rendered


def _answer(deltas: int, as_call: bool, usage: bool) -> list[bytes]:
    texts = [STAMP.decode() + " ", *(delta(index) for index in range(1, deltas))]
    if as_call:
        pieces = ['{"answer": "', *texts, '"}']
        return _reply(_call_in_pieces(0, "call_final", "final_answer", pieces), "tool_calls", usage)
    return _reply([_event({"content": text}) for text in texts], "stop", usage)


def _reply(events: list[bytes], finish: str, usage: bool) -> list[bytes]:
    first = _event({"role": "assistant", "content": "" if finish == "stop" else None})
    closing = [_event({}, finish)]
    if usage:
        counts = {"prompt_tokens": 100, "completion_tokens": 200, "total_tokens": 300}
        closing.append(_completion_chunk(choices=[], usage=counts))
    return [first, *events, *closing, _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]


def _call(index: int, call_id: str, name: str) -> list[bytes]:
    size = len(TOOL_ARGUMENTS) // ARGUMENT_PIECES + 1
    pieces = [TOOL_ARGUMENTS[at : at + size] for at in range(0, len(TOOL_ARGUMENTS), size)]
    return _call_in_pieces(index, call_id, name, ["", *pieces])


def _call_in_pieces(index: int, call_id: str, name: str, pieces: list[str]) -> list[bytes]:
    opening = {
        "index": index,
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": pieces[0]},
    }
    rest = [{"index": index, "function": {"arguments": piece}} for piece in pieces[1:]]
    return [_event({"tool_calls": [part]}) for part in (opening, *rest)]


def _event(change: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": change, "logprobs": None, "finish_reason": finish}
    return _completion_chunk(choices=[choice])


def _completion_chunk(**fields: object) -> bytes:
    body = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": MODEL,
        "system_fingerprint": "fp_bench",
        **fields,
    }
    return _chunk(b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")


def _responses(scenario: str) -> dict[int, list[bytes]]:
    """Return the replies of the Responses API: each has a reasoning item, then calls or a message."""
    rendered: dict[int, list[bytes]] = {}
    results = 0
    for round_number, count in enumerate(SCENARIOS[scenario].calls):
        calls = [
            {"type": "function_call", "id": f"fc_{round_number}_{index}", "call_id": f"call_{round_number}_{index}"}
            for index in range(count)
        ]
        items: list[dict[str, object]] = [
            {**call, "name": TOOL_NAMES[index], "arguments": TOOL_ARGUMENTS, "status": "completed"}
            for index, call in enumerate(calls)
        ]
        rendered[results] = _response([_reasoning(round_number), *items], [])
        results += count
    texts = [STAMP.decode() + " ", *(delta(index) for index in range(1, SCENARIOS[scenario].deltas))]
    message: dict[str, object] = {"type": "message", "id": "msg_bench", "status": "completed", "role": "assistant"}
    rendered[results] = _response([_reasoning(results), message], texts)
    return rendered


def _reasoning(number: int) -> dict[str, object]:
    return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": "gAAAA" * 200}


def _response(items: list[dict[str, object]], texts: list[str]) -> list[bytes]:
    counts = {"input_tokens": 100, "output_tokens": 200, "total_tokens": 300}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 64}}
    whole: dict[str, object] = {"id": "resp_bench", "object": "response", "created_at": 1700000000, "model": MODEL}
    whole |= {
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    events = [_named_event("response.created", response={**whole, "status": "in_progress", "output": []})]
    done: list[dict[str, object]] = []
    for index, item in enumerate(items):
        place = {"output_index": index, "item_id": item["id"]}
        events.append(_named_event("response.output_item.added", output_index=index, item=_begun(item)))
        if item["type"] == "function_call":
            size = len(TOOL_ARGUMENTS) // ARGUMENT_PIECES + 1
            for at in range(0, len(TOOL_ARGUMENTS), size):
                piece = TOOL_ARGUMENTS[at : at + size]
                events.append(_named_event("response.function_call_arguments.delta", **place, delta=piece))
        elif item["type"] == "message":
            part: dict[str, object] = {"type": "output_text", "annotations": [], "logprobs": []}
            events.append(
                _named_event("response.content_part.added", **place, content_index=0, part={**part, "text": ""})
            )
            for text in texts:
                event = _named_event("response.output_text.delta", **place, content_index=0, delta=text, logprobs=[])
                events.append(event)
            item = {**item, "content": [{**part, "text": "".join(texts)}]}
        events.append(_named_event("response.output_item.done", output_index=index, item=item))
        done.append(item)
    final = {**whole, "status": "completed", "output": done, "usage": {**counts, **details}}
    return [*events, _named_event("response.completed", response=final) + b"0\r\n\r\n"]


def _begun(item: dict[str, object]) -> dict[str, object]:
    empty: dict[str, object] = {"reasoning": {}, "function_call": {"arguments": ""}, "message": {"content": []}}
    return {**item, "status": "in_progress", **cast(dict[str, object], empty[str(item["type"])])}


def _named_event(name: str, **fields: object) -> bytes:
    body = {"type": name, **fields, "sequence_number": 0}
    return _chunk(f"event: {name}\n".encode() + b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
